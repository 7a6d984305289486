"""Queries: return the current records in batches, without those that expire meanwhile (S5, C45)."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from lapse.core.portions import JudgedBytes
from lapse.core.shard.answer import CommandAnswer
from lapse.core.sow.query.ranking import Order, Ranking
from lapse.core.sow.query.select import Select
from lapse.core.sow.query.view import View
from lapse.core.sow.records.record import facts_of
from lapse.core.sow.records.record_names import Walk
from lapse.core.sow.state import SowState
from lapse.core.sow.step import Kind, Message, Step
from lapse.core.sow.subscriptions.subscription import Predicate
from lapse.core.sow.updates.scheduled_updates import is_seen, judged_bytes
from lapse.core.sow.updates.version import Version

_SENT_COST: Final = 3
"""The cost of sending a record, in records examined, work outside the core included."""

_STRIPES: Final = 64
"""The set of examined keys is split into this number of sets, so that their resizing takes less time at once."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QueryRequest:
    """The request of a query.

    Attributes:
        command_id: id of its command.
        command: name of its command.
        subscription: id of the subscription for which the batches are.
        candidates: journal keys of the records that may match; None = all.
        predicates: compiled filters, all of which must match.
        order: the order of the result; None = any.
        skip: how many matching records are skipped first.
        top_n: the greatest number of records returned; None = all.
        follows: whether this is the query of a subscription, which gets updates afterwards.
        batch_size: number of records in a batch.
        at_ms: the instant of the command, ms since the epoch.
        answered: whether an answer follows the end of the group.
        heartbeat_timeout_ms: heartbeat timeout of the subscription, for the answer, ms; 0 = no subscription.
        only_counts: whether records are only counted.
        scheduled: scheduled updates, of which matching ones are counted as well.
        select: the fields to return; None = all.
    """

    command_id: str
    command: str
    subscription: str
    candidates: Sequence[bytes] | None = None
    predicates: tuple[Predicate, ...] = ()
    order: Order | None = None
    skip: int = 0
    top_n: int | None = None
    follows: bool = False
    batch_size: int = 500
    at_ms: int = 0
    answered: bool = True
    heartbeat_timeout_ms: int = 0
    only_counts: bool = False
    scheduled: Sequence[Version] = ()
    select: Select | None = None


class Query:
    """A query in progress: a snapshot of the records at the command, sent batch by batch.

    A plain query sends each record as it was at the command, even if it was updated or deleted meanwhile, but no record
    whose deadline has passed when its batch is sent. The query of a subscription leaves out records that have changed
    since, because the subscription gets them as updates.

    Args:
        state: the shard's state.
        request: what is asked for.
    """

    __slots__ = (
        "_begun_at",
        "_counted",
        "_left",
        "_looked_at",
        "_preserved",
        "_ranked",
        "_ranking",
        "_request",
        "_scan",
        "_scheduled",
        "_sent",
        "_skip",
        "_some",
        "_state",
        "_walk",
        "_withheld",
        "finished",
    )

    def __init__(self, state: SowState, request: QueryRequest) -> None:
        self._state = state
        self._request = request
        self._walk = state.record_names.walk() if request.candidates is None else Walk(request.candidates)
        self._some: deque[bytes] = deque()
        self._begun_at = state.sequence
        """Sequence of the last update before the query began."""
        self._preserved: dict[bytes, bytes | None] = {}
        self._looked_at: tuple[set[bytes], ...] = tuple(set() for _ in range(_STRIPES)) if request.follows else ()
        self._ranking = None if request.order is None else Ranking(request.order)
        self._ranked: Iterator[tuple[bytes, bytes, object]] | None = None
        self._withheld: set[bytes] = set()
        self._skip = request.skip
        self._left = request.top_n
        self._sent = 0
        self._counted = 0
        """How many scheduled updates were examined."""
        self._scheduled = 0
        self._scan = state.settings.max_scan
        self.finished = False
        """Whether the end of the group was sent."""
        if not request.follows:
            state.snapshots.append(self)

    @classmethod
    def begin(cls, state: SowState, request: QueryRequest, step: Step) -> Query:
        """Begin a query. The start of the group is sent at once, so that no update of the subscription precedes it."""
        query = cls(state, request)
        if not request.only_counts:
            step.deliveries.append(Message(Kind.GROUP_BEGIN, request.subscription, request.command_id))
        step.queries.append(query)
        return query

    @property
    def subscription(self) -> str:
        """Id of the subscription for which the batches are."""
        return self._request.subscription

    @property
    def command_id(self) -> str:
        """Id of the command."""
        return self._request.command_id

    @property
    def withholds_any(self) -> bool:
        """Whether the query left out records that had expired but are not removed yet."""
        return bool(self._withheld)

    def withholds(self, before: View) -> bool:
        """Return whether a record's state at the command was not sent, because it comes later or had expired.

        A record that has changed since is not withheld, because it was sent as an update.
        """
        journal_key = before.journal_key
        return before.facts.sequence <= self._begun_at and (
            journal_key in self._withheld
            or not (self.finished or journal_key in self._looked_at[hash(journal_key) % _STRIPES])
        )

    def forget(self, journal_key: bytes) -> None:
        """Note that a record has changed, so that it is no longer withheld."""
        self._withheld.discard(journal_key)

    def preserve(self, journal_key: bytes, entry: bytes | None) -> None:
        """Keep a record's state at the start of the query (None = no record), because it changes."""
        self._preserved.setdefault(journal_key, entry)

    def abandon(self) -> None:
        """End the query without sending anything, because nobody waits for it."""
        self.finished = True
        self._release_snapshot()

    @property
    def at_ms(self) -> int:
        """The instant of the command, ms since the epoch."""
        return self._request.at_ms

    @property
    def command(self) -> str:
        """Name of the command."""
        return self._request.command

    @property
    def is_answered(self) -> bool:
        """Whether the command wants an answer."""
        return self._request.answered

    def pull(self, now_ms: int, step: Step, scan: int | None = None) -> None:
        """Put the next batch into the step, and with the last one the end of the group and the answer.

        Args:
            now_ms: the instant at which the batch is sent, ms since the epoch.
            step: receives the messages.
            scan: how many records to examine; None = the number in the settings.
        """
        request = self._request
        self._scan = self._state.settings.max_scan if scan is None else scan
        if self._counted < len(request.scheduled):
            self._count_scheduled()
            return
        if self._ranking is not None and self._ranked is None:
            self._rank(self._ranking)
            if self._ranked is None:
                return
        room = request.batch_size if self._left is None else min(request.batch_size, self._left)
        sent = 0
        judged = JudgedBytes()
        ended = False
        for _ in range(self._scan):
            if sent == room or sent * _SENT_COST >= self._scan or judged.is_full:
                break
            found = self._next()
            if found is None:
                ended = True
                break
            journal_key, entry, value = found
            if entry is None:
                continue
            if self._state.is_due(entry, max(now_ms, request.at_ms)):
                self._withheld.add(journal_key)
                continue
            view = self._state.view(journal_key, entry)
            if self._ranked is None and request.predicates:
                judged.add(len(entry))
                if not self._matches(view):
                    continue
            if self._skip:
                self._skip -= 1
                continue
            sent += 1
            if request.only_counts:
                continue
            payload = view.selected(request.select, self._state.settings)
            message = view.message(Kind.SOW, request.subscription, command_id=request.command_id, payload=payload)
            step.deliveries.append(message if value is None else message._replace(order_value=value))
        self._sent += sent
        if self._left is not None:
            self._left -= sent
        if ended or self._left == 0 or (self._ranked is None and self._is_exhausted):
            self._finish(step)

    def _rank(self, ranking: Ranking) -> None:
        """Add some matching records of the snapshot to the ranking."""
        lot = []
        judged = JudgedBytes()
        names = self._walk.take(self._scan)
        for examined, journal_key in enumerate(names, 1):
            entry = self._as_of_start(journal_key)
            if entry is None:
                continue
            if self._matches(view := self._state.view(journal_key, entry)):
                lot.append(view)
            if judged.add(len(entry)):
                self._walk.put_back(len(names) - examined)
                break
        ranking.add(lot)
        if self._walk.is_over:
            self._ranked = ranking.merged()

    def _count_scheduled(self) -> None:
        """Count some of the matching scheduled updates."""
        request, judged = self._request, JudgedBytes()
        for version in request.scheduled[self._counted : self._counted + self._scan]:
            self._counted += 1
            self._scheduled += is_seen(self._state, version, request.predicates)
            if judged.add(judged_bytes(version, request.predicates)):
                return

    def _next(self) -> tuple[bytes, bytes | None, object] | None:
        """Return the next journal key with its record, if any, and its value in the order; None at the end."""
        if self._ranked is not None:
            return next(self._ranked, None)
        if not self._some:
            self._some.extend(self._walk.take(self._scan))
        if not self._some:
            return None
        journal_key = self._some.popleft()
        return journal_key, self._as_of_start(journal_key), None

    @property
    def _is_exhausted(self) -> bool:
        return not self._some and self._walk.is_over

    def _as_of_start(self, journal_key: bytes) -> bytes | None:
        """Return a record as it was when the query began. For a subscription's query, None if it has changed since."""
        if not self._request.follows:
            if journal_key in self._preserved:
                return self._preserved.pop(journal_key)
            return self._state.entries.get(journal_key)
        self._looked_at[hash(journal_key) % _STRIPES].add(journal_key)
        entry = self._state.entries.get(journal_key)
        return None if entry is None or facts_of(entry).sequence > self._begun_at else entry

    def _release_snapshot(self) -> None:
        self._walk.end()
        self._some.clear()
        self._preserved = {}
        self._looked_at = ()
        self._ranked = None
        if not self._request.follows:
            self._state.snapshots.remove(self)

    def _finish(self, step: Step) -> None:
        request = self._request
        self.finished = True
        self._release_snapshot()
        if not request.only_counts:
            step.deliveries.append(Message(Kind.GROUP_END, request.subscription, request.command_id))
        if request.answered:
            counts: tuple[tuple[str, int], ...] = (("records", self._sent),)
            if request.only_counts:
                counts += (("scheduled", self._scheduled),)
            if request.heartbeat_timeout_ms:
                counts += (("heartbeat_timeout_ms", request.heartbeat_timeout_ms),)
            step.answers.append(
                CommandAnswer(request.command_id, request.command, request.subscription, request.at_ms, counts=counts)
            )

    def _matches(self, view: View) -> bool:
        return all(predicate(view) is True for predicate in self._request.predicates)
