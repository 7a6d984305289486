"""The schedule: when scheduled messages materialise, expire or are withdrawn (L5, C11).

Those that come due beyond the target depth are held: out of sight and in their order, until there is room (C51).
"""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.step import Messages, ShardEvent, Step
from lapse.core.queue.target_depth import UNLIMITED, TargetDepth
from lapse.core.queue.trait import NONE, Traits
from lapse.core.reason import UNCONFIRMED, Reason

_Planned = tuple[int, str, int, int, int]
"""Instant, topic, partition, offset and number of the source."""


class Schedule:
    """Scheduled messages in the order in which something has to happen to them.

    Attributes:
        read_to_ms: what arrived up to this instant is in, ms since the epoch: no place is given for a later one (C76).
    """

    def __init__(self, decisions: Decisions, target_depth: TargetDepth) -> None:
        self.read_to_ms = NEVER
        self._decisions = decisions
        self._target_depth = target_depth
        self._state = decisions.state
        self._heap: list[_Planned] = []
        self._ready: list[_Planned] = []
        for (source, offset), scheduled in self._state.scheduled.items():
            if scheduled.ready:
                self._plan(scheduled.at_ms, source, offset, self._ready)
            else:
                self._plan(scheduled.due_ms, source, offset)

    def next_due_ms(self) -> int:
        """The next instant at which something has to happen; `NEVER` if there is none."""
        if self._ready and self._target_depth.room():
            return self.next_place_ms()
        return self._heap[0][0] if self._heap else NEVER

    def is_due(self, now_ms: int) -> bool:
        """Whether `advance` has something to do at an instant."""
        due_ms = self.next_due_ms()
        return due_ms <= now_ms and due_ms <= self._until_ms(now_ms)

    def waits_for_arrivals(self, now_ms: int) -> bool:
        """Whether something is due at an instant that has to stand behind what arrived before it (C76)."""
        return self._until_ms(now_ms) < self.next_due_ms() <= now_ms

    def _until_ms(self, now_ms: int) -> int:
        """Up to which instant something may happen. Where there is no room no places are given, and nothing waits."""
        return min(now_ms, self.read_to_ms) if self._target_depth.room() else now_ms

    def next_place_ms(self) -> int:
        """The instant of the first that has no place yet, those that are held included; `NEVER` if there is none."""
        return min((heap[0][0] for heap in (self._heap, self._ready) if heap), default=NEVER)

    def add(
        self,
        source: int,
        offset: int,
        at_ms: int,
        deadline_ms: int,
        traits: Traits,
        step: Step,
        facts: dict[str, Any] | None = None,
    ) -> None:
        """Schedule a message, or say anew how it is scheduled; facts say what else keeps it back (Q17, C51)."""
        self._decisions.do(
            Change(
                ChangeKind.SCHEDULED,
                source=source,
                offset=offset,
                until_ms=at_ms,
                deadlines_ms=np.array([deadline_ms], np.int64),
                traits=traits,
                facts=facts or {},
            ),
            step,
        )
        if facts and facts.get("ready"):
            self._plan(at_ms, source, offset, self._ready)
        else:
            self._plan(min(at_ms, deadline_ms), source, offset)

    def advance(self, now_ms: int, step: Step, most: int = UNLIMITED) -> int:
        """Do what is due, at most so many; returns how many were looked at."""
        return self.materialise(self._until_ms(now_ms), self._target_depth.room(), step, most, now_ms)

    def materialise(
        self, until_ms: int, room: int, step: Step, most: int = UNLIMITED, now_ms: int | None = None
    ) -> int:
        """Give those that are due their places, by instant, then bookmark (C11); remove those that expired.

        What there is no room for is held, and expires when it would enter (C12, C51).

        Args:
            until_ms: what is due up to this instant.
            room: so many may enter.
            step: gets what is decided.
            most: so many are looked at.
            now_ms: the instant of the decision; None = the same.

        Returns:
            How many were looked at.
        """
        now_ms = until_ms if now_ms is None else now_ms
        on = self._decisions.settings.expiration.enabled
        held: dict[int, list[int]] = {}
        looked = 0
        while looked < most and (heap := self._next(until_ms, room)) is not None:
            looked += 1
            due_ms, _, _, offset, source = heapq.heappop(heap)
            scheduled = self._state.scheduled.get(source, offset)
            if scheduled is None or scheduled.ready is not (heap is self._ready):
                continue
            late = on and scheduled.deadline_ms <= now_ms
            if late and (room or scheduled.deadline_ms <= scheduled.at_ms):
                self.remove(source, offset, (Reason.TIME_LIMIT,), now_ms, step)
            elif scheduled.at_ms > due_ms:
                later_ms = scheduled.at_ms if scheduled.deadline_ms <= due_ms else scheduled.due_ms
                self._plan(later_ms, source, offset)
            elif room:
                room -= 1
                self.enter(source, offset, step)
            else:
                self._keep_back(source, offset, scheduled.at_ms, step)
                held.setdefault(source, []).append(offset)
        self._tell_held(held, now_ms, step)
        return looked

    def _next(self, until_ms: int, room: int) -> list[_Planned] | None:
        """Which of the two orders the next one is in; those that are held come only if there is room."""
        due = [heap for heap in (self._heap, self._ready if room else []) if heap and heap[0][0] <= until_ms]
        return min(due, key=lambda heap: heap[0], default=None)

    def _keep_back(self, source: int, offset: int, at_ms: int, step: Step) -> None:
        """Hold one until there is room; it comes behind those with an earlier instant."""
        scheduled = self._state.scheduled[source, offset]
        self.add(source, offset, at_ms, scheduled.deadline_ms, scheduled.all_traits(), step, {"ready": True})

    def enter(self, source: int, offset: int, step: Step) -> None:
        """Give one its place."""
        scheduled, traits = self._state.scheduled[source, offset], NONE
        if self._decisions.settings.traits.wanted:
            traits = scheduled.traits(self._decisions.settings.traits)
        self._decisions.do(Change(ChangeKind.UNSCHEDULED, source=source, offset=offset), step)
        self._decisions.enter(source, offset, np.array([scheduled.deadline_ms], np.int64), traits, step)

    def _tell_held(self, held: dict[int, list[int]], now_ms: int, step: Step) -> None:
        """Tell of messages that wait for room; one event for those of a source."""
        for number, offsets in held.items():
            source = self._state.sources[number]
            in_order = np.array(sorted(offsets), np.int64)
            deadlines_ms = [self._state.scheduled[number, offset].deadline_ms for offset in in_order.tolist()]
            none_yet = np.zeros(len(offsets), np.uint32)
            messages = Messages(
                source.topic, source.partition, in_order, np.array(deadlines_ms, np.int64), none_yet, None
            )
            step.events.append(ShardEvent("held", now_ms, messages))

    def transfer(self, source: int, offset: int, name: str, step: Step) -> None:
        """Keep one back for a transfer (Q17)."""
        scheduled = self._state.scheduled[source, offset]
        facts = {"transfer": name, "then_ms": scheduled.at_ms, "held": True}
        self.add(source, offset, NEVER, scheduled.deadline_ms, scheduled.all_traits(), step, facts)

    def release(self, source: int, offset: int, now_ms: int, step: Step) -> None:
        """Let one go that a transfer kept back: to its place if its instant has come, else to the schedule.

        Where there is no room it is held: one that comes back as of its instant, one that is new here as of now (C51).
        """
        scheduled = self._state.scheduled[source, offset]
        if scheduled.then_ms > now_ms:
            self.add(source, offset, scheduled.then_ms, scheduled.deadline_ms, scheduled.all_traits(), step)
        elif self._target_depth.bounded and (self._state.scheduled.ready or not self._target_depth.room()):
            self._keep_back(source, offset, scheduled.then_ms if scheduled.held else now_ms, step)
            self._tell_held({source: [offset]}, now_ms, step)
        else:
            self.enter(source, offset, step)

    def remove(self, source: int, offset: int, reasons: tuple[Reason, ...], now_ms: int, step: Step) -> None:
        """Take one out that never was visible."""
        scheduled = self._state.scheduled[source, offset]
        detail = UNCONFIRMED if scheduled.transfer and not scheduled.held else ""
        self._decisions.do(Change(ChangeKind.UNSCHEDULED, source=source, offset=offset), step)
        self._decisions.refuse(source, offset, scheduled.deadline_ms, reasons, now_ms, step, detail)

    def purge(self, now_ms: int, step: Step, reason: Reason = Reason.PURGED, under_way: bool = False) -> int:
        """Take all out, those that are being transferred only if asked to; how many there were (C37)."""
        names = [(name, one) for name, one in self._state.scheduled.items() if under_way or not one.transfer]
        for (source, offset), _ in names:
            self.purge_one(source, offset, now_ms, step, reason)
        return len(names)

    def purge_one(self, source: int, offset: int, now_ms: int, step: Step, reason: Reason = Reason.PURGED) -> None:
        """Take one out, for all reasons that hold."""
        late = self._state.scheduled[source, offset].deadline_ms <= self._decisions.deadlines_count_ms(now_ms)
        self.remove(source, offset, (Reason.TIME_LIMIT, reason) if late else (reason,), now_ms, step)

    def _plan(self, due_ms: int, source: int, offset: int, heap: list[_Planned] | None = None) -> None:
        if due_ms >= NEVER:
            return
        of = self._state.sources[source]
        heapq.heappush(self._heap if heap is None else heap, (due_ms, of.topic, of.partition, offset, source))
