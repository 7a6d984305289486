"""Queries: the current records, in batches, without any that expired meanwhile (S5, C45)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from lapse.core.sow.output import Kind, Message, Reply, Step
from lapse.core.sow.ranking import Order, Ranking
from lapse.core.sow.state import SowState
from lapse.core.sow.subscription import Predicate
from lapse.core.sow.view import View


@dataclass(frozen=True, slots=True, kw_only=True)
class Inquiry:
    """What a query asks for.

    Attributes:
        command_id: id of its command.
        command: name of its command.
        subscription: who asks; the batches carry it.
        candidates: journal keys of the records that may match; None = all.
        predicates: which of those.
        order: in which order; None = any.
        skip: so many are left out first.
        top_n: at most so many; None = all.
        batch_size: records in one batch.
        at_ms: the instant of the command, ms since the epoch.
        answered: whether a reply follows the group's end.
    """

    command_id: str
    command: str
    subscription: str
    candidates: Sequence[bytes] | None = None
    predicates: tuple[Predicate, ...] = ()
    order: Order | None = None
    skip: int = 0
    top_n: int | None = None
    batch_size: int = 500
    at_ms: int = 0
    answered: bool = True


class Query:
    """One query at work: a snapshot of the records as they stood at the command, sent batch by batch.

    A plain query sends each record as it stood then, even if it was updated or deleted meanwhile, but never one whose
    deadline has passed when its batch is sent. The query of a subscription leaves out what has changed since: that
    reaches the subscription as an update.

    Args:
        state: the shard's memory.
        inquiry: what is asked for.
    """

    __slots__ = (
        "_inquiry",
        "_left",
        "_pending",
        "_ranked",
        "_ranking",
        "_sent",
        "_skip",
        "_state",
        "_unranked",
        "_withheld",
        "finished",
    )

    def __init__(self, state: SowState, inquiry: Inquiry) -> None:
        self._state = state
        self._inquiry = inquiry
        entries = state.entries
        if inquiry.candidates is None:
            self._pending = entries.copy()
        else:
            self._pending = {name: entries[name] for name in inquiry.candidates if name in entries}
        self._ranking = None if inquiry.order is None else Ranking(inquiry.order)
        self._unranked = iter(self._pending.items())
        self._ranked: Iterator[tuple[bytes, bytes]] | None = None
        self._withheld: set[bytes] = set()
        self._skip = inquiry.skip
        self._left = inquiry.top_n
        self._sent = 0
        self.finished = False
        """Whether the group's end was sent."""

    @classmethod
    def begin(cls, state: SowState, inquiry: Inquiry, step: Step) -> Query:
        """Begin a query: the group's begin goes out at once, so that no update of the subscription stands before it."""
        query = cls(state, inquiry)
        step.messages.append(Message(Kind.GROUP_BEGIN, inquiry.subscription, inquiry.command_id))
        step.queries.append(query)
        return query

    @property
    def subscription(self) -> str:
        """Who asked."""
        return self._inquiry.subscription

    @property
    def command_id(self) -> str:
        """Id of the command that asked."""
        return self._inquiry.command_id

    @property
    def withholds_any(self) -> bool:
        """Whether it left out records that had expired and are not yet removed."""
        return bool(self._withheld)

    def withholds(self, name: bytes) -> bool:
        """Whether a record of the snapshot was not sent: not yet, or because it had expired."""
        return name in self._pending or name in self._withheld

    def forget(self, name: bytes) -> None:
        """Leave out a record that has changed, if it was not sent."""
        self._pending.pop(name, None)
        self._withheld.discard(name)

    def abandon(self) -> None:
        """End without a word: nobody waits for it any more."""
        self.finished = True
        self._pending = {}

    def pull(self, now_ms: int, step: Step) -> None:
        """Put the next batch into the step; with the last one the group's end and the reply.

        Args:
            now_ms: the instant at which the batch is sent, ms since the epoch.
            step: gets the messages.
        """
        inquiry = self._inquiry
        if self._ranking is not None and self._ranked is None:
            self._rank(self._ranking)
            if self._ranked is None:
                return
        room = inquiry.batch_size if self._left is None else min(inquiry.batch_size, self._left)
        sent = 0
        ended = False
        for _ in range(self._state.settings.max_scan):
            if sent == room:
                break
            found = self._next()
            if found is None:
                ended = True
                break
            name, entry = found
            if self._state.is_due(entry, max(now_ms, inquiry.at_ms)):
                self._withheld.add(name)
                continue
            view = self._state.view(name, entry)
            if self._ranked is None and not self._matches(view):
                continue
            if self._skip:
                self._skip -= 1
                continue
            step.messages.append(view.message(Kind.SOW, inquiry.subscription, command_id=inquiry.command_id))
            sent += 1
        self._sent += sent
        if self._left is not None:
            self._left -= sent
        if ended or self._left == 0 or (self._ranked is None and not self._pending):
            self._finish(step)

    def _rank(self, ranking: Ranking) -> None:
        """Bring some of the snapshot's records into their order, those that match."""
        some = list(islice(self._unranked, self._state.settings.max_scan))
        views = [self._state.view(name, entry) for name, entry in some]
        ranking.add([view for view in views if self._matches(view)])
        if len(some) < self._state.settings.max_scan:
            self._ranked = ranking.merged()

    def _next(self) -> tuple[bytes, bytes] | None:
        """The next record of the snapshot, or None."""
        if self._ranked is not None:
            return next(self._ranked, None)
        return self._pending.popitem() if self._pending else None

    def _finish(self, step: Step) -> None:
        inquiry = self._inquiry
        self.finished = True
        self._pending = {}
        self._ranked = None
        step.messages.append(Message(Kind.GROUP_END, inquiry.subscription, inquiry.command_id))
        if inquiry.answered:
            counts = (("records", self._sent),)
            step.replies.append(
                Reply(inquiry.command_id, inquiry.command, inquiry.subscription, inquiry.at_ms, counts=counts)
            )

    def _matches(self, view: View) -> bool:
        return all(predicate(view) is True for predicate in self._inquiry.predicates)
