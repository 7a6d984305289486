"""Group choice: which messages go to which subscriptions in a queue with groups, one by one (Q20, Q25, C70, C71).

Priority comes first, then the turn among the groups, then the place. With a limit of one, only the first message of a
group may go, and only while none of the group is leased or delayed. This keeps the group in order. With a greater
limit several messages are leased at once, and a message that no subscription takes does not hold back others.

`runs_in_turn` does the same for many messages at once, if only the turn, limits and rates decide.

A line of which no message fits rests until it may fit. If many lines must be looked at, a search takes several turns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.decision import Decisions
from lapse.core.queue.delivery.fairness import Turns
from lapse.core.queue.groups.resting_lines import Entry, Line
from lapse.core.queue.groups.waiting_groups import WaitingGroups
from lapse.core.queue.groups.waiting_line import Found
from lapse.core.queue.inquiry.matching import NO, UNKNOWN, YES
from lapse.core.queue.rates.allowance import Allowance
from lapse.core.queue.rates.counted import Of
from lapse.core.queue.segments.segment import AVAILABLE, NOBODY, SIZE, Segment
from lapse.core.queue.subscriptions.subscription import Subscription

LOOKED_AT_ONCE: Final = 500
"""The greatest number of messages that fit no subscription and are looked at in one turn (C60)."""


class _Visit:
    """The examination of one line of waiting messages at this instant.

    Args:
        lines: the waiting groups.
        line: the line.
        hopeless: returns whether to skip a segment, given its index and its number of used slots.
        with_room: the filters of subscriptions with room.
        others: the filters of the other subscriptions.

    Attributes:
        found: the line's first message that was not examined yet; None = no more.
        kept: the first place from which on messages stay in the line: that of a message that was examined, or the
            first one of a skipped segment; None = no message stays.
        filters: the filters that the messages which stay match, or may match.
        waits: whether a message stays for another reason than that no subscription takes it.
        is_barred: whether the found message is behind a barrier.
        blocks: whether the found message, which fits nobody, holds back its group.
        put_off: messages without a group that wait for their rate, by place: until when, ms since the epoch.
        until_ms: when the group's rate permits more, ms since the epoch; None = it does not wait for that.
    """

    __slots__ = (
        "_hopeless",
        "_messages",
        "_others",
        "blocks",
        "filters",
        "found",
        "is_barred",
        "kept",
        "put_off",
        "until_ms",
        "waits",
    )

    def __init__(
        self,
        lines: WaitingGroups,
        line: Line,
        hopeless: Callable[[int, int], bool],
        with_room: frozenset[str],
        others: frozenset[str],
    ) -> None:
        self.kept: int | None = None
        self.filters: set[str] = set()
        self.waits = self.is_barred = self.blocks = False
        self.until_ms: int | None = None
        self.put_off: dict[int, int] = {}
        self._hopeless = hopeless
        self._others = others
        passed, since = lines.passed(line), 0
        if passed is not None and passed.filters.isdisjoint(with_room):
            first = lines.first_place(line)
            if first is not None and first < passed.to:
                self.kept, since = first, passed.to
                self.filters.update(passed.filters)
        self._messages: Iterator[Found] = lines.messages(line, self._skips, since)
        self.found = next(self._messages, None)

    def move_on(self) -> Found | None:
        """Advance to the next message of the line and return it; None if there is none."""
        self.found = found = next(self._messages, None)
        return found

    def _skips(self, index: int, used: int) -> bool:
        """Return whether to skip a segment. Its messages stay in the line, for later subscriptions."""
        skips = self._hopeless(index, used)
        if skips:
            self.filters |= self._others
            if self.kept is None:
                self.kept = index * SIZE
        return skips

    def keep_current(self) -> None:
        """Note that the current message stays in the line."""
        if self.kept is None and self.found is not None:
            self.kept = self.found[0].base + self.found[1]


_Candidate = tuple[_Visit, Segment, int, Sequence[Subscription]]
"""The visit of a line, its next message as segment and slot, and the subscriptions that take it."""


class GroupChooser:
    """Assigns messages of one shard to subscriptions at one instant, within the limits of groups and rates.

    Args:
        decisions: the shard's decisions.
        turns: the order in which subscriptions were served.
        lines: the waiting groups.
        allowance: the number of deliveries that the rates permit.
        deadlines_count_ms: the instant, ms since the epoch; negative = deadlines do not count.
    """

    def __init__(
        self,
        decisions: Decisions,
        turns: Turns,
        lines: WaitingGroups,
        allowance: Allowance,
        deadlines_count_ms: int,
    ) -> None:
        self._state = decisions.state
        self._matching = decisions.matching
        self._limit = decisions.settings.group_limit
        self._turns = turns
        self._lines = lines
        self._allowance = allowance
        self._now_ms = deadlines_count_ms
        barriers = self._state.index.barriers
        self._barrier = barriers[0] if barriers and decisions.settings.traits.barrier is not None else None
        self._given: Counter[int] = Counter()
        self._counted: Counter[Of] = Counter()
        self._filters: frozenset[str] = frozenset()
        self._others: frozenset[str] = frozenset()
        self._looked = 0
        self._visits: dict[Line, _Visit] = {}
        self._blocked: set[int] = set()
        self.again = False
        """Whether delivery must be tried again: once this call's deliveries are counted, or to look at more."""
        self.unknown: list[int] = []
        """Places that must be judged under the filters before any message after them can be assigned."""

    def assign(
        self, subscriptions: Sequence[Subscription], limit: int, now_ms: int
    ) -> list[tuple[Subscription, list[int]]]:
        """Assign at most `limit` messages; return each subscription's places in the order of assignment."""
        if self._allowance.by_group:
            allowance = self._allowance
            for until_ms in self._lines.restore_due(allowance.waited_to_ms(now_ms), allowance.was_written()):
                allowance.note_wait_until(until_ms)
        self._filters = frozenset(one.filter for one in subscriptions if one.space)
        self._others = frozenset(one.filter for one in subscriptions) - self._filters
        self._lines.compete(self._filters | self._others, self._filters, self._barrier, self._now_ms)
        ring = [one for one in subscriptions if one.space]
        outstanding = {one.number: one.outstanding for one in ring}
        shares: dict[int, list[int]] = {one.number: [] for one in ring}
        if self._matching.active and self._match_nothing():
            return []
        open_ones, alone = ring, len(ring) == 1
        lines, dealt = self._lines, 0
        by_rate = self._allowance.by_group
        while dealt < limit and open_ones and (entry := self._next_entry()) is not None:
            found = self._candidate(entry, open_ones, now_ms)
            if self.unknown:
                break
            if found is None:
                continue
            visit, segment, slot, fitting = found
            line, place = (entry[0], entry[3]), segment.base + slot
            chosen = ring[0] if alone else self._turns.pick(fitting, outstanding, self._last_holder(segment, slot))
            shares[chosen.number].append(place)
            outstanding[chosen.number] += 1
            if outstanding[chosen.number] >= chosen.max_backlog:
                open_ones = [one for one in open_ones if one is not chosen]
                lines.narrow({one.filter for one in open_ones})
            dealt += 1
            self._given[line[1]] += 1
            if by_rate:
                self._counted[_rate_key(line[1], place)] += 1
            following = visit.move_on()
            lines.serve(entry, place + 1 if following is None else following[0].base + following[1])
        if alone and dealt:
            self._turns.pick(ring, outstanding)
        for line, visit in self._visits.items():
            if visit.put_off:
                lines.put_off(line, visit.put_off)
            if visit.kept is not None:
                self._put_back(line, visit, visit.kept)
        return [(one, shares[one.number]) for one in ring if shares[one.number]]

    def _next_entry(self) -> Entry | None:
        """Return the next entry; None if there is none, or so many were looked at that others must have a turn."""
        if self._looked >= LOOKED_AT_ONCE:
            self.again = True
            return None
        return self._lines.pop_first()

    def _put_back(self, line: Line, visit: _Visit, kept: int) -> None:
        """Put a line back of which messages stay from place `kept` on. It rests if none of them fits."""
        lines, place = self._lines, None if visit.found is None else visit.found[0].base + visit.found[1]
        if visit.waits:
            lines.enter(line, kept)
        elif place is None:
            lines.rest_whole(line, visit.filters, self._state.next_place)
        elif visit.blocks and visit.found is not None:
            segment, slot = visit.found
            deadline_ms = segment.deadline_of(slot) if self._now_ms >= 0 else NEVER
            lines.rest(line, visit.filters, place, deadline_ms)
        elif visit.is_barred and self._barrier is not None and visit.filters and kept < self._barrier:
            lines.rest_whole(line, visit.filters, place)
        else:
            lines.note_passed(line, visit.filters, place)
            first = kept if visit.filters else place
            if visit.until_ms is not None:
                lines.set_aside.add_until(lines.renew_entry(line, first), visit.until_ms)
            elif visit.is_barred:
                lines.set_aside.add_behind_barrier(lines.renew_entry(line, first))
            else:
                lines.enter(line, first)

    def _candidate(self, entry: Entry, open_ones: Sequence[Subscription], now_ms: int) -> _Candidate | None:
        """Return the next message of an entry's line if it is the next one of all; else None, and move the entry."""
        band, tag, first, group = entry
        line, lines = (band, group), self._lines
        if self._is_full(group) or group in self._blocked or lines.is_held_back(line):
            lines.set_aside.add(entry)
            return None
        visit = self._visits.get(line)
        if visit is None:
            visit = _Visit(lines, line, self._cannot_match, self._filters, self._others)
            self._visits[line] = visit
        fitting = self._move_to_fitting(line, visit, open_ones)
        if visit.found is None and visit.kept is None:
            lines.drop_line(line)
        if visit.found is None or fitting is None:
            return None
        segment, slot = visit.found
        place = segment.base + slot
        if self._allowance.by_group and self._waits_for_rate(entry, visit, place, now_ms):
            return None
        if place != first or lines.turn.start_tag(group) != tag:
            self._looked += visit.kept is None
            lines.enter(line, place)
            return None
        if not fitting:
            self._note_unjudged(segment, slot, open_ones)
            visit.keep_current()
            return None
        return visit, segment, slot, fitting

    def _move_to_fitting(
        self, line: Line, visit: _Visit, open_ones: Sequence[Subscription]
    ) -> Sequence[Subscription] | None:
        """Move a visit to its first message that some subscription takes.

        Messages that fit none can be skipped before it is their turn.

        Returns:
            The subscriptions that take it; empty if it must be judged first, None if there is no such message now.
        """
        while visit.found is not None:
            segment, slot = visit.found
            if not self._has_expired(segment, slot):
                place = segment.base + slot
                if self._barrier is not None and place >= self._barrier:
                    visit.keep_current()
                    visit.is_barred = True
                    return None
                fitting = self._fitting(segment, slot, open_ones)
                if fitting is None or fitting:
                    return fitting or ()
                visit.filters |= self._filters_of(segment, slot)
                if self._limit == 1 and line[1] != OWN_GROUP:
                    self._looked += 1
                    visit.keep_current()
                    visit.blocks = True
                    self._blocked.add(line[1])
                    return None
            self._looked += 1
            visit.keep_current()
            visit.move_on()
            if self._looked >= LOOKED_AT_ONCE:
                return None
        return None

    def _filters_of(self, segment: Segment, slot: int) -> set[str]:
        """Return the filters of all subscriptions that a message matches, or may match."""
        code = self._matching.code
        return {text for text in self._filters | self._others if code(text, segment.index, slot) != NO}

    def _is_full(self, group: int) -> bool:
        """Return whether a group has reached its limit of leased messages."""
        return self._room(group) <= self._given[group]

    def _room(self, group: int) -> int:
        """Return how many more messages of a group its limit lets be leased, before this call's."""
        if group == OWN_GROUP:
            return 1 << 62
        index = self._state.index
        return self._limit - (index.bound_count(group) if self._limit == 1 else index.held_count(group))

    def _waits_for_rate(self, entry: Entry, visit: _Visit, place: int, now_ms: int) -> bool:
        """Return whether a message waits for its group's rate. If so, its line comes up again when the rate permits."""
        of = _rate_key(entry[3], place)
        if self._allowance.group_room(of, now_ms) > self._counted[of]:
            return False
        if entry[3] != OWN_GROUP:
            if self._counted[of]:  # this call's deliveries are counted at its end
                visit.keep_current()
                visit.waits = self.again = True
            elif visit.kept is None:
                self._lines.set_aside.add_until(entry, self._allowance.note_group_wait(of))
            else:
                visit.until_ms = self._allowance.note_group_wait(of)
            return True
        visit.put_off[place] = self._allowance.note_group_wait(of)
        self._looked += 1
        visit.move_on()
        self._lines.enter((entry[0], entry[3]), place + 1)
        return True

    def _has_expired(self, segment: Segment, slot: int) -> bool:
        """Return whether a message's deadline has passed."""
        if self._now_ms < segment.min_deadline_ms or segment.deadline_ms is None:
            return False
        return bool(segment.deadline_ms[slot] <= self._now_ms)

    def _fitting(self, segment: Segment, slot: int, open_ones: Sequence[Subscription]) -> Sequence[Subscription] | None:
        """Return the subscriptions whose filter a message matches; None = it must be judged first."""
        if not self._matching.active:
            return open_ones
        codes = {text: self._matching.code(text, segment.index, slot) for text in {one.filter for one in open_ones}}
        if UNKNOWN in codes.values():
            return None
        return [one for one in open_ones if codes[one.filter] == YES]

    def _note_unjudged(self, segment: Segment, slot: int, open_ones: Sequence[Subscription]) -> None:
        """Note that a message must be judged, and with it the others of its segment."""
        slots = np.flatnonzero(segment.state[: segment.used] == AVAILABLE)
        unjudged = np.zeros(len(slots), bool)
        for text in {one.filter for one in open_ones}:
            unjudged |= self._matching.codes(text, segment.index, slots) == UNKNOWN
        others = (slots[unjudged] + segment.base).tolist()
        self.unknown = [segment.base + slot, *(place for place in others if place != segment.base + slot)]

    def _last_holder(self, segment: Segment, slot: int) -> int:
        """Return the number of an available message's last holder, or `NOBODY` (C49)."""
        if segment.holder is None or segment.index not in self._state.index.came_back:
            return NOBODY
        return int(segment.holder[slot])

    def _match_nothing(self) -> bool:
        """Return whether no message matches any filter, so that the lines need not be looked through (C60)."""
        hopeless = partial(self._matching.matches_none, self._filters)
        return next(self._state.with_available(hopeless), None) is None

    def _cannot_match(self, index: int, used: int) -> bool:
        """Return whether no message of a segment matches any filter, and none holds back its group."""
        return self._limit > 1 and self._matching.matches_none(self._filters, index, used)


def _rate_key(group: int, place: int) -> Of:
    """Return what a delivery is counted under: the message's group, or the message itself without a group (C70)."""
    return (OWN_GROUP, place) if group == OWN_GROUP else (group, -1)
