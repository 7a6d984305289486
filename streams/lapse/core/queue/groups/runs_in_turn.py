"""Runs in turn: the next messages of all groups at once, in the order in which single ones would come (Q25, C71).

A group's next messages have tags that are known beforehand: each is one cost later than the one before. So the messages
of many groups are found segment by segment, and sorted by tag and place together. This needs messages of one priority,
any of which every subscription takes. `group_choice` does everything else.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.narrow_order import argsort_narrow
from lapse.core.queue.groups.group_turn import COST
from lapse.core.queue.groups.turn_columns import TurnColumns
from lapse.core.queue.rates.allowance import Allowance
from lapse.core.queue.segments.segment import AVAILABLE, NOBODY, SIZE, Segment
from lapse.core.queue.state import QueueState

_NONE: Final = np.zeros(0, np.int64)

_FEW_OF: Final = 8
"""If fewer than one in this number of a segment's messages are available, only these are sorted by group."""

_FEW: Final = 16
"""Up to this number of groups, their messages in a segment are looked up group by group."""

_MANY: Final = 32
"""From this number of groups on, it pays to treat them alike when the next segment is chosen."""


class _Group(NamedTuple):
    """The groups that are looked at together, in columns.

    Attributes:
        codes: their codes.
        starts: tag of the next message of each.
        before: a tag that is greater than those of the messages to find.
        until: tag and place of the first message that may be of another group; None = all others come later.
    """

    codes: NDArray[np.intp]
    starts: NDArray[np.int64]
    before: int
    until: tuple[int, int] | None


class _Found(NamedTuple):
    """Messages of groups, in columns.

    Attributes:
        places: their places.
        codes: the codes of their groups.
        ranks: how many messages of the same group come before each.
    """

    places: NDArray[np.int64]
    codes: NDArray[np.intp]
    ranks: NDArray[np.int64]


class _Available(NamedTuple):
    """The available messages of a segment.

    Attributes:
        codes: the codes of the groups of messages.
        which: those that are available.
        groups: the codes of groups with messages that can be delivered and were wanted.
    """

    codes: NDArray[np.intp]
    which: NDArray[np.bool_] | slice
    groups: NDArray[np.intp]

    def hold(self, codes: NDArray[np.intp], scratch: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return which of some groups have available messages in the segment; `scratch` is 0 for each code."""
        scratch[self.groups] = 1
        holds: NDArray[np.bool_] = scratch[codes] > 0
        scratch[self.groups] = 0
        if not holds.all():  # perhaps they have some that cannot be delivered
            every = self.codes[self.which]
            scratch[every] = 1
            holds = scratch[codes] > 0
            scratch[every] = 0
        return holds


class RunsInTurn:
    """Chooses the next messages of all groups at one instant.

    Args:
        state: the shard's state.
        columns: the waiting groups.
        allowance: the number of deliveries that the rates permit.
        now_ms: the instant, ms since the epoch.
        deadlines_count_ms: the same; negative = deadlines do not count.

    Attributes:
        again: whether delivery must be tried again once the deliveries of this call are counted.
    """

    def __init__(
        self, state: QueueState, columns: TurnColumns, allowance: Allowance, now_ms: int, deadlines_count_ms: int
    ) -> None:
        self._state = state
        self._columns = columns
        self._allowance = allowance
        self._now_ms = now_ms
        self._deadlines_count_ms = deadlines_count_ms
        self.again = False
        columns.refresh()
        self._moved: list[NDArray[np.intp]] = []
        """Codes of groups whose `heads` have moved on."""
        self._served: list[NDArray[np.intp]] = []
        """Codes of groups of which messages are given."""
        self._taken: dict[int, NDArray[np.bool_]] = {}
        """By index of a segment, which of its messages were chosen before."""

    def choose(self, limit: int) -> NDArray[np.int64]:
        """Choose at most `limit` messages. Return their places in the order of delivery."""
        chosen: list[NDArray[np.int64]] = []
        while limit and (groups := self._next_groups(limit)) is not None:
            part = self._choose_of(groups, limit)
            chosen.append(part)
            limit -= len(part)
            if limit:
                self._note_taken(part)
        self._clear()
        return chosen[0] if len(chosen) == 1 else np.concatenate(chosen) if chosen else _NONE

    def _clear(self) -> None:
        """Leave the scratch space as it was."""
        columns = self._columns
        for codes in self._moved:
            columns.heads[codes] = columns.first[codes]
        for codes in self._served:
            columns.given[codes] = 0

    def _next_groups(self, limit: int) -> _Group | None:
        """Return the groups of which the next messages are; None if none competes."""
        columns, now = self._columns, self._columns.turn.now
        bound = columns.front.bound
        if bound is not None:
            codes = columns.front.codes[columns.keys[columns.front.codes] < NEVER]
            starts = np.maximum(columns.keys[codes], now)
            before = (starts < bound[0]) | ((starts == bound[0]) & (columns.heads[codes] < bound[1]))
            if np.count_nonzero(before) > limit:
                return self._first_groups(codes[before], starts[before], limit)
        keys = columns.keys[: len(columns.codes)]
        codes = np.flatnonzero(keys < NEVER)
        if not len(codes):
            return None
        starts = np.maximum(keys[codes], now)
        rounds = limit // len(codes)
        columns.front.build(codes, starts, columns.first[codes])
        if not rounds:
            return self._first_groups(codes, starts, limit)
        before_tag = int(starts.min()) + COST * (2 + rounds)  # some groups begin one turn later than the first
        soon = starts < before_tag
        return _Group(codes[soon], starts[soon], before_tag, None)

    def _first_groups(self, codes: NDArray[np.intp], starts: NDArray[np.int64], limit: int) -> _Group:
        """Return those of more than `limit` groups that have the lowest tags, and of equal ones the first segments."""
        first = int(starts.min())
        if np.count_nonzero(starts == first) >= limit:
            last = first
        else:
            last = int(np.partition(starts, limit - 1)[limit - 1])
        earlier, alike = starts < last, starts == last
        wanted = limit - int(np.count_nonzero(earlier))
        segments = self._columns.heads[codes]
        of_alike = segments[alike]
        if wanted >= len(of_alike):
            chosen, until = earlier | alike, None
        else:
            behind = int(np.partition(of_alike, wanted - 1)[wanted - 1]) + 1
            chosen = earlier | (alike & (segments < behind))
            until = (last, behind * SIZE)
        return _Group(codes[chosen], starts[chosen], last + 1, until)

    def _choose_of(self, groups: _Group, limit: int) -> NDArray[np.int64]:
        """Choose the next messages of some groups, and note that they are handed out."""
        codes, starts, before, until = groups
        columns = self._columns
        costs = columns.costs[codes]
        wanted = np.minimum((before - starts + costs - 1) // costs, columns.room(codes) - columns.given[codes])
        np.minimum(wanted, limit, out=wanted)
        if self._allowance.by_group:
            self._bound_by_rate(codes, wanted, limit)
        found = self._find(codes, wanted)
        self._leave_out(codes[(columns.found[codes] == 0) & (columns.keys[codes] < NEVER)])
        columns.found[codes] = 0
        if not len(found.places):
            return _NONE
        columns.scratch[codes] = starts
        tags = columns.scratch[found.codes] + found.ranks * columns.costs[found.codes]
        order = _by_tag(tags, found.places, int(np.gcd.reduce(costs)), limit)
        if until is not None:
            in_turn, places = tags[order], found.places[order]
            order = order[(in_turn < until[0]) | ((in_turn == until[0]) & (places < until[1]))]
        if len(order):
            columns.turn.now = int(tags[order[-1]])
            columns.scratch[codes] = np.arange(len(codes))
            counts = np.bincount(columns.scratch[found.codes[order]], minlength=len(codes))
            self._note_served(codes, starts, costs, counts)
        return found.places[order]

    def _note_served(
        self, codes: NDArray[np.intp], starts: NDArray[np.int64], costs: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Note how many messages of groups are handed out."""
        served = counts > 0
        codes, counts, columns = codes[served], counts[served], self._columns
        ends = columns.ends[codes] = starts[served] + counts * costs[served]
        columns.given[codes] += counts
        self._served.append(codes)
        open_ones = columns.room(codes) > columns.given[codes]
        columns.keys[codes] = np.where(open_ones, ends, NEVER)

    def _leave_out(self, codes: NDArray[np.intp]) -> None:
        """Leave groups out of this call of which nothing can be delivered now."""
        if len(codes):
            self._columns.keys[codes] = NEVER
            self._columns.codes.changed.append(codes.astype(np.int32))

    def _bound_by_rate(self, codes: NDArray[np.intp], wanted: NDArray[np.int64], limit: int) -> None:
        """Lower the numbers of wanted messages to what the rate of groups permits."""
        columns, allowance = self._columns, self._allowance
        hashes, given = columns.codes.hashes[codes].tolist(), columns.given[codes].tolist()
        for at, permitted in allowance.group_rooms(hashes, self._now_ms, limit + max(given)):
            before = given[at]
            if permitted > before:
                wanted[at] = min(int(wanted[at]), permitted - before)
                continue
            wanted[at], code = 0, codes[at : at + 1]
            if before:  # this call's deliveries are counted at its end
                self.again = True
            else:
                columns.waits_ms[code] = allowance.note_group_wait((hashes[at], -1))
            self._leave_out(code)

    # Messages

    def _find(self, codes: NDArray[np.intp], wanted: NDArray[np.int64]) -> _Found:
        """Find the first messages of groups, segment by segment."""
        columns = self._columns
        columns.left[codes], columns.found[codes] = wanted, 0
        at = columns.first[codes]
        parts: list[_Found] = []
        while True:
            looking = np.flatnonzero((columns.left[codes] > 0) & (at != NOBODY))
            if not len(looking):
                break
            index = int(at[looking].min())
            segment = self._state.look(index)
            here = looking[at[looking] == index]
            available = None if segment is None else self._find_in(segment, codes[here], parts)
            here = here[columns.left[codes[here]] > 0]
            if len(here):
                self._move_on(codes, here, at, available)
        columns.left[codes] = 0
        if len(parts) == 1:
            return parts[0]
        if not parts:
            return _Found(_NONE, np.zeros(0, np.intp), _NONE)
        return _Found(*(np.concatenate(column) for column in zip(*parts, strict=True)))

    def _find_in(self, segment: Segment, wanted: NDArray[np.intp], parts: list[_Found]) -> _Available:
        """Find messages in one segment, of the groups that may have some there, given by their codes.

        Return all of these groups that are available there, deliverable or not.
        """
        columns = self._columns
        if segment.available * _FEW_OF < segment.used:
            slots = np.flatnonzero(segment.state[: segment.used] == AVAILABLE)
            codes = columns.codes.of(segment, slots).astype(np.intp)
            order = argsort_narrow(codes)
            codes, slots = codes[order], slots[order]
            which: NDArray[np.bool_] | slice = slice(None)
            free = columns.left[codes] > 0
        else:
            codes, slots = columns.codes.sorted(segment)
            columns.fit()
            if len(wanted) <= _FEW:
                edges = np.searchsorted(codes, [(code, code + 1) for code in sorted(wanted.tolist())]).tolist()
                of_these = np.concatenate([np.arange(first, stop) for first, stop in edges])
                codes, slots = codes[of_these], slots[of_these]
            which = there = segment.state[slots] == AVAILABLE
            free = there & (columns.left[codes] > 0)
        if segment.deadline_ms is not None and segment.min_deadline_ms <= self._deadlines_count_ms:
            free &= segment.deadline_ms[slots] > self._deadlines_count_ms
        taken = self._taken.get(segment.index)
        if taken is not None:
            free &= ~taken[slots]
        at = np.flatnonzero(free)
        groups = self._find_first(segment, codes[at], slots[at], parts) if len(at) else at
        return _Available(codes, which, groups)

    def _find_first(
        self, segment: Segment, codes: NDArray[np.intp], slots: NDArray[np.intp], parts: list[_Found]
    ) -> NDArray[np.intp]:
        """Find the first messages of each group, as many as are wanted, among some that are sorted by group.

        Return the codes of the groups.
        """
        begins = np.concatenate(([0], np.flatnonzero(codes[1:] != codes[:-1]) + 1))
        counts = np.diff(begins, append=len(codes))
        groups = codes[begins]
        columns = self._columns
        left, found = columns.left[groups], columns.found[groups]
        first = np.flatnonzero(np.arange(len(codes)) < np.repeat(begins + left, counts))
        np.minimum(counts, left, out=counts)
        ranks = first - np.repeat(begins - found, counts)
        parts.append(_Found(slots[first] + segment.base, codes[first], ranks))
        moved = groups[found == 0]
        columns.heads[moved] = segment.index
        self._moved.append(moved)
        columns.found[groups] = found + counts
        columns.left[groups] = left - counts
        return groups

    def _move_on(
        self, codes: NDArray[np.intp], here: NDArray[np.intp], at: NDArray[np.int64], available: _Available | None
    ) -> None:
        """Go on to the next segments of groups of which more is wanted than one segment holds.

        Args:
            codes: the codes of all groups.
            here: the indexes of these groups.
            at: for all groups, the index of the segment; written.
            available: the messages in the segment that are available; None = it was dropped.
        """
        columns, index = self._columns, int(at[here[0]])
        these = codes[here]
        empty, are_dense = columns.first[these] == index, False
        if available is not None:
            holds = available.hold(these, columns.seen)
            empty &= ~holds
            are_dense = len(these) >= _MANY and 2 * int(np.count_nonzero(holds)) >= len(these)
        for one, code in zip(here[empty].tolist(), these[empty].tolist(), strict=True):
            at[one] = columns.leave_first(code)
        here = here[~empty]
        if are_dense:  # then most of them have messages in the next segment, too
            at[here] = np.where(columns.last[codes[here]] > index, index + 1, NOBODY)
            return
        for one, code in zip(here.tolist(), codes[here].tolist(), strict=True):
            at[one] = columns.next_behind(code, index)

    def _note_taken(self, places: NDArray[np.int64]) -> None:
        """Note that messages are chosen, so that they are not found again."""
        indexes = places // SIZE
        for index in np.unique(indexes).tolist():
            taken = self._taken.get(index)
            if taken is None:
                taken = self._taken[index] = np.zeros(SIZE, np.bool_)
            taken[places[indexes == index] - index * SIZE] = True


def _by_tag(tags: NDArray[np.int64], places: NDArray[np.int64], unit: int, most: int) -> NDArray[np.intp]:
    """Return the indexes of the first `most` messages by tag, then place. Most tags are multiples of `unit` apart."""
    order = argsort_narrow(places)
    after = tags[order] - int(tags.min())
    if not (after % unit).any():
        after //= unit  # these are small numbers, unless weights have no common divisor
    return order[argsort_narrow(after)][:most]
