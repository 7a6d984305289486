"""The horizon of a sweep: what was published behind the instant of a purge, or of a settlement by filter (C1, C37)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lapse.core.generation import FIRST_REWOUND
from lapse.core.queue.segments.segment import Segment


class Horizon:
    """How far a sweep reaches into each source: messages behind its instant stay as they are.

    Attributes:
        ends: by a source's number, the first offset that is out of reach; all messages of other sources are in reach.
    """

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends: Mapping[int, int] = {}

    def within(self, segment: Segment, slots: NDArray[np.intp]) -> NDArray[np.intp]:
        """Those of some places, ascending, that are in reach."""
        if not self.ends or not len(slots):
            return slots
        keeps = np.ones(len(slots), np.bool_)
        for run in segment.runs:
            end = self.ends.get(run.source)
            if end is None or run.offset >= FIRST_REWOUND:  # what a rewind brought back came by a command before
                continue
            first, behind = run.slot + max(0, end - run.offset), run.slot + run.count
            if first < behind:
                keeps[np.searchsorted(slots, first) : np.searchsorted(slots, behind)] = False
        return slots[keeps]

    def has(self, number: int, offset: int) -> bool:
        """Whether a message is in reach, by its source's number and its offset."""
        end = self.ends.get(number)
        return end is None or offset < end or offset >= FIRST_REWOUND
