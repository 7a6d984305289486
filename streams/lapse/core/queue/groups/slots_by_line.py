"""The slots of a segment by line: by group, and by priority if the queue has priorities."""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.arrival.trait import OWN_GROUP, Flag
from lapse.core.queue.groups.resting_lines import Line
from lapse.core.queue.groups.slots_by_group import SlotsByGroup
from lapse.core.queue.segments.segment import AVAILABLE, Segment

_FEW_OF: Final = 4
"""If fewer than one in this number of messages is available, the others are left out at once."""

_NONE: Final = np.zeros(0, np.int64)


class SlotsByLine:
    """Finds the slots of lines.

    Args:
        ranked: whether the queue has priorities.
    """

    def __init__(self, ranked: bool) -> None:
        self._ranked = ranked
        self._by_group = SlotsByGroup()

    def split(self, segment: Segment, slots: NDArray[np.intp]) -> dict[Line, list[int]]:
        """Return the places of ascending slots, by line."""
        places = slots + segment.base
        if self._ranked:
            bands = [segment.key(slot)[0] for slot in slots.tolist()]
            groups = [OWN_GROUP] * len(slots) if segment.groups is None else segment.groups[slots].tolist()
            found: dict[Line, list[int]] = {}
            for place, band, group in zip(places.tolist(), bands, groups, strict=True):
                found.setdefault((band, group), []).append(place)
            return found
        if not len(slots):
            return {}
        if segment.groups is None:
            return {(0, OWN_GROUP): places.tolist()}
        column = segment.groups[slots]
        if len(slots) == 1:
            return {(0, int(column[0])): places.tolist()}
        order = np.argsort(column, kind="stable")
        column, ordered = column[order], places[order].tolist()
        edges = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(ordered)]
        groups = column[edges[:-1]].tolist()
        return {(0, group): ordered[first:stop] for group, (first, stop) in zip(groups, pairwise(edges), strict=True)}

    def find(self, segment: Segment, line: Line) -> list[int]:
        """Return the places of a line in a segment, ascending. Messages at some may have left."""
        if not self._ranked:
            places = self._by_group.find(segment, line[1])
            if segment.available * _FEW_OF < segment.used:
                base, state = segment.base, segment.state
                return [place for place in places if state[place - base] == AVAILABLE]
            return places
        return list(map(int, self._find_ranked(segment, line) + segment.base))

    def _find_ranked(self, segment: Segment, line: Line) -> NDArray[np.int64]:
        band, group = line
        wanted = segment.state[: segment.used] == AVAILABLE
        if segment.groups is not None:
            wanted &= segment.groups[: segment.used] == group
        elif group != OWN_GROUP:
            return _NONE
        if segment.ranks is not None and segment.flags is not None:
            ranked = (segment.flags[: segment.used] & Flag.RANKED) != 0
            wanted &= (segment.ranks[: segment.used] == np.uint64(-band - 1)) & ranked if band else ~ranked
        elif band:
            return _NONE
        return np.flatnonzero(wanted)
