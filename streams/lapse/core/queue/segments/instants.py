"""Instants: an index that finds the segment with the earliest instant without a scan (L11)."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from lapse.core.lifetime import NEVER


class Instants:
    """A heap of (instant, segment), corrected lazily.

    A segment's own minimum is authoritative. An entry that differs from it is outdated, and is dropped when it
    comes to the top.
    """

    __slots__ = ("_heap", "_minimum")

    def __init__(self, minimum: Callable[[int], int]) -> None:
        """Begin empty; `minimum` returns a segment's earliest instant, `NEVER` if it has none or was dropped."""
        self._heap: list[tuple[int, int]] = []
        self._minimum = minimum

    def note(self, instant_ms: int, segment: int) -> None:
        """Enter a segment's new minimum."""
        if instant_ms < NEVER:
            heapq.heappush(self._heap, (instant_ms, segment))

    def next_ms(self) -> int:
        """Return the earliest instant of all segments, ms since the epoch; `NEVER` if there is none."""
        heap, minimum = self._heap, self._minimum
        while heap:
            instant_ms, segment = heap[0]
            if minimum(segment) == instant_ms:
                return instant_ms
            heapq.heappop(heap)
        return NEVER

    def pop_due(self, now_ms: int) -> int | None:
        """Remove and return a segment whose minimum is due at `now_ms`; None if none is."""
        # Not even the earliest entry, outdated or not, is due at most calls.
        if not self._heap or self._heap[0][0] > now_ms or self.next_ms() > now_ms:
            return None
        return heapq.heappop(self._heap)[1]
