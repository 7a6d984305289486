"""Measures the filters of a SOW topic's subscriptions while they seem to cost much (X7, S6).

An update is shown to all subscriptions at once, so the CPU of a portion does not say which filter took it. Each filter
is measured by itself only while portions are slow, since that costs a microsecond for each record.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from lapse.core.error_code import Refusal
from lapse.core.sow.state import SowState
from lapse.core.sow.subscriptions.subscription import Predicate
from lapse.protocol.command import Command
from lapse.runtime.shard.command_work import Portion
from lapse.runtime.shard.standing_filter import StandingFilters

_SLOW_S: Final = 0.000_2
"""CPU for each record of a portion from which on it counts as slow, s. The usual value is a fortieth of it."""

_SUBSCRIBE: Final = frozenset({"subscribe", "sow_and_subscribe", "delta_subscribe", "sow_and_delta_subscribe"})


class StandingPredicates:
    """Finds the subscriptions of one shard whose filters take too much CPU.

    Args:
        state: the shard's memory, with its subscribers.
        most_at_once: the greatest number of records in a portion.

    Attributes:
        arrivals: portions of arriving records, if there are filters.
        expired: portions of expiring records, if there are filters.
    """

    def __init__(self, state: SowState, most_at_once: int) -> None:
        self._state = state
        self._filters = StandingFilters(most_at_once)
        self._most = most_at_once
        self.arrivals = Portion(most_at_once, 1)
        self.expired = Portion(most_at_once, 1)
        self._measures = False

    @property
    def at_once(self) -> int:
        """How many records to take in before others have their turn."""
        return self.arrivals.size if self._measures else self._most

    @property
    def expire_at_once(self) -> int:
        """How many records may expire before others have their turn.

        With filters, the first portion is a single record.
        """
        return self.expired.size if self.are_used else self._most

    @property
    def are_used(self) -> bool:
        """Whether subscriptions have filters, which are evaluated on all arriving and leaving records."""
        return any(one.subscription.filter for one in self._state.subscribers.values())

    @contextmanager
    def at_work(self, count: int, portion: Portion) -> Iterator[None]:
        """Measure a portion of `count` records, and choose its next size by that."""
        if not self.are_used:
            self._measures = False
            yield
            return
        if self._measures:
            self._measure()
        began = time.thread_time()
        yield
        seconds = time.thread_time() - began
        portion.note_time(seconds)
        self._measures = self._measures or seconds > _SLOW_S * max(count, 10)

    def too_costly(self) -> list[tuple[str, Refusal]]:
        """Return the subscriptions to end with their refusals. Their filters are refused from now on."""
        if not self._measures:
            return []
        found = self._filters.too_costly({one.subscription.filter or "" for one in self._state.subscribers.values()})
        return [
            (name, found[one.subscription.filter])
            for name, one in self._state.subscribers.items()
            if one.subscription.filter in found
        ]

    def refusal(self, command: Command) -> Refusal | None:
        """Return the refusal of a subscription whose filter took too much CPU before; None for any other command."""
        return self._filters.refusal(command.filter) if command.command in _SUBSCRIBE else None

    def _measure(self) -> None:
        """Measure each filter by itself from now on, but not the operator's row filters."""
        for one in self._state.subscribers.values():
            text, predicates = one.subscription.filter, one.predicates
            if text and predicates and not isinstance(predicates[0], _Measured):
                one.predicates = (_Measured(predicates[0], text, self._filters), *predicates[1:])


class _Measured:
    """A predicate whose CPU time is added up."""

    __slots__ = ("_filters", "_predicate", "_text", "_uses_payload", "equalities")

    def __init__(self, predicate: Predicate, text: str, filters: StandingFilters) -> None:
        self._predicate = predicate
        self._text = text
        self._filters = filters
        self._uses_payload = getattr(predicate, "uses_payload", False)
        self.equalities: Any = getattr(predicate, "equalities", ())

    def __call__(self, view: Any) -> Any:
        if self._uses_payload:
            view.payload  # noqa: B018  # parsed at the first access, which must not count as the filter's work
        with self._filters.work(self._text).portion_measured(1):
            return self._predicate(view)
