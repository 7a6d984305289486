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
from lapse.core.queue.groups.search_ahead import SearchAhead
from lapse.core.queue.groups.turn_columns import TurnColumns
from lapse.core.queue.rates.allowance import Allowance
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.state import QueueState

_NONE: Final = np.zeros(0, np.int64)

SEGMENTS_AT_ONCE: Final = 256
"""The greatest number of segments of which messages are handed out in one turn (C60)."""


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
        self._search = SearchAhead(state, columns, deadlines_count_ms)
        self._is_cut = False
        self._asked: list[NDArray[np.intp]] = []
        """Codes of groups whose `heads` may have moved on, and of which messages may be given."""

    def choose(self, limit: int) -> NDArray[np.int64]:
        """Choose at most `limit` messages. Return their places in the order of delivery."""
        chosen: list[NDArray[np.int64]] = []
        while limit and (groups := self._next_groups(limit)) is not None:
            part = self._choose_of(groups, limit)
            if part is None:
                self.again = True
                break
            chosen.append(part)
            limit = 0 if self._is_cut else limit - len(part)
        self._clear()
        self._columns.ahead.expected = sum(map(len, chosen))
        return chosen[0] if len(chosen) == 1 else np.concatenate(chosen) if chosen else _NONE

    def _clear(self) -> None:
        """Leave the scratch space as it was."""
        columns = self._columns
        for codes in self._asked:
            columns.heads[codes] = columns.first[codes]
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

    def _choose_of(self, groups: _Group, limit: int) -> NDArray[np.int64] | None:
        """Choose the next messages of some groups, and note that they are handed out.

        The result is None if messages must be searched for in another turn first.
        """
        codes, starts, before, until = groups
        columns = self._columns
        self._asked.append(codes)
        costs = columns.costs[codes]
        wanted = np.minimum((before - starts + costs - 1) // costs, columns.room(codes) - columns.given[codes])
        np.minimum(wanted, limit, out=wanted)
        if self._allowance.by_group:
            self._bound_by_rate(codes, wanted, limit)
        found = self._search.find(codes, wanted)
        if found is None:
            return None
        self._leave_out(codes[(found.counts == 0) & (columns.keys[codes] < NEVER)])
        if not len(found.places):
            return _NONE
        base = int(starts.min())
        unit = int(np.gcd.reduce(np.concatenate((costs, starts - base))))  # so that tags are small numbers
        tags = _tags((starts - base) // unit, costs // unit, found.counts)
        order = _by_tag(tags, found.places, limit)
        if until is not None:
            in_turn, places = tags[order] * unit + base, found.places[order]
            order = order[(in_turn < until[0]) | ((in_turn == until[0]) & (places < until[1]))]
        order = self._cut(order, found.places)
        if len(order):
            columns.turn.now = int(tags[order[-1]]) * unit + base
            counts = np.bincount(found.of[order], minlength=len(codes))
            columns.ahead.begin[codes] += counts
            self._note_served(codes, starts, costs, counts)
        return found.places[order]

    def _cut(self, order: NDArray[np.intp], places: NDArray[np.int64]) -> NDArray[np.intp]:
        """Return the first messages of an order, those of at most `SEGMENTS_AT_ONCE` segments. Others come next."""
        segments = places[order] // SIZE
        if not len(order) or int(segments.max()) - int(segments.min()) < SEGMENTS_AT_ONCE:
            return order
        firsts = np.unique(segments, return_index=True)[1]
        if len(firsts) <= SEGMENTS_AT_ONCE:
            return order
        self._is_cut = self.again = True
        return order[: int(np.partition(firsts, SEGMENTS_AT_ONCE)[SEGMENTS_AT_ONCE])]

    def _note_served(
        self, codes: NDArray[np.intp], starts: NDArray[np.int64], costs: NDArray[np.int64], counts: NDArray[np.int64]
    ) -> None:
        """Note how many messages of groups are handed out."""
        served = counts > 0
        codes, counts, columns = codes[served], counts[served], self._columns
        ends = columns.ends[codes] = starts[served] + counts * costs[served]
        columns.given[codes] += counts
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


def _tags(starts: NDArray[np.int64], costs: NDArray[np.int64], counts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the tags of the messages of each group: the group's start, then each time its cost more."""
    before = counts.cumsum() - counts
    every: NDArray[np.int64] = np.repeat(starts - before * costs, counts)
    every += np.arange(len(every)) * np.repeat(costs, counts)
    return every


def _by_tag(tags: NDArray[np.int64], places: NDArray[np.int64], most: int) -> NDArray[np.intp]:
    """Return the indexes of the first `most` messages by tag, then place."""
    order = argsort_narrow(places)
    return order[argsort_narrow(tags[order])][:most]
