"""Group choice: which messages go to which subscriptions where groups share them (Q20, Q25, C70, C71).

Priority comes first, then the turn among the groups, then the place. With a limit of one a group's first message is
the only one that may go, and only while none of the group is leased or delayed; so its order is kept. With a greater
limit so many go at once, and what nobody takes holds no other message back.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence

import numpy as np

from lapse.core.queue.fairness import Turns
from lapse.core.queue.matching import UNKNOWN, YES, Matching
from lapse.core.queue.segment import AVAILABLE, NOBODY, Segment
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.state import QueueState
from lapse.core.queue.subscription import Subscription
from lapse.core.queue.trait import OWN_GROUP
from lapse.core.queue.waiting_groups import Found, Line, WaitingGroups


class _Visit:
    """A line while messages are dealt out.

    Attributes:
        found: its first message that was not looked at; None = there is none.
        kept: place of the first one that was looked at and stays; None = there is none.
    """

    __slots__ = ("_messages", "found", "kept")

    def __init__(self, messages: Iterator[Found]) -> None:
        self._messages = messages
        self.kept: int | None = None
        self.found = next(messages, None)

    def go_on(self) -> None:
        """Look at the next one."""
        self.found = next(self._messages, None)

    def keep(self) -> None:
        """Note that a message stays."""
        if self.kept is None and self.found is not None:
            self.kept = self.found[0].base + self.found[1]


class GroupChooser:
    """Deals out messages of one shard at one instant, as far as groups let it.

    Args:
        state: the shard's.
        matching: what is known under the filters.
        settings: the queue's.
        turns: which subscription was served when.
        lines: which groups wait.
        now_ms: the instant; negative = deadlines do not count.
    """

    def __init__(
        self,
        state: QueueState,
        matching: Matching,
        settings: QueueSettings,
        turns: Turns,
        lines: WaitingGroups,
        now_ms: int,
    ) -> None:
        self._state = state
        self._matching = matching
        self._limit = settings.group_limit
        self._turns = turns
        self._lines = lines
        self._now_ms = now_ms
        barriers = state.index.barriers
        self._barrier = barriers[0] if barriers and settings.traits.barrier is not None else None
        self._given: Counter[int] = Counter()
        self._filters: set[str] = set()
        self.unknown: list[int] = []
        """Places that have to be judged under the filters before anything behind them can be dealt out."""

    def deal(self, subscriptions: Sequence[Subscription], limit: int) -> list[tuple[Subscription, list[int]]]:
        """Deal out at most `limit` messages; each share in the order in which it was dealt out."""
        ring = [one for one in subscriptions if one.space]
        outstanding = {one.number: one.outstanding for one in ring}
        shares: dict[int, list[int]] = {one.number: [] for one in ring}
        self._filters = {one.filter for one in ring}
        open_ones, alone = ring, len(ring) == 1
        visits: dict[Line, _Visit] = {}
        blocked: set[int] = set()
        lines, dealt = self._lines, 0
        while dealt < limit and open_ones and (entry := lines.first()) is not None:
            line, group = (entry[0], entry[3]), entry[3]
            if self._is_full(group):
                lines.set_aside(entry)
                continue
            visit = visits.get(line)
            if visit is None:
                visit = visits[line] = _Visit(lines.messages(line, self._hopeless))
            self._pass_late(visit)
            if visit.found is None:
                if visit.kept is None:
                    lines.forget(line)
                continue
            segment, slot = visit.found
            place = segment.base + slot
            if group in blocked or (self._barrier is not None and place >= self._barrier):
                visit.keep()
                continue
            if place != entry[2] or lines.turn.start(group) != entry[1]:
                lines.enter(line, place)
                continue
            fitting = self._fitting(segment, slot, open_ones)
            if fitting is None:
                visit.keep()
                break
            if not fitting:
                visit.keep()
                if self._limit == 1 and group != OWN_GROUP:
                    blocked.add(group)
                else:
                    visit.go_on()
                    lines.enter(line, place + 1)
                continue
            last = NOBODY if alone else self._last_holder(segment, slot)
            chosen = self._turns.pick(fitting, outstanding, last)
            shares[chosen.number].append(place)
            outstanding[chosen.number] += 1
            if outstanding[chosen.number] >= chosen.max_backlog:
                open_ones = [one for one in open_ones if one is not chosen]
            dealt += 1
            self._given[group] += 1
            lines.turn.serve(group)
            visit.go_on()
            lines.enter(line, place + 1)
        for line, visit in visits.items():
            if visit.kept is not None:
                lines.enter(line, visit.kept)
        return [(one, shares[one.number]) for one in ring if shares[one.number]]

    def _is_full(self, group: int) -> bool:
        """Whether as many messages of a group are leased as may be."""
        if group == OWN_GROUP:
            return False
        index = self._state.index
        leased = index.bound(group) if self._limit == 1 else index.held(group)
        return leased + self._given[group] >= self._limit

    def _pass_late(self, visit: _Visit) -> None:
        """Pass over messages whose deadline has passed."""
        while visit.found is not None:
            segment, slot = visit.found
            if self._now_ms < segment.min_deadline_ms or segment.deadline_ms is None:
                return
            if segment.deadline_ms[slot] > self._now_ms:
                return
            visit.keep()
            visit.go_on()

    def _fitting(self, segment: Segment, slot: int, open_ones: Sequence[Subscription]) -> Sequence[Subscription] | None:
        """Which subscriptions take a message; None = that has to be judged first."""
        if not self._matching.active:
            return open_ones
        codes = {text: self._matching.code(text, segment.index, slot) for text in {one.filter for one in open_ones}}
        if UNKNOWN not in codes.values():
            return [one for one in open_ones if codes[one.filter] == YES]
        slots = np.flatnonzero(segment.state[: segment.used] == AVAILABLE)
        unjudged = np.zeros(len(slots), bool)
        for text in codes:
            unjudged |= self._matching.codes(text, segment.index, slots) == UNKNOWN
        others = (slots[unjudged] + segment.base).tolist()
        self.unknown = [segment.base + slot, *(place for place in others if place != segment.base + slot)]
        return None

    def _last_holder(self, segment: Segment, slot: int) -> int:
        """Who held an available message last (C49)."""
        if segment.holder is None or segment.index not in self._state.index.came_back:
            return NOBODY
        return int(segment.holder[slot])

    def _hopeless(self, index: int, used: int) -> bool:
        """Whether a segment has nothing for anyone, and nothing that holds its group back."""
        return self._limit > 1 and self._matching.hopeless(self._filters, index, used)
