"""Queries: the current records, in batches, without any that expired meanwhile (S5, C45)."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from lapse.core.sow.output import Kind, Message, Reply, Step
from lapse.core.sow.settings import Compile
from lapse.core.sow.state import SowState
from lapse.core.sow.subscription import Predicate
from lapse.core.sow.view import View

_DIRECTION: Final = re.compile(r"\s+(ASC|DESC)\s*\Z", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Order:
    """`order_by`: an expression, and which way. NULL, NaN and what cannot be compared come last either way."""

    value: Callable[[Any], Any]
    descending: bool

    @classmethod
    def parse(cls, text: str, compile_value: Compile) -> Order:
        """Read an expression with ASC (the default) or DESC behind it.

        Raises:
            ValueError: a fault in the expression; the text shows the place.
        """
        match = _DIRECTION.search(text)
        try:
            if match is None:
                return cls(compile_value(text), False)
            return cls(compile_value(text[: match.start()]), match[1].upper() == "DESC")
        except ValueError as error:
            raise ValueError(f"order_by: {error}") from error

    def sorted(self, views: Sequence[View]) -> list[View]:
        """Return the records in order; numbers stand before texts, equal ones as they came."""
        ranked: list[tuple[tuple[int, Any], View]] = []
        last: list[View] = []
        for view in views:
            value = self.value(view)
            if isinstance(value, str):
                ranked.append(((1, value), view))
            elif isinstance(value, (int, float)) and not math.isnan(value):
                ranked.append(((0, value), view))
            else:
                last.append(view)
        ranked.sort(key=lambda pair: pair[0], reverse=self.descending)
        return [view for _, view in ranked] + last


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
        "_matched",
        "_pending",
        "_sent",
        "_skip",
        "_state",
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
        self._matched = inquiry.order is not None
        if inquiry.order is not None:
            views = [view for name, entry in self._pending.items() if self._matches(view := state.view(name, entry))]
            # Batches are taken from the end.
            self._pending = {view.name: view.entry for view in reversed(inquiry.order.sorted(views))}
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
        room = inquiry.batch_size if self._left is None else min(inquiry.batch_size, self._left)
        sent = 0
        pending = self._pending
        for _ in range(self._state.settings.max_scan):
            if not pending or sent == room:
                break
            name, entry = pending.popitem()
            if self._state.is_due(entry, max(now_ms, inquiry.at_ms)):
                self._withheld.add(name)
                continue
            view = self._state.view(name, entry)
            if not (self._matched or self._matches(view)):
                continue
            if self._skip:
                self._skip -= 1
                continue
            step.messages.append(view.message(Kind.SOW, inquiry.subscription, command_id=inquiry.command_id))
            sent += 1
        self._sent += sent
        if self._left is not None:
            self._left -= sent
        if not pending or self._left == 0:
            self._finish(step)

    def _finish(self, step: Step) -> None:
        inquiry = self._inquiry
        self.finished = True
        self._pending = {}
        step.messages.append(Message(Kind.GROUP_END, inquiry.subscription, inquiry.command_id))
        if inquiry.answered:
            counts = (("records", self._sent),)
            step.replies.append(
                Reply(inquiry.command_id, inquiry.command, inquiry.subscription, inquiry.at_ms, counts=counts)
            )

    def _matches(self, view: View) -> bool:
        return all(predicate(view) is True for predicate in self._inquiry.predicates)
