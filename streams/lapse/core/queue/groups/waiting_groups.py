"""Waiting groups in the order of their turn, with the places of their messages (Q20, Q25, C71).

A line holds a group's messages of one priority. Each line has one entry in a heap: priority, tag of the group's turn,
and place of the line's first message. An entry may be too early, and is corrected when it comes up. Tags only grow,
and so does the first place, unless a message returns, which makes a new entry. So nothing is scanned, and a tenant's
large backlog costs the others nothing.

Lines are derived from the segments when they are first needed, some segments at a time. A line knows the places of
its messages in its first segments, and the later segments that hold some. A line of which no message fits a
subscription rests (see `resting_lines`).
"""

from __future__ import annotations

import heapq
from bisect import bisect_left
from collections.abc import Callable, Iterable, Iterator, Set
from itertools import groupby
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.groups.available_messages import AvailableMessages
from lapse.core.queue.groups.entries_set_aside import EntriesSetAside
from lapse.core.queue.groups.group_turn import GroupTurn
from lapse.core.queue.groups.resting_lines import Entry, Line, RestingLines
from lapse.core.queue.groups.slots_by_line import SlotsByLine
from lapse.core.queue.groups.waiting_line import Found, Passed, WaitingLine, available_at, segment_of
from lapse.core.queue.segments.segment import AVAILABLE, SIZE, Segment, Where
from lapse.core.queue.segments.summary import Outline

_LOADED_AT_ONCE: Final = 4_096
"""About how many lines are derived from the segments in one turn (C60)."""

_SLOTS_LIKE_A_LINE: Final = 16
"""Sorting so many slots takes about as long as entering one line."""


class WaitingGroups(AvailableMessages):
    """The lines of a shard.

    Args:
        look: returns a segment for reading; None = it was dropped.
        outline: returns the outline of a segment.
        turn: the turn among the groups.
        ranked: whether the queue has priorities.
        first: index of the first segment from which lines are derived.

    Attributes:
        set_aside: entries that wait for something else than their turn.
    """

    def __init__(
        self,
        look: Callable[[int], Segment | None],
        outline: Callable[[int], Outline],
        turn: GroupTurn,
        ranked: bool,
        first: int,
    ) -> None:
        super().__init__(look, outline, first)
        self.turn = turn
        self._resting = RestingLines(self._is_valid)
        self._filters: Set[str] = frozenset()
        self._any_rests = False
        self._ranked = ranked
        self._blockers: dict[int, Line] = {}
        """By group, the line whose rest holds back those of lower priority. Without priorities there are none."""
        self._slots = SlotsByLine(ranked)
        self._waiting: dict[Line, WaitingLine] = {}
        self._heap: list[Entry] = []
        self.set_aside = EntriesSetAside()

    def all_lines(self) -> list[Line] | None:
        """Return all lines, those of a higher priority first; None until they are loaded."""
        if self._next_load is not None:
            return None
        self.sort_fresh()
        return sorted(self._waiting) if self._ranked else list(self._waiting)

    # Loading

    def load_part(self, last: int) -> bool:
        """Derive some lines from the segments up to index `last`. Return whether all are derived."""
        return self._load(last, _LOADED_AT_ONCE)

    # Changes of messages

    def _enter_available(self, segment: Segment, slots: NDArray[np.intp]) -> int:
        """See `AvailableMessages._enter_available`; the work is a line's, or that of sorting many slots."""
        lines = self._slots.split(segment, slots)
        for line, places in lines.items():
            waiting = self._waiting.get(line)
            if waiting is None:
                waiting = self._waiting[line] = WaitingLine(segment.index, places)
            else:
                waiting.add(segment.index, places)
            if waiting.entry is None or places[0] < waiting.entry[2]:
                self._enter(line, waiting, places[0])
            elif waiting.rests_whole:
                self._enter(line, waiting, waiting.entry[2])
        return len(lines) + len(slots) // _SLOTS_LIKE_A_LINE

    def note_left(self, segment: Segment, where: Where) -> None:
        """Note that messages are not available any more. A line that rested because of one of them competes again."""
        if not self._any_rests:
            return
        for line in self._resting.leave(segment.index, where):
            waiting = self._waiting.get(line)
            if waiting is not None and waiting.entry is not None and waiting.rests:
                self._enter(line, waiting, waiting.entry[2])

    def release_groups(self, groups: Iterable[int]) -> None:
        """Let groups compete again that may have fewer leased messages than before."""
        for group in groups:
            self.put_back(self.set_aside.pop_group(group))

    # The heap

    def pop_first(self) -> Entry | None:
        """Remove and return the first valid entry; None if none is left. Its place may be too early: see `messages`."""
        self.sort_fresh()
        heap = self._heap
        while True:
            entry = self._resting.pop_before(heap[0] if heap else None)
            if entry is None:
                if not heap:
                    return None
                entry = heapq.heappop(heap)
            waiting = self._waiting.get((entry[0], entry[3]))
            if waiting is not None and waiting.entry is entry:
                self._end_rest(waiting)
                return entry

    def put_back(self, entries: Iterable[Entry]) -> None:
        """Put removed entries back, unchanged."""
        for entry in entries:
            heapq.heappush(self._heap, entry)

    def serve(self, entry: Entry, place: int) -> None:
        """Note that the message of an entry is handed out. The line's next message is at or after `place`."""
        band, tag, _, group = entry
        after = (band, self.turn.serve(group, tag), place, group)
        self._waiting[band, group].entry = after
        heapq.heappush(self._heap, after)

    def enter(self, line: Line, place: int) -> None:
        """Put a line into the heap again. Its first message is at or after `place`."""
        self._enter(line, self._waiting[line], place)

    def _enter(self, line: Line, waiting: WaitingLine, place: int) -> None:
        self._end_rest(waiting)
        waiting.entry = entry = (line[0], self.turn.start_tag(line[1]), place, line[1])
        heapq.heappush(self._heap, entry)

    def renew_entry(self, line: Line, place: int) -> Entry:
        """Return a new entry of a line that has none, for `set_aside`. Its first message is at or after `place`."""
        self._waiting[line].entry = entry = (line[0], self.turn.start_tag(line[1]), place, line[1])
        return entry

    def _end_rest(self, waiting: WaitingLine) -> None:
        waiting.rests = waiting.rests_whole = False
        entry = waiting.entry
        if self._blockers and entry is not None and self._blockers.get(entry[3]) == (entry[0], entry[3]):
            del self._blockers[entry[3]]
            self.release_groups((entry[3],))

    def restore_due(self, now_ms: int, written: bool) -> list[int]:
        """Restore entries that are due, or waited until something was `written`. Return what others wait for."""
        self.put_back(self.set_aside.pop_due(now_ms, written))
        for index, places in groupby(self.set_aside.pop_due_places(now_ms, written), key=segment_of):
            segment = self._look(index)
            if segment is not None:
                slots = np.array(list(places), np.intp) - segment.base
                self._enter_available(segment, slots[segment.state[slots] == AVAILABLE])
        return self.set_aside.instants_ms()

    def put_off(self, line: Line, waits_ms: dict[int, int]) -> None:
        """Take messages without a group out of their line until an instant each (ms since the epoch), by place."""
        for place, until_ms in waits_ms.items():
            self.set_aside.add_place(place, until_ms)
        waiting = self._waiting.get(line)
        if waiting is not None:
            while waiting.segments and waiting.loaded_to < max(waits_ms) // SIZE:
                self._load_next(line, waiting)
            waiting.head = [place for place in waiting.head if place not in waits_ms]

    def drop_line(self, line: Line) -> None:
        """Remove an empty line."""
        del self._waiting[line]

    # Rest

    def compete(self, filters: Set[str], with_room: Set[str], barrier: int | None, now_ms: int) -> None:
        """Begin a search: let the lines compete that may fit now.

        Args:
            filters: the filters of all subscriptions.
            with_room: those of subscriptions with room.
            barrier: place of the first barrier; None = there is none.
            now_ms: the instant, ms since the epoch; negative = deadlines do not count.
        """
        self.sort_fresh()
        behind = self.set_aside.pop_behind_barrier(barrier)
        if behind is not None:
            self.put_back(behind)
            self.end_rests()  # messages of lines at rest may have been behind the barrier
        if not filters <= self._filters:
            self._look_at_all_again()
        self._filters = filters
        if self._any_rests:
            for entry in self._resting.pop_expired(now_ms):
                self.enter((entry[0], entry[3]), entry[2])
            self._resting.compete(with_room)

    def narrow(self, with_room: Set[str]) -> None:
        """Note that only subscriptions with these filters still have room."""
        if self._any_rests:
            self._resting.compete(with_room)

    def end_rests(self) -> None:
        """Let all lines compete."""
        if not self._any_rests:
            return
        self._any_rests = False
        self._resting.clear()
        groups = list(self._blockers)
        self._blockers.clear()
        self.release_groups(groups)
        for waiting in self._waiting.values():
            if waiting.rests and waiting.entry is not None:
                waiting.rests = waiting.rests_whole = False
                self._heap.append(waiting.entry)
        heapq.heapify(self._heap)

    def _look_at_all_again(self) -> None:
        """Look at all messages again, since there is a filter that was not tried on some."""
        self.end_rests()
        for line, waiting in self._waiting.items():
            if waiting.passed is not None:
                waiting.passed = None
                first = waiting.first_known()
                if waiting.entry is not None and first < waiting.entry[2]:
                    self._enter(line, waiting, first)

    def rest(self, line: Line, filters: Set[str], place: int, deadline_ms: int) -> None:
        """Let a line rest behind its first message, which holds back its group.

        Args:
            line: the line, without an entry.
            filters: the filters that this message matches, or may match.
            place: its place.
            deadline_ms: its deadline, ms since the epoch; `NEVER` if deadlines do not count.
        """
        if self._ranked:
            known = self._blockers.get(line[1])
            if known is not None and known in self._waiting:
                self._enter(known, self._waiting[known], self._waiting[known].first_known())
            self._blockers[line[1]] = line
        self._rest(line, self._waiting[line], filters, place, place, deadline_ms)

    def is_held_back(self, line: Line) -> bool:
        """Return whether a line of the same group and a higher priority rests behind its first message."""
        blocker = self._blockers.get(line[1]) if self._blockers else None
        return blocker is not None and blocker < line

    def rest_whole(self, line: Line, filters: Set[str], to: int) -> None:
        """Let a line without an entry rest of which no message before place `to` fits, and no other one may go.

        `filters` are those that its messages match, or may match.
        """
        waiting = self._waiting[line]
        places = self._first_places(line, waiting)
        if not places:
            self.drop_line(line)
            return
        waiting.passed = Passed(to, filters)
        self._rest(line, waiting, filters, places[0], places[0], NEVER)
        waiting.rests_whole = True

    def _rest(
        self, line: Line, waiting: WaitingLine, filters: Set[str], first: int, place: int, deadline_ms: int
    ) -> None:
        waiting.entry = entry = (line[0], self.turn.start_tag(line[1]), first, line[1])
        waiting.rests = self._any_rests = True
        self._resting.add(entry, filters, place, deadline_ms, len(self._waiting))

    def _is_valid(self, entry: Entry) -> bool:
        waiting = self._waiting.get((entry[0], entry[3]))
        return waiting is not None and waiting.entry is entry

    def note_passed(self, line: Line, filters: Set[str], to: int) -> None:
        """Note that no message of a line before place `to` fits; see `Passed`."""
        self._waiting[line].passed = Passed(to, filters)

    def passed(self, line: Line) -> Passed | None:
        """Return the first messages of a line that do not fit if they match no filter with room; None = not known."""
        return self._waiting[line].passed

    # Messages

    def messages(self, line: Line, hopeless: Callable[[int, int], bool], since: int = 0) -> Iterator[Found]:
        """Yield the available messages of a line by place. The shard must not change meanwhile.

        Args:
            line: the line.
            hopeless: returns whether to skip a segment, given its index and its number of used slots.
            since: the first place to look at.
        """
        waiting = self._waiting[line]
        known = self._first_places(line, waiting)
        for index, places in groupby(known[bisect_left(known, since) :] if since else known, key=segment_of):
            segment = self._look(index)
            if segment is not None:
                yield from available_at(segment, [place - segment.base for place in places])
        for index in waiting.segments:
            segment = self._look(index) if (index + 1) * SIZE > since else None
            if segment is not None and segment.available and not hopeless(index, segment.used):
                of_line = self._slots.find(segment, line)
                yield from available_at(segment, [place - segment.base for place in of_line if place >= since])

    def first_place(self, line: Line) -> int | None:
        """Return the place of the first available message of a line; None if there is none."""
        places = self._first_places(line, self._waiting[line])
        return places[0] if places else None

    def _first_places(self, line: Line, waiting: WaitingLine) -> list[int]:
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

    def _load_next(self, line: Line, waiting: WaitingLine) -> None:
        """Add the places of the line in its next segment."""
        waiting.loaded_to = waiting.segments.pop(0)
        segment = self._look(waiting.loaded_to)
        if segment is not None:
            waiting.head += self._slots.find(segment, line)
