"""The schedule: when scheduled messages materialise, expire or are withdrawn (L5, C11)."""

from __future__ import annotations

import heapq

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, Verb
from lapse.core.queue.decision import Decisions
from lapse.core.queue.step import Step
from lapse.core.queue.trait import NONE, Traits
from lapse.core.reason import Reason


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

    def add(self, source: int, offset: int, at_ms: int, deadline_ms: int, traits: Traits, step: Step) -> None:
        """Schedule a message."""
        self._decisions.do(
            Change(
                Verb.SCHEDULED,
                source=source,
                offset=offset,
                until_ms=at_ms,
                deadlines_ms=np.array([deadline_ms], np.int64),
                traits=traits,
            ),
            step,
        )
        self._plan(min(at_ms, deadline_ms), source, offset)

    def materialise(self, now_ms: int, step: Step) -> None:
        """Give those that are due their places, by instant, then bookmark (C11); remove those that expired."""
        settings = self._decisions.settings
        while self._heap and self._heap[0][0] <= now_ms:
            due_ms, _, _, offset, source = heapq.heappop(self._heap)
            scheduled = self._state.scheduled.get(source, offset)
            if scheduled is None:
                continue
            if scheduled.deadline_ms <= now_ms and settings.expiration.enabled:
                self.remove(source, offset, (Reason.TIME_LIMIT,), now_ms, step)
            elif scheduled.at_ms > due_ms:
                self._plan(scheduled.at_ms, source, offset)
            else:
                traits = scheduled.traits(settings.traits) if settings.traits.wanted else NONE
                self._decisions.do(Change(Verb.UNSCHEDULED, source=source, offset=offset), step)
                self._decisions.enter(source, offset, np.array([scheduled.deadline_ms], np.int64), traits, step)

    def remove(self, source: int, offset: int, reasons: tuple[Reason, ...], now_ms: int, step: Step) -> None:
        """Take one out that never was visible."""
        deadline_ms = self._state.scheduled[source, offset].deadline_ms
        self._decisions.do(Change(Verb.UNSCHEDULED, source=source, offset=offset), step)
        self._decisions.refuse(source, offset, deadline_ms, reasons, now_ms, step)

    def purge(self, now_ms: int, step: Step, reason: Reason = Reason.PURGED) -> int:
        """Take all out; how many there were (C37)."""
        names = list(self._state.scheduled.items())
        for (source, offset), scheduled in names:
            late = self._decisions.settings.expiration.enabled and scheduled.deadline_ms <= now_ms
            reasons = (Reason.TIME_LIMIT, reason) if late else (reason,)
            self.remove(source, offset, reasons, now_ms, step)
        return len(names)

    def _plan(self, due_ms: int, source: int, offset: int) -> None:
        of = self._state.sources[source]
        heapq.heappush(self._heap, (due_ms, of.topic, of.partition, offset, source))
