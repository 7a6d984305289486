"""Timers: expire messages and end leases, found by an index instead of a scan (L11, C2)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.decision import Decisions
from lapse.core.queue.delivery.dispatch import STEP_MESSAGES
from lapse.core.queue.delivery.retry_cause import Cause
from lapse.core.queue.life.table import Trigger
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.segments.segment import LEASED, Segment
from lapse.core.queue.step import Step

LOOK: Final = 128
"""The least cost of expiring messages of one segment, in messages, since their records must be read (C60)."""


class Timers:
    """Expires messages with places, and ends their leases and delays, a limited number at a time (C60)."""

    def __init__(self, decisions: Decisions, transitions: Transitions) -> None:
        self._decisions = decisions
        self._transitions = transitions
        self._state = decisions.state
        self._expires = decisions.settings.expiration.enabled

    def next_due_ms(self) -> int:
        """Return the next instant at which a deadline passes, or a lease or delay ends; `NEVER` if there is none."""
        index = self._state.index
        if not self._expires:
            return index.untils.next_ms()
        due_ms, deadline_ms = index.untils.next_ms(), index.deadlines.next_ms()
        if deadline_ms < due_ms:  # `min` takes four times as long
            due_ms = deadline_ms
        return due_ms

    def forget_gone(self, until_ms: int) -> None:
        """Drop instants up to `until_ms` that belong to no message any more.

        When a message is settled, its segment keeps the instant, since a look for the next one is a scan. So most of
        these instants come in vain. Whoever would have to act for each of them can find that out first.
        """
        index, segments = self._state.index, self._state.segments
        while (found := index.untils.pop_due(until_ms)) is not None:
            if self._find_until_ms(segments[found]) <= until_ms:
                break
        while (found := index.deadlines.pop_due(until_ms)) is not None:
            if self._find_deadline_ms(segments[found]) <= until_ms:
                break
        segments.make_room()

    def expire(self, now_ms: int, step: Step, most: int = STEP_MESSAGES) -> int:
        """Remove at most `most` messages without a lease whose deadline has passed.

        Returns:
            How many were removed; those of one segment count as at least `LOOK`.
        """
        if not self._expires:
            return 0
        state, deadlines = self._state, self._state.index.deadlines
        spent = 0
        while spent < most and (index := deadlines.pop_due(now_ms)) is not None:
            segment = state.segments[index]
            if segment.deadline_ms is not None:
                waiting = self._transitions.slots_to_change(Trigger.DEADLINE, segment, segment.first_there())
                slots = waiting[segment.deadline_ms[waiting] <= now_ms][: most - spent]
                if len(slots):
                    spent += max(len(slots), LOOK)
                    self._transitions.apply_trigger(Trigger.DEADLINE, [(segment, slots)], now_ms, step)
            self._find_deadline_ms(segment)
            state.segments.make_room()
        return spent

    def end_leases(self, now_ms: int, step: Step, most: int = STEP_MESSAGES) -> int:
        """Put at most `most` messages whose lease or delay is over back into the queue. Return how many."""
        state, untils = self._state, self._state.index.untils
        returned = 0
        while returned < most and (index := untils.pop_due(now_ms)) is not None:
            segment = state.segments[index]
            returned += self.end_leases_in(segment, segment.first_there(), segment.used, now_ms, step, most - returned)
            self._find_until_ms(segment)
            state.segments.make_room()
        return returned

    def _find_deadline_ms(self, segment: Segment) -> int:
        """Find the earliest deadline of a segment, ms since the epoch, and enter it into the index."""
        segment.find_min_deadline()
        self._state.index.deadlines.note(segment.min_deadline_ms, segment.index)
        return segment.min_deadline_ms

    def _find_until_ms(self, segment: Segment) -> int:
        """Do the same for the earliest end of a lease or delay."""
        segment.find_min_until()
        self._state.index.untils.note(segment.min_until_ms, segment.index)
        return segment.min_until_ms

    def end_leases_in(self, segment: Segment, first: int, stop: int, now_ms: int, step: Step, most: int) -> int:
        """End the leases of some slots of a segment, without updating the index."""
        if segment.until_ms is None:
            return 0
        slots = self._transitions.slots_to_change(Trigger.END, segment, first, stop)
        slots = slots[segment.until_ms[slots] <= now_ms][:most]
        leased = slots[segment.state[slots] == LEASED]
        if len(leased) < len(slots):
            delayed = slots[segment.state[slots] != LEASED]
            self._transitions.apply_trigger(Trigger.END, [(segment, delayed)], now_ms, step)
        if len(leased):
            self._return_messages(segment, leased, now_ms, step)
        return len(slots)

    def _return_messages(self, segment: Segment, leased: NDArray[np.intp], now_ms: int, step: Step) -> None:
        """Put messages whose leases ended back into the queue, and note the ends at their subscriptions (Q15)."""
        assert segment.holder is not None
        find = self._state.subscription_table.find
        holders = [one for number in set(segment.holder[leased].tolist()) if (one := find(number)) is not None]
        settled = [one.settled for one in holders]
        self._transitions.return_messages(Trigger.END, Cause.LEASE, [(segment, leased)], now_ms, step)
        for one, before in zip(holders, settled, strict=True):
            one.note_ended_leases(before, now_ms, self._decisions.settings.lease_ms)
