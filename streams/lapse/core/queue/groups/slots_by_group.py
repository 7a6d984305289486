"""The slots of a segment by group, kept for the segments that were looked at last."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.segments.segment import Segment

_KEPT: Final = 16
"""For how many segments the slots are kept: about 100 KiB each if every message has another group."""


_NOWHERE: Final = (0, 0)


class SlotsByGroup:
    """Finds the slots of a group, without a look at all slots of the segment each time."""

    def __init__(self) -> None:
        self._kept: dict[int, _Sorted] = {}

    def find(self, segment: Segment, group: int) -> list[int]:
        """Return the places in a segment that were given to a group's messages, ascending, whatever became of these."""
        if segment.groups is None:
            return list(range(segment.base, segment.base + segment.used)) if group == OWN_GROUP else []
        known = self._kept.get(segment.index)
        if known is None or known.used != segment.used:
            self._kept.pop(segment.index, None)
            if len(self._kept) >= _KEPT:
                del self._kept[next(iter(self._kept))]
            known = self._kept[segment.index] = _Sorted(segment)
        first, stop = known.spans.get(group, _NOWHERE)
        return known.places[first:stop]


class _Sorted:
    """The slots of a segment, sorted by group."""

    __slots__ = ("places", "spans", "used")

    def __init__(self, segment: Segment) -> None:
        assert segment.groups is not None
        self.used = segment.used
        column = segment.groups[: segment.used]
        order = np.argsort(column, kind="stable")
        column = column[order]
        edges = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(column)]
        self.spans = dict(zip(column[edges[:-1]].tolist(), pairwise(edges), strict=True))
        """By group, where its places begin and end in `places`."""
        self.places: list[int] = (order + segment.base).tolist()
