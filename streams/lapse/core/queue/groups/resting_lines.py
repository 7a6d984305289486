"""Lines at rest: those of which no message fits a subscription with room, by the filters that they match (Q14, C60).

Without rest each delivery would look at every waiting group again. A line at rest competes again as soon as a
subscription with one of these filters has room, a message joins the line, or the message on which it depends leaves or
expires. A line that matches no filter has no entry here.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Set
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.queue.segments.segment import SIZE, Where

Line = tuple[int, int]
"""Band and hash of the group. A band is a priority: the lowest number comes first, and 0 is the last."""

Entry = tuple[int, int, int, int]
"""Band, tag, place and hash of the group. Entries sort in this order."""

_SPARE: Final = 64
"""The number of outdated entries that are kept before the valid ones are counted."""


class RestingLines:
    """The entries of lines at rest. An entry is outdated if its line got another one.

    Args:
        is_valid: returns whether an entry is still that of its line.
    """

    def __init__(self, is_valid: Callable[[Entry], bool]) -> None:
        self._is_valid = is_valid
        self._heaps: dict[Set[str], list[Entry]] = {}
        self._competing: list[tuple[Entry, int, list[Entry]]] = []
        """The first entry of each heap whose lines compete now, with a number and the heap."""
        self._lines_at: dict[int, dict[int, Line]] = {}
        """By segment index and place: the line that rests while the message at that place is there."""
        self._deadlines: list[tuple[int, Entry]] = []

    def add(self, entry: Entry, filters: Set[str], place: int, deadline_ms: int, lines: int) -> None:
        """Add a line.

        Args:
            entry: its entry.
            filters: the filters that its messages match, or may match.
            place: place of the message on which the rest depends.
            deadline_ms: that message's deadline, ms since the epoch; `NEVER` if it does not matter.
            lines: how many lines there are.
        """
        if filters:
            heap = self._heaps.setdefault(frozenset(filters), [])
            if len(heap) > _SPARE + 2 * lines:
                heap[:] = filter(self._is_valid, heap)
                heapq.heapify(heap)
            heapq.heappush(heap, entry)
        self._lines_at.setdefault(place // SIZE, {})[place] = entry[0], entry[3]
        if deadline_ms < NEVER:
            if len(self._deadlines) > _SPARE + 2 * lines:
                self._deadlines = [one for one in self._deadlines if self._is_valid(one[1])]
                heapq.heapify(self._deadlines)
            heapq.heappush(self._deadlines, (deadline_ms, entry))

    def compete(self, filters: Set[str]) -> None:
        """Let the lines compete that match one of these filters, until the next call."""
        heaps = [heap for known, heap in self._heaps.items() if heap and not known.isdisjoint(filters)]
        self._competing = [(heap[0], number, heap) for number, heap in enumerate(heaps)]
        heapq.heapify(self._competing)

    def pop_before(self, other: Entry | None) -> Entry | None:
        """Remove and return the first competing entry if it comes before another one; None if there is none."""
        if not self._competing or (other is not None and other <= self._competing[0][0]):
            return None
        entry, number, heap = self._competing[0]
        heapq.heappop(heap)
        if heap:
            heapq.heapreplace(self._competing, (heap[0], number, heap))
        else:
            heapq.heappop(self._competing)
        return entry

    def leave(self, index: int, where: Where) -> list[Line]:
        """Return the lines whose rest depended on messages that left, given as slots of a segment."""
        known = self._lines_at.get(index)
        if known is None:
            return []
        base = index * SIZE
        slots = range(where.start, where.stop) if isinstance(where, slice) else where.tolist()
        found = [line for slot in slots if (line := known.pop(base + slot, None)) is not None]
        if not known:
            del self._lines_at[index]
        return found

    def pop_expired(self, now_ms: int) -> Iterator[Entry]:
        """Remove and yield the valid entries whose rest depended on messages that have expired."""
        while self._deadlines and self._deadlines[0][0] <= now_ms:
            entry = heapq.heappop(self._deadlines)[1]
            if self._is_valid(entry):
                yield entry

    def clear(self) -> None:
        """Forget all lines."""
        self._heaps.clear()
        self._competing.clear()
        self._lines_at.clear()
        self._deadlines.clear()
