"""Tops: an index that finds the segments with the messages of the highest priority (Q11)."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Generator
from typing import Final

_SLACK: Final = 64

Key = tuple[int, int]
"""Sort key of a message: rank (lower is better), then place."""


class Tops:
    """Segments by the key of their best available message, corrected lazily.

    Args:
        best: returns a segment's best key; None if it has nothing available.

    Attributes:
        known: the best key of each segment with available messages, by index, as far as it is not stale.
        stale: indexes of segments that have changed since their best key was computed.
    """

    def __init__(self, best: Callable[[int], Key | None]) -> None:
        self._best = best
        self.known: dict[int, Key] = {}
        self._heap: list[tuple[Key, int]] = []
        self.stale: set[int] = set()

    def touch(self, segment: int) -> None:
        """Note that a segment changed."""
        self.stale.add(segment)

    def note_best_key(self, segment: int, best: Callable[[], Key | None]) -> None:
        """Compute a changed segment's best key now, before its columns are spilled."""
        if segment in self.stale:
            self.stale.discard(segment)
            self._note(segment, best())

    def _note(self, segment: int, key: Key | None) -> None:
        if key is None:
            self.known.pop(segment, None)
        elif self.known.get(segment) != key:
            self.known[segment] = key
            heapq.heappush(self._heap, (key, segment))

    def best_key_of(self, segment: int) -> Key:
        """Return the best key of a segment that `by_key` yielded."""
        return self.known[segment]

    def by_key(self) -> Generator[int, None, None]:
        """Yield segments with available messages, best first. The shard must not change meanwhile."""
        for segment in self.stale:
            self._note(segment, self._best(segment))
        self.stale.clear()
        if len(self._heap) > 2 * len(self.known) + _SLACK:
            self._heap = [(key, segment) for segment, key in self.known.items()]
            heapq.heapify(self._heap)
        looked: list[tuple[Key, int]] = []
        given: set[int] = set()
        try:
            while self._heap:
                key, segment = heapq.heappop(self._heap)
                if self.known.get(segment) != key or segment in given:
                    continue
                looked.append((key, segment))
                given.add(segment)
                yield segment
        finally:
            for entry in looked:
                heapq.heappush(self._heap, entry)
