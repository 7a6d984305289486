"""Subscriptions: who sees the updates of a SOW topic, and which (S6, S7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from lapse.core.shard.subscriptions import SHOWN_FILTER
from lapse.core.sow.select import Select
from lapse.core.sow.settings import Compile
from lapse.core.sow.step import QueryAtWork
from lapse.core.sow.view import View
from lapse.protocol.answer import OpenSubscription

Predicate = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A client's standing request, as the journal has it.

    Attributes:
        id: chosen by the client.
        client: a name for people.
        command_id: id of the command that made it.
        filter: selects records; None = all.
        row_filter: what its user may see at most, an expression; None = all (X4).
        deltas: whether it gets changed fields only.
        since: what it has seen: updates with a higher sequence, if they match; -1 = also all that were there before.
        heartbeat_timeout_ms: silence after which it counts as lost.
        querying: whether its query has not reached its end; begun again after a take-over.
        batch_size: records in one batch of its query.
        select: which fields it gets; empty = all.
        began_ms: instant at which it subscribed first, ms since the epoch.
    """

    id: str
    client: str = ""
    command_id: str = ""
    filter: str | None = None
    row_filter: str | None = None
    deltas: bool = False
    since: int = -1
    heartbeat_timeout_ms: int = 30_000
    querying: bool = False
    batch_size: int = 500
    select: tuple[str, ...] = ()
    began_ms: int = 0

    def pack(self) -> bytes:
        """Write it as it stands in the journal."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def unpack(cls, data: bytes) -> Subscription:
        """Read what `pack` wrote."""
        facts = json.loads(data)
        return cls(**{**facts, "select": tuple(facts.get("select", ()))})


class StandingQuery(QueryAtWork, Protocol):
    """The unfinished query of a subscription, as far as updates concern it."""

    def withholds(self, before: View) -> bool:
        """Whether it left this record out, as one that had expired."""

    def forget(self, journal_key: bytes) -> None:
        """Withhold a record no longer: it is another one now."""


@dataclass(slots=True)
class Subscriber:
    """A subscription at work: with its compiled filters, its heartbeat and its query.

    Attributes:
        subscription: what the journal has.
        predicates: its filters, compiled.
        heard_ms: when it was last heard, ms since the epoch; not journaled (C5).
        query: its query while that is unfinished.
        select: its select list, read; None = all fields.
        fault: what is wrong with its filters, found when it was restored; it sees nothing and is ended.
    """

    subscription: Subscription
    predicates: tuple[Predicate, ...]
    heard_ms: int
    query: StandingQuery | None = field(default=None)
    select: Select | None = None
    fault: str = ""

    @property
    def lost_at_ms(self) -> int:
        """When it counts as lost unless it is heard before, ms since the epoch."""
        return self.heard_ms + self.subscription.heartbeat_timeout_ms

    @property
    def shown(self) -> OpenSubscription:
        """As it is listed; with what its user may see at most."""
        one = self.subscription
        filters = [text for text in (one.filter, one.row_filter) if text]
        return OpenSubscription(
            subscription=one.id,
            client=one.client,
            since_ms=one.began_ms,
            heard_ms=self.heard_ms,
            filter=" AND ".join(f"({text})" if len(filters) > 1 else text for text in filters)[:SHOWN_FILTER],
        )

    def selects(self, view: View) -> bool:
        """Whether it is to see this record."""
        return not self.fault and all(predicate(view) is True for predicate in self.predicates)

    def has_seen(self, before: View) -> bool:
        """Whether it was shown this state of a record."""
        return (
            before.facts.sequence > self.subscription.since
            and not (self.query is not None and self.query.withholds(before))
            and self.selects(before)
        )


def predicates(
    subscription_filter: str | None, row_filter: str | None, compile_filter: Compile
) -> tuple[Predicate, ...]:
    """Compile the filters that are there.

    Raises:
        ValueError: a fault in one of them; the text says in which, and shows the place.
    """
    compiled = []
    for what, text in (("filter", subscription_filter), ("entitlement filter", row_filter)):
        if text:
            try:
                compiled.append(compile_filter(text))
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from error
    return tuple(compiled)
