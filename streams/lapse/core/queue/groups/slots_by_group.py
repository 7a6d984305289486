"""The slots of a segment by group, kept for the segments that were looked at last."""

from __future__ import annotations

from bisect import bisect_left
from typing import Final

import numpy as np

from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.segments.segment import Segment

_KEPT: Final = 16
"""For how many segments the slots are kept: about 100 KiB each if every message has another group."""


class SlotsByGroup:
    """Finds the slots of a group, without a look at all slots of the segment each time."""

    def __init__(self) -> None:
        self._kept: dict[int, _Sorted] = {}

    def find(self, segment: Segment, group: int) -> list[int]:
        """Return the slots of a segment that were given to a group's messages, ascending, whatever became of these."""
        if segment.groups is None:
            return list(range(segment.used if group == OWN_GROUP else 0))
        known = self._kept.get(segment.index)
        if known is None or known.used != segment.used:
            self._kept.pop(segment.index, None)
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            known = self._kept[segment.index] = _Sorted(segment)
        return known.find(group)


class _Sorted:
    """The slots of a segment, sorted by group."""

    __slots__ = ("_edges", "_groups", "_slots", "used")

    def __init__(self, segment: Segment) -> None:
        assert segment.groups is not None
        self.used = segment.used
        column = segment.groups[: segment.used]
        order = np.argsort(column, kind="stable")
        column = column[order]
        self._edges = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(column)]
        self._groups = column[self._edges[:-1]].tolist()
        self._slots: list[int] = order.tolist()

    def find(self, group: int) -> list[int]:
        at = bisect_left(self._groups, group)
        if at == len(self._groups) or self._groups[at] != group:
            return self._slots[:0]
        return self._slots[self._edges[at] : self._edges[at + 1]]
