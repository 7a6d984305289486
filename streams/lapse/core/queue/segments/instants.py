"""An index of instants by segment: which segment has something due first (L11, design: by index, not by scan)."""

from __future__ import annotations

import heapq
from collections.abc import Callable

from lapse.core.lifetime import NEVER


class Instants:
    """A heap of (instant, segment), corrected lazily.

    A segment's own minimum says what holds; an entry that differs from it is out of date and thrown away when it
    comes to the top.
    """

    __slots__ = ("_heap", "_minimum")

    def __init__(self, minimum: Callable[[int], int]) -> None:
        """Begin empty; `minimum` gives a segment's earliest instant, `NEVER` if it has none or is gone."""
        self._heap: list[tuple[int, int]] = []
        self._minimum = minimum

    def note(self, instant_ms: int, segment: int) -> None:
        """Note a segment's new minimum."""
        if instant_ms < NEVER:
            heapq.heappush(self._heap, (instant_ms, segment))

    def next_ms(self) -> int:
        """The earliest instant of all segments; `NEVER` if there is none."""
        heap = self._heap
        while heap:
            instant_ms, segment = heap[0]
            if self._minimum(segment) == instant_ms:
                return instant_ms
            heapq.heappop(heap)
        return NEVER

    def pop_due(self, now_ms: int) -> int | None:
        """Take a segment whose minimum is due at `now_ms`; None when none is."""
        if self.next_ms() > now_ms:
            return None
        return heapq.heappop(self._heap)[1]
