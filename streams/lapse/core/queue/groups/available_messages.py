"""Available messages, as the waiting groups of a shard learn of them: from segments, then as they come (Q20, C60)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.segments.segment import AVAILABLE, NOBODY, Segment
from lapse.core.queue.segments.summary import Outline


class AvailableMessages(ABC):
    """Enters the available messages of a shard, those of a segment together.

    Args:
        look: returns a segment for reading; None = it was dropped.
        outline: returns the outline of a segment.
        first: index of the first segment that may hold some.
    """

    def __init__(self, look: Callable[[int], Segment | None], outline: Callable[[int], Outline], first: int) -> None:
        self._look = look
        self._outline = outline
        self._next_load: int | None = first
        """The first segment whose messages are not entered yet; None = there is none."""
        self._fresh: list[NDArray[np.intp]] = []
        """Slots that became available and are not entered yet, all in the segment `_fresh_in`."""
        self._fresh_in = NOBODY

    @abstractmethod
    def _enter_available(self, segment: Segment, slots: NDArray[np.intp]) -> int:
        """Enter available messages of a segment, given as ascending slots. Return how much work that was."""

    def _load(self, last: int, at_once: int) -> bool:
        """Enter messages of the segments up to index `last`, until `at_once` work is done. Return whether all are."""
        done = 0
        while self._next_load is not None and done < at_once:
            index, self._next_load = self._next_load, self._next_load + 1
            segment = self._look(index) if self._outline(index).available else None
            if segment is not None:
                done += self._enter_available(segment, np.flatnonzero(segment.state[: segment.used] == AVAILABLE))
            if index >= last:
                self._next_load = None
        return self._next_load is None

    def add_available(self, segment: Segment, slots: NDArray[np.intp]) -> None:
        """Add messages that have become available, given as ascending slots.

        They are entered when that is needed: those of many small batches together.
        """
        if self._next_load is not None and segment.index >= self._next_load:
            return
        if segment.index != self._fresh_in:
            self.sort_fresh()
            self._fresh_in = segment.index
        self._fresh.append(slots)

    def sort_fresh(self) -> None:
        """Enter the messages that were added since the last call."""
        if not self._fresh:
            return
        segment, fresh = self._look(self._fresh_in), self._fresh
        self._fresh, self._fresh_in = [], NOBODY
        if segment is not None:
            slots = fresh[0] if len(fresh) == 1 else np.concatenate(fresh)
            if not bool((slots[1:] > slots[:-1]).all()):  # those of arrivals are behind each other already
                slots = np.unique(slots)
            self._enter_available(segment, slots)
