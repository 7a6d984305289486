"""Removal: how messages leave other than by acknowledgment, and for which reasons (L14, Q9, Q10, C22)."""

from __future__ import annotations

from typing import Final

import numpy as np
import numpy.ma  # np.unique imports it at its first call, which takes 50 ms of a lease's end
from numpy.typing import NDArray

from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions, Slots, places_of
from lapse.core.queue.segment import Segment, State
from lapse.core.queue.step import Removal, Step
from lapse.core.reason import Reason, in_order

_REASON_BITS: Final = (
    (1, Reason.TIME_LIMIT),
    (2, Reason.MAX_DELIVERIES),
    (4, Reason.MAX_CANCELS),
    (8, Reason.LOG_TRUNCATED),
)


class Removals:
    """Takes messages out, and back."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._settings = decisions.settings

    def give_back(self, slots: Slots, now_ms: int, step: Step) -> None:
        """Return leased messages; what may not stay leaves at once (Q5, Q9, Q10)."""
        if not slots:
            return
        for segment, some in slots:
            holders = np.zeros(len(some), np.int64) if segment.holder is None else segment.holder[some]
            for number in np.unique(holders).tolist():
                holder = self._state.subscription_table.find(number)
                whose = "" if holder is None else holder.id
                self._decisions.tell("lease_returned", [(segment, some[holders == number])], now_ms, step, whose)
        self._decisions.do(Change(ChangeKind.RETURNED, places_of(slots)), step)
        self.remove_what_must_go(slots, now_ms, step)

    def remove_what_must_go(self, slots: Slots, now_ms: int, step: Step) -> None:
        """Remove messages that came back and are expired, or were delivered or cancelled too often (Q9, Q10)."""
        for segment, some in slots:
            self.remove_for_all_reasons(segment, some, now_ms, step, (), returned=True)

    def remove_beyond_limits(self, now_ms: int, step: Step) -> None:
        """Remove messages that wait although they were delivered or cancelled too often: a limit was lowered (C23)."""
        if not (self._settings.max_deliveries or self._settings.max_cancels):
            return
        for index in sorted(self._state.segments):
            outline = self._state.outline(index)
            if not (
                0 < self._settings.max_deliveries <= outline.most_deliveries
                or 0 < self._settings.max_cancels < outline.most_cancels
            ):
                continue
            segment = self._state.segments[index]
            waiting = self._decisions.slots_in(segment, (State.AVAILABLE, State.DELAYED))
            beyond = waiting[self._beyond_limits(segment, waiting) > 0]
            if len(beyond):
                self.remove_for_all_reasons(segment, beyond, now_ms, step, (), returned=True)
            self._state.segments.make_room()

    def remove_for_all_reasons(
        self,
        segment: Segment,
        slots: NDArray[np.intp],
        now_ms: int,
        step: Step,
        always: tuple[Reason, ...],
        subscription: str = "",
        returned: bool = False,
    ) -> None:
        """Remove each message for all reasons that hold (C22); none holds = it stays."""
        holds = np.zeros(len(slots), np.uint8)
        if returned:
            holds |= self._beyond_limits(segment, slots) | self._truncated(segment, slots)
        if self._settings.expiration.enabled and segment.deadline_ms is not None:
            holds |= segment.deadline_ms[slots] <= now_ms
        for bits in np.unique(holds).tolist():
            reasons = in_order((*always, *(reason for bit, reason in _REASON_BITS if bits & bit)))
            if reasons:
                self.remove([(segment, slots[holds == bits])], reasons, now_ms, step, subscription)

    def remove(
        self,
        slots: Slots,
        reasons: tuple[Reason, ...],
        now_ms: int,
        step: Step,
        subscription: str = "",
        detail: str = "",
    ) -> None:
        """Remove messages for these reasons."""
        letter = self._settings.writes_letter(reasons)
        at_ms = self._decisions.decided_ms(now_ms)
        for segment, some in slots:
            at = 0
            for messages in self._state.sources.messages(segment, some):
                places = some[at : at + len(messages)].astype(np.int64) + segment.base
                step.removals.append(Removal(messages, reasons, at_ms, letter, detail, subscription, places))
                at += len(messages)
        expired = Reason.TIME_LIMIT in reasons
        self._decisions.do(Change(ChangeKind.EXPIRED if expired else ChangeKind.SETTLED, places_of(slots)), step)

    def _truncated(self, segment: Segment, slots: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Which records Kafka has removed while a lease protected their messages (C80): bits of `_REASON_BITS`."""
        holds = np.zeros(len(slots), np.uint8)
        sources = self._state.sources
        if not any(sources[run.source].begin_offset > run.offset for run in segment.runs):
            return holds
        for at, slot in enumerate(slots.tolist()):
            run = segment.run_at(slot)
            if run.offset + slot - run.slot < sources[run.source].begin_offset:
                holds[at] = 8
        return holds

    def _beyond_limits(self, segment: Segment, slots: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Which limits forbid that each message is delivered once more (Q9): bits of `_REASON_BITS`."""
        settings = self._settings
        holds = np.zeros(len(slots), np.uint8)
        if settings.max_deliveries:
            holds |= (segment.deliveries[slots] >= settings.max_deliveries).astype(np.uint8) << 1
        if settings.max_cancels and segment.cancels is not None:
            holds |= (segment.cancels[slots] > settings.max_cancels).astype(np.uint8) << 2
        return holds
