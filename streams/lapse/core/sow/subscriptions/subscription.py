"""Subscriptions to a SOW topic, and which updates each gets (S6, S7)."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from lapse.core.shard.subscriptions import SHOWN_FILTER
from lapse.core.sow.query.select import Select
from lapse.core.sow.query.view import View
from lapse.core.sow.settings import Compile
from lapse.core.sow.step import RunningQuery
from lapse.protocol.answer import OpenSubscription

Predicate = Callable[[Any], Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscription:
    """A client's standing request, as the journal holds it.

    Attributes:
        id: the id that the client chose.
        client: the client's name for people.
        command_id: id of the command that began it.
        filter: content filter; None = all records.
        row_filter: its user's row filter; None = no limit (X4).
        deltas: whether it gets only changed fields.
        since: it has seen matching updates with a higher sequence than this; -1 = also all earlier records.
        unsure: of updates up to this sequence, it may have seen those from `unsure_ms` on, and no others: a former
            owner that did not journal it may have sent them.
        unsure_ms: see `unsure`, ms since the epoch.
        heartbeat_timeout_ms: silence after which it is lost, ms.
        querying: whether its query is unfinished, and begins again after a take-over.
        batch_size: records in a batch of its query.
        select: paths of the fields that it gets; empty = all.
        began_ms: instant of its first subscribe, ms since the epoch.
    """

    id: str
    client: str = ""
    command_id: str = ""
    filter: str | None = None
    row_filter: str | None = None
    deltas: bool = False
    since: int = -1
    unsure: int = -1
    unsure_ms: int = 0
    heartbeat_timeout_ms: int = 30_000
    querying: bool = False
    batch_size: int = 500
    select: tuple[str, ...] = ()
    began_ms: int = 0

    def pack(self) -> bytes:
        """Return the journal's bytes."""
        return json.dumps(asdict(self), ensure_ascii=False, separators=(",", ":")).encode("utf-8", "surrogatepass")

    @classmethod
    def unpack(cls, data: bytes) -> Subscription:
        """Read the journal's bytes."""
        facts = json.loads(data)
        return cls(**{**facts, "select": tuple(facts.get("select", ()))})


class StandingQuery(RunningQuery, Protocol):
    """The unfinished query of a subscription, as updates use it."""

    def withholds(self, before: View) -> bool:
        """Return whether the query has not sent this state of a record."""

    def forget(self, journal_key: bytes) -> None:
        """Note that a record has changed, so that it is no longer withheld."""


@dataclass(slots=True)
class Subscriber:
    """A subscription in operation, with its compiled filters, its heartbeat and its query.

    Attributes:
        subscription: the journaled subscription.
        predicates: its compiled filters.
        heard_ms: instant of its last command, ms since the epoch; not journaled (C5).
        query: its unfinished query; None without one.
        select: its parsed select list; None = all fields.
        fault: why its filters could not be restored; such a subscription gets nothing and is ended.
    """

    subscription: Subscription
    predicates: tuple[Predicate, ...]
    heard_ms: int
    query: StandingQuery | None = field(default=None)
    select: Select | None = None
    fault: str = ""

    @property
    def lost_at_ms(self) -> int:
        """Instant at which it is lost unless heard of before, ms since the epoch."""
        return self.heard_ms + self.subscription.heartbeat_timeout_ms

    @property
    def as_listed(self) -> OpenSubscription:
        """The subscription as `subscriptions` lists it, with the row filter included."""
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
        """Return whether it gets a record in this state."""
        return not self.fault and all(predicate(view) is True for predicate in self.predicates)

    def has_seen(self, before: View) -> bool:
        """Return whether it has seen a record in this state."""
        subscription, facts = self.subscription, before.facts
        return (
            facts.sequence > subscription.since
            and (facts.sequence > subscription.unsure or facts.timestamp_ms >= subscription.unsure_ms)
            and not (self.query is not None and self.query.withholds(before))
            and self.selects(before)
        )


def predicates(
    subscription_filter: str | None, row_filter: str | None, compile_filter: Compile
) -> tuple[Predicate, ...]:
    """Compile the filters that are given.

    Raises:
        ValueError: a filter is invalid; the message says which, and where.
    """
    compiled = []
    for what, text in (("filter", subscription_filter), ("entitlement filter", row_filter)):
        if text:
            try:
                compiled.append(compile_filter(text))
            except ValueError as error:
                raise ValueError(f"{what}: {error}") from error
    return tuple(compiled)
