"""Runs in turn: whole runs of messages of each group at once, in the order in which single ones would come (Q25, C71).

A group's next messages have tags that are known beforehand: each is one cost later than the one before. So the messages
of many groups are sorted by tag and place together, and each group is looked at once for many messages. This needs
messages of one priority, any of which every subscription takes. `group_choice` does everything else.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from itertools import accumulate
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.groups.group_turn import COST
from lapse.core.queue.groups.resting_lines import Entry
from lapse.core.queue.groups.waiting_groups import WaitingGroups
from lapse.core.queue.rates.allowance import Allowance
from lapse.core.queue.segments.segment import AVAILABLE, SIZE
from lapse.core.queue.state import QueueState

_NONE: Final = np.zeros(0, np.int64)


class _Run(NamedTuple):
    """The next messages of a group that may go by their tags, the group's limit and its rate."""

    entry: Entry
    start: int
    """Tag of the first message."""

    cost: int
    room: int
    places: list[int]


class RunsInTurn:
    """Chooses the next messages of all groups at one instant.

    Args:
        state: the shard's state.
        lines: the waiting groups, without priorities.
        allowance: the number of deliveries that the rates permit.
        room: returns how many more messages of a group its limit lets be leased.
        now_ms: the instant, ms since the epoch.
        deadlines_count_ms: the same; negative = deadlines do not count.
    """

    def __init__(
        self,
        state: QueueState,
        lines: WaitingGroups,
        allowance: Allowance,
        room: Callable[[int], int],
        now_ms: int,
        deadlines_count_ms: int,
    ) -> None:
        self._state = state
        self._lines = lines
        self._allowance = allowance
        self._room = room
        self._now_ms = now_ms
        self._deadlines_count_ms = deadlines_count_ms
        self._given: Counter[int] = Counter()
        self._waiting: list[Entry] = []
        self.again = False
        """Whether delivery must be tried again once the deliveries of this call are counted."""

    def choose(self, limit: int) -> tuple[NDArray[np.int64], bool]:
        """Choose at most `limit` messages.

        Returns:
            Their places in the order of delivery, and whether a message's deadline has passed, so that the others must
            be chosen one by one.
        """
        chosen: list[NDArray[np.int64]] = [_NONE]
        late = False
        while limit and not late and (first := self._lines.pop_first()) is not None:
            part = self._choose_part(first, limit)
            late = part is None
            if part is not None:
                chosen.append(part)
                limit -= len(part)
        self._lines.put_back(self._waiting)
        return np.concatenate(chosen), late

    def _choose_part(self, first: Entry, limit: int) -> NDArray[np.int64] | None:
        """Choose the messages up to a tag that about `limit` messages have; None if a message is late."""
        lines = self._lines
        rounds = 1 + limit // (1 + lines.competing)
        before = lines.turn.start_tag(first[3]) + COST * rounds
        runs: list[_Run] = []
        entry: Entry | None = first
        found, enough = 0, limit if rounds == 1 else NEVER
        while entry is not None:
            run = self._find_run(entry, before, limit)
            if run is not None:
                runs.append(run)
                found += len(run.places)
            entry = lines.pop_before(before) if found < enough else None
        until = lines.first_key() if found >= enough else None
        while runs:
            places = np.array([place for run in runs for place in run.places], np.int64)
            there = self._find_available(places)
            if there is None:
                lines.put_back(run.entry for run in runs)
                return None
            if there.all():
                return self._serve(runs, places, limit, until)
            gone = set(places[~there].tolist())
            runs = [again for run in runs if (again := self._find_run_again(run, gone, before, limit)) is not None]
        return _NONE

    def _find_run(self, entry: Entry, before: int, limit: int) -> _Run | None:
        """Return a removed entry's messages with tags below `before`, at most `limit`; None if none may go now."""
        group, lines, given = entry[3], self._lines, self._given
        start, cost = lines.turn.start_tag(group), lines.turn.cost(group)
        room = self._room(group)
        if given:
            room -= given[group]
        if room <= 0:
            lines.set_aside.add(entry)
            return None
        if self._allowance.by_group:
            permitted = self._allowance.group_room((group, -1), self._now_ms, limit + given[group]) - given[group]
            if permitted <= 0:
                self._wait_for_rate(entry)
                return None
            limit = min(limit, permitted)
        count = min(limit, room, -((start - before) // cost))
        if count <= 0:
            lines.enter((0, group), entry[2])
            return None
        places = lines.first_places((0, group), count)
        if not places:
            lines.drop_line((0, group))
            return None
        return _Run(entry, start, cost, room, places)

    def _find_run_again(self, run: _Run, gone: set[int], before: int, limit: int) -> _Run | None:
        """Return a run anew if messages of it have left."""
        if gone.isdisjoint(run.places):
            return run
        self._lines.forget_departed((0, run.entry[3]))
        return self._find_run(run.entry, before, limit)

    def _wait_for_rate(self, entry: Entry) -> None:
        if self._given[entry[3]]:  # this call's deliveries are counted at its end
            self._waiting.append(entry)
            self.again = True
        else:
            self._lines.set_aside.add_until(entry, self._allowance.note_group_wait((entry[3], -1)))

    def _find_available(self, places: NDArray[np.int64]) -> NDArray[np.bool_] | None:
        """Return which messages are available; None if the deadline of one has passed."""
        there = np.zeros(len(places), bool)
        indexes = places // SIZE
        low, high = int(indexes.min()), int(indexes.max())
        for index in range(low, high + 1) if high - low < len(places) else np.unique(indexes).tolist():
            segment = self._state.look(index)
            mine = indexes == index if high > low else slice(None)
            slots = places[mine] - index * SIZE
            if segment is None or not len(slots):
                continue
            there[mine] = segment.state[slots] == AVAILABLE
            if segment.deadline_ms is not None and segment.min_deadline_ms <= self._deadlines_count_ms:
                late = segment.deadline_ms[slots] <= self._deadlines_count_ms
                if (late & there[mine]).any():
                    return None
        return there

    def _serve(
        self, runs: list[_Run], places: NDArray[np.int64], limit: int, until: tuple[int, int] | None
    ) -> NDArray[np.int64]:
        """Note which messages are handed out, and return their places in the order of their tags.

        Args:
            runs: the runs.
            places: the places of all runs.
            limit: the greatest number of messages.
            until: tag and place of the first message that no run holds; None = it comes after all of these.
        """
        lines = self._lines
        base = min(run.start for run in runs)
        counts = [len(run.places) for run in runs]
        firsts = np.array([run.start - base for run in runs], np.int64)
        costs = np.array([run.cost for run in runs], np.int64)
        begins = np.array([0, *accumulate(counts[:-1])], np.int64)
        of = np.repeat(np.arange(len(runs)), counts)
        tags = firsts[of] + (np.arange(len(places)) - begins[of]) * costs[of]
        order = np.lexsort((places, tags))[:limit]
        if until is not None:
            tag, place = until[0] - base, until[1]
            order = order[(tags[order] < tag) | ((tags[order] == tag) & (places[order] < place))]
        served = np.bincount(of[order], minlength=len(runs)).tolist()
        if len(order):
            lines.turn.now = base + int(tags[order[-1]])
        for run, count in zip(runs, served, strict=True):
            group = run.entry[3]
            if not count:
                lines.enter((0, group), run.places[0])
                continue
            if group != OWN_GROUP or self._allowance.by_group:
                self._given[group] += count
            lines.turn.note_end(group, run.start + count * run.cost)
            lines.serve_first(run.entry, count, full=count == run.room)
        return places[order]
