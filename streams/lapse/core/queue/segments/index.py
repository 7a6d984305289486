"""Indexes over the segments of a shard, which avoid scans: instants, barriers, groups, tops."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.arrival.trait import Flag
from lapse.core.queue.groups.group_codes import GroupCodes
from lapse.core.queue.groups.turn_columns import TurnColumns
from lapse.core.queue.groups.waiting_groups import WaitingGroups
from lapse.core.queue.life.message_state import BINDS, FILLS, THERE, State
from lapse.core.queue.segments.instants import Instants
from lapse.core.queue.segments.segment import Segment, Where, slots_of
from lapse.core.queue.segments.spill import Segments
from lapse.core.queue.segments.tops import Key, Tops


class Index:
    """The indexes of a shard. They are derived from the segments, and again after a recovery.

    Args:
        segments: the segments.
        best: returns a segment's best key by priority; None if it has nothing available, or was dropped.

    Attributes:
        deadlines: segments by the earliest deadline of an unleased message.
        untils: segments by the earliest end of a lease or delay.
        barriers: places of barriers that are still there, ascending (Q12).
        ranked: whether any message has a priority.
        grouped: whether any message has a group.
        tops: segments by their best available message by priority.
        came_back: indexes of segments in which an available message may have a last holder (C49).
        codes: the codes of the groups, and how many messages of each are leased, delayed or transferring.
        columns: the waiting groups in columns; None unless they are needed.
        lines: the waiting groups as lines; None unless they are needed.
    """

    def __init__(self, segments: Segments, best: Callable[[int], Key | None]) -> None:
        self.deadlines = Instants(segments.earliest_deadline_ms)
        self.untils = Instants(segments.earliest_until_ms)
        self.barriers: list[int] = []
        self.ranked = False
        self.grouped = False
        self.tops = Tops(best)
        self.came_back: set[int] = set()
        self.codes = GroupCodes()
        self.columns: TurnColumns | None = None
        self.lines: WaitingGroups | None = None

    def bound_groups(self) -> set[int]:
        """Return the groups that have a leased, sent, delayed or transferring message (Q20, C19)."""
        return set(self.codes.hashes[1:][self.codes.bound[1:] > 0].tolist())

    def bound_count(self, group: int) -> int:
        """Return how many messages of a group are leased, sent, delayed or transferring."""
        code = self.codes.find(group)
        return int(self.codes.bound[code]) if code else 0

    def held_count(self, group: int) -> int:
        """Return how many messages of a group are leased or sent (Q25, C70)."""
        code = self.codes.find(group)
        return int(self.codes.bound[code] - self.codes.delayed[code]) if code else 0

    def touch(self, segment: Segment) -> None:
        """Note that a segment changed.

        Without any priorities this concerns only segments restored at a recovery, which must be in order once the first
        message with a priority arrives.
        """
        tops, index = self.tops, segment.index
        if self.ranked or index in tops.known or index in tops.stale:
            tops.touch(index)

    def update_before_spill(self, segment: Segment) -> None:
        """Bring the index of a segment up to date before its columns are spilled."""
        self.tops.note_best_key(segment.index, segment.best_key)

    def add(self, segment: Segment) -> None:
        """Index a whole segment after a recovery."""
        self.note_traits(segment, 0, segment.used)
        self.bind_groups(segment, slice(0, segment.used), 1)
        self.tops.touch(segment.index)
        self.deadlines.note(segment.min_deadline_ms, segment.index)
        self.untils.note(segment.min_until_ms, segment.index)
        if segment.returned_mask.any():
            self.came_back.add(segment.index)

    def note_traits(self, segment: Segment, first: int, stop: int) -> None:
        """Index the traits of messages that entered."""
        self.ranked |= segment.ranks is not None
        self.grouped |= segment.groups is not None
        if segment.flags is not None:
            state = segment.state[first:stop]
            for slot in np.flatnonzero(THERE[state] & ((segment.flags[first:stop] & Flag.BARRIER) != 0)).tolist():
                insort(self.barriers, segment.base + first + slot)

    def forget_barriers(self, segment: Segment, where: Where) -> None:
        """Remove the barriers among messages that left."""
        low, high = bisect_left(self.barriers, segment.base), bisect_left(self.barriers, segment.base + segment.used)
        if low == high:
            return
        places = slots_of(where) + segment.base
        if len(places) == 1:  # a crowd of barriers is released one by one
            gone = bisect_left(self.barriers, int(places[0]), low, high)
            if gone < high and self.barriers[gone] == places[0]:
                del self.barriers[gone]
            return
        left = set(places.tolist())
        self.barriers[low:high] = [place for place in self.barriers[low:high] if place not in left]

    def bind_groups(self, segment: Segment, where: Where, by: int, alike: State | None = None) -> None:
        """Add or subtract (`by`) the messages that bind their groups; `alike` is their common state, if it is known."""
        if segment.groups is None:
            return
        if self.codes.are_many:
            self._forget_groups()
        if alike is not None:
            if BINDS[alike]:
                self._bind(segment, where, by, not FILLS[alike])
            return
        states = segment.state[where]
        bound = BINDS[states]
        if bound.any():
            slots, fills = slots_of(where), FILLS[states]
            self._bind(segment, slots[bound & fills], by, delayed=False)
            self._bind(segment, slots[bound & ~fills], by, delayed=True)

    def _bind(self, segment: Segment, where: Where, by: int, delayed: bool) -> None:
        codes = self.codes.of(segment, where)
        self.codes.count(codes, by, delayed)
        if self.columns is None:
            self.codes.changed.clear()
        if by < 0 and self.lines is not None and self.lines.set_aside.any_waits_for_group:
            self.lines.release_groups(self.codes.hashes[np.unique(codes)].tolist())

    def _forget_groups(self) -> None:
        """Forget groups that are not needed any more."""
        if self.columns is None:
            self.codes.keep(np.zeros(len(self.codes), np.bool_))
        else:
            self.columns.forget_unneeded()

    def note_available(self, segment: Segment, where: Where) -> None:
        """Add available messages to the waiting groups."""
        if self.columns is not None:
            self.columns.add_available(segment, slots_of(where))
        if self.lines is not None:
            self.lines.add_available(segment, slots_of(where))

    def note_left(self, segment: Segment, where: Where) -> None:
        """Note that messages are not available any more."""
        if self.columns is not None:
            self.columns.note_left(segment, where)
        if self.lines is not None:
            self.lines.note_left(segment, where)

    def note_dropped(self, segment: Segment) -> None:
        """Note that a segment was dropped."""
        self.codes.drop(segment)
        self.touch(segment)
        self.came_back.discard(segment.index)

    def note_until(self, segment: Segment, until_ms: int) -> None:
        """Note the end of a lease or delay."""
        if until_ms < segment.min_until_ms:
            segment.min_until_ms = until_ms
            self.untils.note(until_ms, segment.index)

    def note_deadlines(self, segment: Segment, deadlines_ms: NDArray[np.int64]) -> None:
        """Note the deadlines of unleased messages."""
        earliest_ms = deadlines_ms.item(0 if len(deadlines_ms) == 1 else deadlines_ms.argmin())  # `min` takes longer
        if earliest_ms < segment.min_deadline_ms:
            segment.min_deadline_ms = earliest_ms
            self.deadlines.note(earliest_ms, segment.index)
