"""Waiting groups in the order of their turn, with the places of their messages (Q20, Q25, C71).

A line holds a group's messages of one priority. Each line has one entry in a heap: priority, tag of the group's turn,
and place of the line's first message. An entry may be too early, and is corrected when it comes up. Tags only grow,
and so does the first place, unless a message returns, which makes a new entry. So nothing is scanned, and a tenant's
large backlog costs the others nothing.

Lines are derived from the segments when they are first needed. A line knows the segments that may hold its messages,
and its slots in the first of them.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.arrival.trait import OWN_GROUP, Flag
from lapse.core.queue.groups.group_turn import GroupTurn
from lapse.core.queue.segments.segment import AVAILABLE, Segment

Line = tuple[int, int]
"""Band and hash of the group. A band is a priority: the lowest number comes first, and 0 is the last."""

Entry = tuple[int, int, int, int]
"""Band, tag, place and hash of the group. Entries sort in this order."""

Found = tuple[Segment, int]
"""A message as its segment and slot."""


class _Waiting:
    """The waiting messages of a line.

    Attributes:
        segments: indexes of the segments that may hold some, ascending.
        head: slots in the first of these segments that may hold some, ascending; None = not computed yet.
        entry: the line's valid entry in the heap.
    """

    __slots__ = ("entry", "head", "segments")

    def __init__(self, segment: int, head: list[int]) -> None:
        self.segments = [segment]
        self.head: list[int] | None = head
        self.entry: Entry | None = None


class WaitingGroups:
    """The lines of a shard.

    Args:
        look: returns a segment for reading; None = it was dropped.
        turn: the turn among the groups.
        ranked: whether the queue has priorities.
    """

    def __init__(self, look: Callable[[int], Segment | None], turn: GroupTurn, ranked: bool) -> None:
        self.turn = turn
        self._look = look
        self._ranked = ranked
        self._waiting: dict[Line, _Waiting] = {}
        self._heap: list[Entry] = []
        self._set_aside: dict[int, list[Entry]] = {}
        self._until: list[tuple[int, Entry]] = []

    def __len__(self) -> int:
        return len(self._waiting)

    # Changes of messages

    def add_available(self, segment: Segment, slots: NDArray[np.intp]) -> None:
        """Add messages that have become available, given as ascending slots."""
        for line, some in self._lines(segment, slots).items():
            waiting = self._waiting.get(line)
            if waiting is None:
                waiting = self._waiting[line] = _Waiting(segment.index, some)
            elif waiting.segments[0] == segment.index:
                if waiting.head is not None:
                    _merge(waiting.head, some)
            else:
                at = bisect_left(waiting.segments, segment.index)
                if at == len(waiting.segments) or waiting.segments[at] != segment.index:
                    waiting.segments.insert(at, segment.index)
                    if not at:
                        waiting.head = None
            place = segment.base + some[0]
            if waiting.entry is None or place < waiting.entry[2]:
                self._enter(line, waiting, place)

    def release_groups(self, groups: Iterable[int]) -> None:
        """Let groups compete again that may have fewer leased messages than before."""
        for group in groups:
            for entry in self._set_aside.pop(group, ()):
                heapq.heappush(self._heap, entry)

    def _lines(self, segment: Segment, slots: NDArray[np.intp]) -> dict[Line, list[int]]:
        """Return slots by line."""
        if self._ranked:
            bands = [segment.key(slot)[0] for slot in slots.tolist()]
            groups = [OWN_GROUP] * len(slots) if segment.groups is None else segment.groups[slots].tolist()
            found: dict[Line, list[int]] = {}
            for slot, band, group in zip(slots.tolist(), bands, groups, strict=True):
                found.setdefault((band, group), []).append(slot)
            return found
        if segment.groups is None:
            return {(0, OWN_GROUP): slots.tolist()} if len(slots) else {}
        column = segment.groups[slots]
        if len(slots) == 1:
            return {(0, int(column[0])): slots.tolist()}
        order = np.argsort(column, kind="stable")
        column, ordered = column[order], slots[order].tolist()
        edges = [0, *(np.flatnonzero(np.diff(column)) + 1).tolist(), len(ordered)]
        return {(0, int(column[first])): ordered[first:stop] for first, stop in pairwise(edges) if stop > first}

    # The heap

    def pop_first(self) -> Entry | None:
        """Remove and return the first valid entry; None if none is left. Its place may be too early: see `messages`."""
        while self._heap:
            entry = heapq.heappop(self._heap)
            waiting = self._waiting.get((entry[0], entry[3]))
            if waiting is not None and waiting.entry is entry:
                return entry
        return None

    def serve(self, entry: Entry, place: int) -> None:
        """Note that the message of an entry is handed out. The line's next message is at or after `place`."""
        band, tag, _, group = entry
        after = (band, self.turn.serve(group, tag), place, group)
        self._waiting[band, group].entry = after
        heapq.heappush(self._heap, after)

    def enter(self, line: Line, place: int) -> None:
        """Put a line into the heap again. Its first message is at or after `place`."""
        self._enter(line, self._waiting[line], place)

    def _enter(self, line: Line, waiting: _Waiting, place: int) -> None:
        waiting.entry = entry = (line[0], self.turn.start_tag(line[1]), place, line[1])
        heapq.heappush(self._heap, entry)

    def set_aside(self, entry: Entry) -> None:
        """Keep a removed entry until its group is released."""
        self._set_aside.setdefault(entry[3], []).append(entry)

    def set_aside_until(self, entry: Entry, instant_ms: int) -> None:
        """Keep a removed entry until an instant, ms since the epoch."""
        heapq.heappush(self._until, (instant_ms, entry))

    def restore_due(self, now_ms: int) -> int | None:
        """Restore the entries whose instant has come. Return the next such instant, None if no line waits for one."""
        while self._until and self._until[0][0] <= now_ms:
            heapq.heappush(self._heap, heapq.heappop(self._until)[1])
        return self._until[0][0] if self._until else None

    def drop_line(self, line: Line) -> None:
        """Remove an empty line."""
        del self._waiting[line]

    def messages(self, line: Line, hopeless: Callable[[int, int], bool]) -> Iterator[Found]:
        """Yield the available messages of a line by place. The shard must not change meanwhile.

        Args:
            line: the line.
            hopeless: returns whether to skip a segment, given its index and its number of used slots.
        """
        waiting = self._waiting[line]
        while waiting.segments:
            segment = self._look(waiting.segments[0])
            if segment is not None:
                head = self._first_slots(waiting, line, segment)
                if head:
                    yield from _available(segment, head)
                    break
            del waiting.segments[0]
            waiting.head = None
        for index in waiting.segments[1:]:
            segment = self._look(index)
            if segment is not None and segment.available and not hopeless(index, segment.used):
                yield from _available(segment, self._slots(line, segment))

    def _first_slots(self, waiting: _Waiting, line: Line, segment: Segment) -> list[int]:
        """Return the line's slots in the first segment, beginning with the first available one."""
        if waiting.head is None:
            waiting.head = self._slots(line, segment)
        gone = 0
        for slot in waiting.head:
            if segment.state[slot] == AVAILABLE:
                break
            gone += 1
        del waiting.head[:gone]
        return waiting.head

    def _slots(self, line: Line, segment: Segment) -> list[int]:
        """Return the available slots of a line in a segment."""
        band, group = line
        wanted = segment.state[: segment.used] == AVAILABLE
        if segment.groups is not None:
            wanted &= segment.groups[: segment.used] == group
        elif group != OWN_GROUP:
            return []
        if self._ranked and segment.ranks is not None and segment.flags is not None:
            ranked = (segment.flags[: segment.used] & Flag.RANKED) != 0
            wanted &= (segment.ranks[: segment.used] == np.uint64(-band - 1)) & ranked if band else ~ranked
        elif band:
            return []
        return np.flatnonzero(wanted).tolist()


def _available(segment: Segment, slots: list[int]) -> Iterator[Found]:
    state = segment.state
    for slot in slots:
        if state[slot] == AVAILABLE:
            yield segment, slot


def _merge(into: list[int], slots: list[int]) -> None:
    """Merge ascending slots into an ascending list, without duplicates."""
    if not into or into[-1] < slots[0]:
        into.extend(slots)
        return
    for slot in slots:
        at = bisect_left(into, slot)
        if at == len(into) or into[at] != slot:
            into.insert(at, slot)
