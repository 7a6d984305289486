"""Horizon: excludes messages published after the instant of a purge, settlement by filter or rewind (C1, C37, C63)."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import NDArray

from lapse.core.generation import FIRST_REWOUND
from lapse.core.queue.segments.segment import Segment


class Horizon:
    """The range of a purge or settlement by filter in each source. Messages published later are not affected.

    Attributes:
        ends: by number of the source, the first offset that is not affected; other sources have no end.
    """

    __slots__ = ("ends",)

    def __init__(self) -> None:
        self.ends: Mapping[int, int] = {}

    def slots_within(self, segment: Segment, slots: NDArray[np.intp]) -> NDArray[np.intp]:
        """Return those of some ascending slots that are within the horizon."""
        if not self.ends or not len(slots):
            return slots
        keeps = np.ones(len(slots), np.bool_)
        for run in segment.runs:
            end = self.ends.get(run.source)
            if end is None or run.offset >= FIRST_REWOUND:  # a rewound message came by an earlier command
                continue
            first, behind = run.slot + max(0, end - run.offset), run.slot + run.count
            if first < behind:
                keeps[np.searchsorted(slots, first) : np.searchsorted(slots, behind)] = False
        return slots[keeps]

    def contains(self, number: int, offset: int) -> bool:
        """Return whether a message, given source number and offset, is within the horizon."""
        end = self.ends.get(number)
        return end is None or offset < end or offset >= FIRST_REWOUND
