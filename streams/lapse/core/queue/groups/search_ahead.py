"""Search ahead: finds the next messages of groups in the segments, and some that will be needed soon (Q25, C60)."""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.narrow_order import argsort_narrow
from lapse.core.queue.groups.found_ahead import END, FoundIn
from lapse.core.queue.groups.turn_columns import TurnColumns
from lapse.core.queue.segments.segment import AVAILABLE, Segment
from lapse.core.queue.state import QueueState
from lapse.core.spans import numbers_of

_FEW_OF: Final = 8
"""If fewer than one in this number of a segment's messages are available, only these are sorted by group."""

_FEW: Final = 16
"""Up to this number of groups, their messages in a segment are looked up group by group."""

_MANY: Final = 32
"""From this number of groups on, it pays to treat them alike when the next segment is chosen."""

_AHEAD: Final = 16
"""The multiple of the wanted messages of a group that is found at once, if its segment holds as many."""

_FURTHER: Final = 12
"""The greatest number of segments that are searched beyond those that are needed."""

_MOST_GROUPS: Final = 4_096
"""Nothing is found ahead for more groups than this."""

SEARCHED_AT_ONCE: Final = 64
"""The greatest number of segments that are searched in one turn. After half of it, others have theirs (C60)."""

_PATIENCE: Final = 16
"""After so many turns in which a search was not finished it is, since what leaves meanwhile makes it begin again."""


class Found(NamedTuple):
    """Messages of groups, in columns.

    Attributes:
        places: their places, by group.
        of: for each message, the index of its group among those that were asked for.
        counts: for each group, how many there are.
    """

    places: NDArray[np.int64]
    of: NDArray[np.intp]
    counts: NDArray[np.int64]


class SearchAhead:
    """Finds messages of groups at one instant.

    Args:
        state: the shard's state.
        columns: the waiting groups.
        deadlines_count_ms: the instant, ms since the epoch; negative = deadlines do not count.
    """

    def __init__(self, state: QueueState, columns: TurnColumns, deadlines_count_ms: int) -> None:
        self._state = state
        self._columns = columns
        self._ahead = columns.ahead
        self._deadlines_count_ms = deadlines_count_ms
        self._left_to_search = SEARCHED_AT_ONCE if columns.ahead.unfinished < _PATIENCE else END
        self._found: list[FoundIn] = []
        self._ahead.begin_search(columns.first, deadlines_count_ms)

    def find(self, codes: NDArray[np.intp], wanted: NDArray[np.int64]) -> Found | None:
        """Find the first messages of groups, as many as are wanted; None if the search must go on in another turn."""
        ahead = self._ahead
        have = ahead.stop[codes] - ahead.begin[codes]
        lacking = have < wanted
        if lacking.any():
            if (lacking & (ahead.at[codes] < END)).any() and not self._search(codes, wanted, have):
                return None
            self._leave_segments(codes)
            have = ahead.stop[codes] - ahead.begin[codes]
        counts = np.minimum(have, wanted)
        some = codes[counts > 0]
        self._columns.heads[some] = ahead.segments_of_next(some)
        places = ahead.places[numbers_of(ahead.begin[codes], counts)]
        return Found(places, np.repeat(np.arange(len(codes)), counts), counts)

    def _search(self, codes: NDArray[np.intp], wanted: NDArray[np.int64], have: NDArray[np.int64]) -> bool:
        """Search the segments for messages of groups that have fewer than are wanted.

        Returns:
            Whether they can be delivered now; else another turn must go on.
        """
        ahead = self._ahead
        at, is_over = ahead.at[codes], False
        few, spills = len(codes) <= _MOST_GROUPS, self._state.segments.spill_store is not None
        further = min(_FURTHER, ahead.uses) if few and not spills else 0  # a spilled segment would be read twice
        left = np.maximum(wanted * (_AHEAD if few else 1) - have, 0)
        need = wanted - have
        while True:
            lacking = at[(need > 0) & (at < END)]
            if not len(lacking):
                lacking = at[(left > 0) & (at < END)] if further else lacking
                further -= 1
                if not len(lacking):
                    break
            elif self._left_to_search <= 0:
                is_over = True
                break
            self._left_to_search -= 1
            index = int(lacking.min())
            here = np.flatnonzero((at == index) & (left > 0))
            found = self._search_segment(index, codes, here, left, at)
            left[here] -= found
            need[here] -= found
        ahead.add(codes, at, self._found)
        self._found = []
        waits = is_over or self._left_to_search <= SEARCHED_AT_ONCE // 2
        ahead.unfinished = ahead.unfinished + 1 if waits else 0
        return not waits

    def _search_segment(
        self,
        index: int,
        codes: NDArray[np.intp],
        here: NDArray[np.intp],
        left: NDArray[np.int64],
        at: NDArray[np.int64],
    ) -> NDArray[np.int64]:
        """Search a segment for messages of groups. Return how many were found of each.

        Args:
            index: index of the segment.
            codes: the codes of all groups.
            here: the indexes of those that may have messages there.
            left: for all groups, how many messages may be found.
            at: for all groups, the next segment to search; written.
        """
        columns, segment, these = self._columns, self._state.look(index), codes[here]
        if segment is None:
            found = np.zeros(len(here), np.int64)
            self._go_on(index, here, these, found, at)
            return found
        columns.left[these] = most = left[here]
        columns.found[these] = 0
        self._find_in(segment, these)
        found = columns.found[these]
        columns.left[these] = columns.found[these] = 0
        all_found = found < most
        columns.ahead.until[these[all_found]] = segment.base + segment.used
        self._ahead.min_deadline_ms = min(self._ahead.min_deadline_ms, segment.min_deadline_ms)
        self._go_on(index, here[all_found], these[all_found], found[all_found], at)
        return found

    def _go_on(
        self,
        index: int,
        here: NDArray[np.intp],
        these: NDArray[np.intp],
        found: NDArray[np.int64],
        at: NDArray[np.int64],
    ) -> None:
        """Go on to the next segments of groups of which one segment holds nothing more."""
        columns = self._columns
        if len(here) >= _MANY and 2 * int(np.count_nonzero(found)) >= len(here):
            # Then most of them have messages in the next segment, too.
            at[here] = np.where(columns.last[these] > index, index + 1, END)
            return
        at[here] = [columns.next_behind(code, index) for code in these.tolist()]

    def _find_in(self, segment: Segment, wanted: NDArray[np.intp]) -> None:
        """Find messages in one segment, of groups that are given by their codes."""
        columns = self._columns
        if segment.available * _FEW_OF < segment.used:
            slots = np.flatnonzero(segment.state[: segment.used] == AVAILABLE)
            codes = columns.codes.of(segment, slots).astype(np.intp)
            order = argsort_narrow(codes)
            codes, slots = codes[order], slots[order]
            columns.fit()
            free = columns.left[codes] > 0
        else:
            codes, slots = columns.codes.sorted(segment)
            columns.fit()
            if len(wanted) <= _FEW:
                edges = np.searchsorted(codes, [(code, code + 1) for code in sorted(wanted.tolist())]).tolist()
                of_these = np.concatenate([np.arange(first, stop) for first, stop in edges])
                codes, slots = codes[of_these], slots[of_these]
            free = (segment.state[slots] == AVAILABLE) & (columns.left[codes] > 0)
        until = self._ahead.until
        if int(until[wanted].max()) > segment.base:
            free &= slots + segment.base >= until[codes]
        if segment.deadline_ms is not None and segment.min_deadline_ms <= self._deadlines_count_ms:
            late = free & (segment.deadline_ms[slots] <= self._deadlines_count_ms)
            passed = codes[late]
            self._ahead.stays[passed] = np.minimum(self._ahead.stays[passed], segment.index)
            free &= ~late
        at = np.flatnonzero(free)
        if len(at):
            self._take_first(segment, codes[at], slots[at])

    def _take_first(self, segment: Segment, codes: NDArray[np.intp], slots: NDArray[np.intp]) -> None:
        """Take the first messages of each group, as many as may be found, of some that are sorted by group."""
        begins = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1))
        counts = np.diff(begins, append=len(codes))
        groups = codes[begins]
        columns = self._columns
        taken = columns.found[groups] = np.minimum(counts, columns.left[groups])
        self._ahead.until[groups] = slots[begins + taken - 1] + (segment.base + 1)
        if bool((taken < counts).any()):
            first = np.flatnonzero(np.arange(len(codes)) < np.repeat(begins + taken, counts))
            slots = slots[first]
        self._found.append(FoundIn(groups, taken, slots + segment.base))

    def _leave_segments(self, codes: NDArray[np.intp]) -> None:
        """Note which segments hold nothing more of groups."""
        columns, ahead = self._columns, self._ahead
        target = np.minimum(ahead.at[codes], ahead.stays[codes])
        some = np.flatnonzero(ahead.stop[codes] > ahead.begin[codes])
        target[some] = np.minimum(target[some], ahead.segments_of_next(codes[some]))
        behind = np.flatnonzero(columns.first[codes] < target)
        if len(behind):
            columns.leave_before(codes[behind], target[behind])
