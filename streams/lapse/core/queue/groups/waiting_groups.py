"""Waiting groups in the order of their turn, with the places of their messages (Q20, Q25, C71).

A line holds a group's messages of one priority. Each line has one entry in a heap: priority, tag of the group's turn,
and place of the line's first message. An entry may be too early, and is corrected when it comes up. Tags only grow,
and so does the first place, unless a message returns, which makes a new entry. So nothing is scanned, and a tenant's
large backlog costs the others nothing.

Lines are derived from the segments when they are first needed. A line knows the places of its messages in its first
segments, and the later segments that hold some.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator
from itertools import groupby, pairwise

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.arrival.trait import OWN_GROUP, Flag
from lapse.core.queue.groups.group_turn import GroupTurn
from lapse.core.queue.groups.slots_by_group import SlotsByGroup
from lapse.core.queue.segments.segment import AVAILABLE, NOBODY, SIZE, Segment

Line = tuple[int, int]
"""Band and hash of the group. A band is a priority: the lowest number comes first, and 0 is the last."""

Entry = tuple[int, int, int, int]
"""Band, tag, place and hash of the group. Entries sort in this order."""

_NONE = np.zeros(0, np.int64)

Found = tuple[Segment, int]
"""A message as its segment and slot."""


class _Waiting:
    """The waiting messages of a line.

    Attributes:
        head: places of messages that wait or have left meanwhile, ascending, in segments up to `loaded_to`.
        loaded_to: index of the last segment whose places are in `head`.
        segments: indexes of later segments that may hold some, ascending.
        entry: the line's valid entry in the heap.
    """

    __slots__ = ("entry", "head", "loaded_to", "segments")

    def __init__(self, segment: int, head: list[int]) -> None:
        self.head = head
        self.loaded_to = segment
        self.segments: list[int] = []
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
        self._by_group = SlotsByGroup()
        self._waiting: dict[Line, _Waiting] = {}
        self._heap: list[Entry] = []
        self._set_aside: dict[int, list[Entry]] = {}
        self._until: list[tuple[int, Entry]] = []
        self._fresh: list[NDArray[np.intp]] = []
        """Slots that became available and are not sorted yet, all in the segment `_fresh_in`."""
        self._fresh_in = NOBODY

    def __len__(self) -> int:
        self.sort_fresh()
        return len(self._waiting)

    def has_line(self, line: Line) -> bool:
        """Return whether a line may have waiting messages."""
        self.sort_fresh()
        return line in self._waiting

    # Changes of messages

    def add_available(self, segment: Segment, slots: NDArray[np.intp]) -> None:
        """Add messages that have become available, given as ascending slots.

        They are sorted when they are needed: those of many small batches together.
        """
        if segment.index != self._fresh_in:
            self.sort_fresh()
            self._fresh_in = segment.index
        self._fresh.append(slots)

    def sort_fresh(self) -> None:
        """Enter the messages that were added since the last call into their lines."""
        if not self._fresh:
            return
        segment, fresh = self._look(self._fresh_in), self._fresh
        self._fresh, self._fresh_in = [], NOBODY
        if segment is not None:
            self._enter_available(segment, fresh[0] if len(fresh) == 1 else np.unique(np.concatenate(fresh)))

    def _enter_available(self, segment: Segment, slots: NDArray[np.intp]) -> None:
        for line, places in self._lines(segment, slots).items():
            waiting = self._waiting.get(line)
            if waiting is None:
                waiting = self._waiting[line] = _Waiting(segment.index, places)
            elif segment.index <= waiting.loaded_to:
                _merge(waiting.head, places)
            elif segment.index not in waiting.segments[-1:]:
                _add(waiting.segments, segment.index)
            if waiting.entry is None or places[0] < waiting.entry[2]:
                self._enter(line, waiting, places[0])

    def release_groups(self, groups: Iterable[int]) -> None:
        """Let groups compete again that may have fewer leased messages than before."""
        for group in groups:
            for entry in self._set_aside.pop(group, ()):
                heapq.heappush(self._heap, entry)

    def _lines(self, segment: Segment, slots: NDArray[np.intp]) -> dict[Line, list[int]]:
        """Return the places of slots, by line."""
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

    # The heap

    def pop_first(self) -> Entry | None:
        """Remove and return the first valid entry; None if none is left. Its place may be too early: see `messages`."""
        self.sort_fresh()
        while self._heap:
            entry = heapq.heappop(self._heap)
            waiting = self._waiting.get((entry[0], entry[3]))
            if waiting is not None and waiting.entry is entry:
                return entry
        return None

    def pop_before(self, tag: int) -> Entry | None:
        """Remove and return the first valid entry with a lower tag; None if there is none. For queues without ranks."""
        heap = self._heap
        while heap and heap[0][1] < tag:
            entry = heapq.heappop(heap)
            waiting = self._waiting.get((0, entry[3]))
            if waiting is not None and waiting.entry is entry:
                return entry
        return None

    def first_key(self) -> tuple[int, int] | None:
        """Return tag and place of the first entry, which may both be too early; None if there is none."""
        return (self._heap[0][1], self._heap[0][2]) if self._heap else None

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Put removed entries back, unchanged."""
        for entry in entries:
            heapq.heappush(self._heap, entry)

    @property
    def competing(self) -> int:
        """About how many lines compete for the next message."""
        return len(self._heap)

    def serve_first(self, entry: Entry, count: int, full: bool) -> None:
        """Note that the first messages of an entry's line are handed out, whose tags are noted already.

        Args:
            entry: the entry, which was removed.
            count: the number of messages.
            full: whether the group has then reached its limit, so that it waits until it is released.
        """
        line = (entry[0], entry[3])
        waiting = self._waiting[line]
        del waiting.head[:count]
        while not waiting.head and waiting.segments:
            self._load_next(line, waiting)
        if not waiting.head:
            del self._waiting[line]
            return
        waiting.entry = after = (line[0], self.turn.start_tag(line[1]), waiting.head[0], line[1])
        if full:
            self.set_aside(after)
        else:
            heapq.heappush(self._heap, after)

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
        for index, places in groupby(self._first_places(line, waiting), key=_segment_of):
            segment = self._look(index)
            if segment is not None:
                yield from _available(segment, [place - segment.base for place in places])
        for index in waiting.segments:
            segment = self._look(index)
            if segment is not None and segment.available and not hopeless(index, segment.used):
                yield from _available(segment, self._slots(line, segment).tolist())

    def first_places(self, line: Line, most: int) -> list[int]:
        """Return the first places of a line, `most` if it has so many. Messages at some may have left."""
        waiting = self._waiting[line]
        while len(waiting.head) < most and waiting.segments:
            self._load_next(line, waiting)
        return waiting.head[:most]

    def forget_departed(self, line: Line) -> None:
        """Forget all known places of a line whose messages have left, at once: there may be thousands."""
        waiting = self._waiting[line]
        known, waiting.head = waiting.head, []
        for index, some in groupby(known, key=_segment_of):
            segment = self._look(index)
            if segment is not None:
                places = np.array(list(some), np.int64)
                waiting.head += places[segment.state[places - segment.base] == AVAILABLE].tolist()

    def _first_places(self, line: Line, waiting: _Waiting) -> list[int]:
        """Return the places that the line knows, beginning with the first available message."""
        while True:
            gone = 0
            for place in waiting.head:
                segment = self._look(place // SIZE)
                if segment is not None and segment.state[place % SIZE] == AVAILABLE:
                    break
                gone += 1
            del waiting.head[:gone]
            if waiting.head or not waiting.segments:
                return waiting.head
            self._load_next(line, waiting)

    def _load_next(self, line: Line, waiting: _Waiting) -> None:
        """Add the places of the line in its next segment."""
        waiting.loaded_to = waiting.segments.pop(0)
        segment = self._look(waiting.loaded_to)
        if segment is not None:
            waiting.head += (self._slots(line, segment) + segment.base).tolist()

    def _slots(self, line: Line, segment: Segment) -> NDArray[np.int64]:
        """Return the available slots of a line in a segment."""
        band, group = line
        if not self._ranked:
            slots = self._by_group.find(segment, group)
            if segment.available < segment.used:
                slots = slots[segment.state[slots] == AVAILABLE]
            return slots.astype(np.int64)
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


def _segment_of(place: int) -> int:
    return place // SIZE


def _available(segment: Segment, slots: list[int]) -> Iterator[Found]:
    state = segment.state
    for slot in slots:
        if state[slot] == AVAILABLE:
            yield segment, slot


def _add(segments: list[int], index: int) -> None:
    """Add an index to ascending ones, unless it is there."""
    at = bisect_left(segments, index)
    if at == len(segments) or segments[at] != index:
        segments.insert(at, index)


def _merge(into: list[int], places: list[int]) -> None:
    """Merge ascending places into an ascending list, without duplicates."""
    if not into or into[-1] < places[0]:
        into.extend(places)
        return
    for place in places:
        at = bisect_left(into, place)
        if at == len(into) or into[at] != place:
            into.insert(at, place)
