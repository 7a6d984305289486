"""The slots of a segment by group, kept for the segments that were looked at last."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np

from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.segments.segment import Segment, Where

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

    def count(self, segment: Segment, where: Where) -> list[tuple[int, int]] | None:
        """Return how many of some slots each group was given; None if counting anew takes about as long.

        Messages without a group are not counted.
        """
        known = self._kept.get(segment.index)
        if known is None or known.used != segment.used:
            return None
        counts = np.bincount(known.codes[where])
        found = counts.nonzero()[0]
        groups = known.groups
        numbers = zip(found.tolist(), counts[found].tolist(), strict=True)
        return [(groups[code], count) for code, count in numbers if groups[code] != OWN_GROUP]


class _Sorted:
    """The slots of a segment, sorted by group."""

    __slots__ = ("codes", "groups", "places", "spans", "used")

    def __init__(self, segment: Segment) -> None:
        assert segment.groups is not None
        self.used = segment.used
        column = segment.groups[: segment.used]
        order = np.argsort(column, kind="stable")
        column = column[order]
        edges = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(column)]
        self.groups: list[int] = column[edges[:-1]].tolist()
        self.spans = dict(zip(self.groups, pairwise(edges), strict=True))
        """By group, where its places begin and end in `places`."""
        self.codes = np.empty(self.used, np.int32)
        """By slot, the index of its group in `groups`."""
        self.codes[order] = np.repeat(np.arange(len(self.groups), dtype=np.int32), np.diff(edges))
        self.places: list[int] = (order + segment.base).tolist()
