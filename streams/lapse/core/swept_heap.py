"""A heap that frees the entries of what is gone, a few at a time (C60).

An entry in the middle of a heap cannot be removed cheaply, so it stays when the message that it belongs to leaves.
Without sweeping, a message that was scheduled for next year and withdrawn would take memory until then.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from lapse.core.portions import Portions, clear_in_portions

T = TypeVar("T", bound=tuple[Any, ...])
"""An entry. Entries are ordered as tuples are."""

_SLACK: Final = 4_096
"""The number of entries of gone messages that are kept in any case."""

_SWEPT_AT_ONCE: Final = 4
"""How many entries are examined for each message that comes or leaves."""


class SweptHeap(Generic[T]):
    """A heap of entries, the least one first.

    Args:
        is_there: returns whether an entry's message is still there.

    Attributes:
        first: the least entry; None if there is none. It is asked for much more often than it changes.
    """

    __slots__ = ("_entries", "_is_there", "_old", "first")

    def __init__(self, is_there: Callable[[T], bool]) -> None:
        self._is_there = is_there
        self._entries: list[T] = []
        self._old: list[T] = []
        """A heap that is being swept: its entries move to the other one, or are dropped."""
        self.first: T | None = None

    def __len__(self) -> int:
        return len(self._entries) + len(self._old)

    @property
    def heaps(self) -> tuple[list[T], list[T]]:
        """The two heaps, for reading only."""
        return self._entries, self._old

    def push(self, entry: T) -> None:
        """Add an entry."""
        heapq.heappush(self._entries, entry)
        if self.first is None or entry < self.first:
            self.first = entry

    def pop(self) -> T:
        """Remove and return the least entry."""
        old = self._old and (not self._entries or self._old[0] < self._entries[0])
        popped = heapq.heappop(self._old if old else self._entries)
        self._find_first()
        return popped

    def sweep(self, there: int) -> None:
        """Examine a few entries, if more than half of them belong to what is gone; `there` says how many do not.

        The last entry of a heap is a leaf, so that the rest is still a heap without it.
        """
        if not self._old:
            if len(self._entries) <= 2 * there + _SLACK:
                return
            self._old, self._entries = self._entries, []
        for _ in range(min(_SWEPT_AT_ONCE, len(self._old))):
            entry = self._old.pop()
            if self._is_there(entry):
                heapq.heappush(self._entries, entry)
        self._find_first()

    def _find_first(self) -> None:
        firsts = [heap[0] for heap in self.heaps if heap]
        self.first = min(firsts) if firsts else None

    def release_memory(self) -> Portions[None]:
        """Free all entries, in portions."""
        self.first = None
        yield from clear_in_portions(self._entries, self._old)
