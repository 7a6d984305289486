"""The schedule: when scheduled messages materialise, expire or are withdrawn (L5, C11)."""

from __future__ import annotations

import heapq
from typing import Any

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions
from lapse.core.queue.step import Step
from lapse.core.queue.trait import NONE, Traits
from lapse.core.reason import UNCONFIRMED, Reason


class Schedule:
    """Scheduled messages in the order in which something has to happen to them."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._heap: list[tuple[int, str, int, int, int]] = []
        for (source, offset), scheduled in self._state.scheduled.items():
            self._plan(scheduled.due_ms, source, offset)

    def next_due_ms(self) -> int:
        """The next instant at which something has to happen; `NEVER` if there is none."""
        return self._heap[0][0] if self._heap else NEVER

    def add(
        self,
        source: int,
        offset: int,
        at_ms: int,
        deadline_ms: int,
        traits: Traits,
        step: Step,
        transfer: dict[str, Any] | None = None,
    ) -> None:
        """Schedule a message, or say anew how it is scheduled; `transfer` says which transfer keeps it back (Q17)."""
        self._decisions.do(
            Change(
                ChangeKind.SCHEDULED,
                source=source,
                offset=offset,
                until_ms=at_ms,
                deadlines_ms=np.array([deadline_ms], np.int64),
                traits=traits,
                facts=transfer or {},
            ),
            step,
        )
        self._plan(min(at_ms, deadline_ms), source, offset)

    def materialise(self, now_ms: int, step: Step, most: int = 1 << 62) -> int:
        """Give those that are due their places, by instant, then bookmark (C11); remove those that expired.

        At most so many; returns how many were looked at.
        """
        settings = self._decisions.settings
        looked = 0
        while looked < most and self._heap and self._heap[0][0] <= now_ms:
            looked += 1
            due_ms, _, _, offset, source = heapq.heappop(self._heap)
            scheduled = self._state.scheduled.get(source, offset)
            if scheduled is None:
                continue
            if scheduled.deadline_ms <= now_ms and settings.expiration.enabled:
                self.remove(source, offset, (Reason.TIME_LIMIT,), now_ms, step)
            elif scheduled.at_ms > due_ms:
                later_ms = scheduled.at_ms if scheduled.deadline_ms <= due_ms else scheduled.due_ms
                self._plan(later_ms, source, offset)
            else:
                self.enter(source, offset, step)
        return looked

    def enter(self, source: int, offset: int, step: Step) -> None:
        """Give one its place."""
        scheduled, traits = self._state.scheduled[source, offset], NONE
        if self._decisions.settings.traits.wanted:
            traits = scheduled.traits(self._decisions.settings.traits)
        self._decisions.do(Change(ChangeKind.UNSCHEDULED, source=source, offset=offset), step)
        self._decisions.enter(source, offset, np.array([scheduled.deadline_ms], np.int64), traits, step)

    def transfer(self, source: int, offset: int, name: str, step: Step) -> None:
        """Keep one back for a transfer (Q17)."""
        scheduled = self._state.scheduled[source, offset]
        facts = {"transfer": name, "then_ms": scheduled.at_ms, "held": True}
        self.add(source, offset, NEVER, scheduled.deadline_ms, scheduled.all_traits(), step, facts)

    def release(self, source: int, offset: int, now_ms: int, step: Step) -> None:
        """Let one go that a transfer kept back: to its place if its instant has come, else to the schedule."""
        scheduled = self._state.scheduled[source, offset]
        if scheduled.then_ms <= now_ms:
            self.enter(source, offset, step)
        else:
            self.add(source, offset, scheduled.then_ms, scheduled.deadline_ms, scheduled.all_traits(), step)

    def remove(self, source: int, offset: int, reasons: tuple[Reason, ...], now_ms: int, step: Step) -> None:
        """Take one out that never was visible."""
        scheduled = self._state.scheduled[source, offset]
        detail = UNCONFIRMED if scheduled.transfer and not scheduled.held else ""
        self._decisions.do(Change(ChangeKind.UNSCHEDULED, source=source, offset=offset), step)
        self._decisions.refuse(source, offset, scheduled.deadline_ms, reasons, now_ms, step, detail)

    def purge(self, now_ms: int, step: Step, reason: Reason = Reason.PURGED, under_way: bool = False) -> int:
        """Take all out, those that are being transferred only if asked to; how many there were (C37)."""
        names = [(name, one) for name, one in self._state.scheduled.items() if under_way or not one.transfer]
        for (source, offset), scheduled in names:
            late = self._decisions.settings.expiration.enabled and scheduled.deadline_ms <= now_ms
            reasons = (Reason.TIME_LIMIT, reason) if late else (reason,)
            self.remove(source, offset, reasons, now_ms, step)
        return len(names)

    def _plan(self, due_ms: int, source: int, offset: int) -> None:
        if due_ms >= NEVER:
            return
        of = self._state.sources[source]
        heapq.heappush(self._heap, (due_ms, of.topic, of.partition, offset, source))
