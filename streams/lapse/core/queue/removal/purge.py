"""Purge: removes all messages that may be removed, or those that match a filter (Q21, C37, C83)."""

from __future__ import annotations

from lapse.core.queue.arrival.target_depth import UNLIMITED
from lapse.core.queue.decision import Decisions
from lapse.core.queue.inquiry.inquiry import Inquiry
from lapse.core.queue.life.message_state import LIVE
from lapse.core.queue.life.table import Guard, Trigger, route
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.schedule.schedule import Schedule
from lapse.core.queue.step import Step


class Purge:
    """Carries out purges. Messages beyond the horizon are left out.

    Args:
        decisions: the shard's decisions.
        transitions: removes messages with places.
        schedule: removes messages without places.
        inquiry: finds messages that match a filter.
    """

    def __init__(self, decisions: Decisions, transitions: Transitions, schedule: Schedule, inquiry: Inquiry) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._transitions = transitions
        self._schedule = schedule
        self._inquiry = inquiry

    def purge_all(self, now_ms: int, step: Step, leased: bool, text: str) -> tuple[dict[str, int], dict[str, int]]:
        """Remove all messages, scheduled and held ones too, but leased ones only with `leased` (C37, C83).

        Messages in a transfer from here or to here stay, and count as left (Q17). With the text of a filter under
        selection, only messages known to match leave; `places_to_judge` and `scheduled_to_judge` come before.

        Returns:
            How many were removed, by their former state, and how many were left.
        """
        along = route(Trigger.PURGE, Guard.LEASED_TOO if leased else None)
        removed, left = self.purge_placed(now_ms, step, leased, text)
        if self._state.scheduled.in_transfer or self._state.scheduled.unconfirmed:
            for (number, offset), scheduled in self._inquiry.scheduled(text):
                if not along.takes[scheduled.state] and self._decisions.horizon.contains(number, offset):
                    left[self._inquiry.queued_scheduled(number, offset, scheduled).state_name] += 1
        for state_name, count in self.purge_scheduled(now_ms, step, text).items():
            removed[state_name] += count
        return removed, left

    def purge_placed(
        self, now_ms: int, step: Step, leased: bool = False, text: str = "", most: int = UNLIMITED
    ) -> tuple[dict[str, int], dict[str, int]]:
        """Remove about `most` messages with places, as a part of a long purge (C60).

        Returns:
            How many were removed, by their former state, and how many of those examined were left. If `most` or more
            were removed, there may be more to remove.
        """
        self._state.segments.make_room()
        guard = Guard.LEASED_TOO if leased else None
        along = route(Trigger.PURGE, guard)
        removed = dict.fromkeys(("available", "delayed", "leased", "scheduled", "held"), 0)
        left = dict.fromkeys(("leased", "transferring", "unconfirmed"), 0)
        for index in sorted(self._state.segments):
            if not self._state.outline(index).occupied:
                continue
            if sum(removed.values()) >= most:
                break
            segment = self._state.segments[index]
            for state in LIVE:
                slots = self._decisions.horizon.slots_within(segment, self._decisions.slots_in(segment, (state,), text))
                goes = along.takes[state]
                (removed if goes else left)[state.name.lower()] += len(slots)
                if len(slots) and goes:
                    self._transitions.apply_trigger(Trigger.PURGE, [(segment, slots)], now_ms, step, guard=guard)
            self._state.segments.make_room()
        return removed, left

    def purge_scheduled(self, now_ms: int, step: Step, text: str = "", most: int = UNLIMITED) -> dict[str, int]:
        """Remove at most `most` scheduled and held messages, as a part of a long purge (C60).

        Returns:
            How many were removed, by their former state. If these are `most`, there may be more to remove.
        """

        def matches(number: int, offset: int) -> bool:
            within = self._decisions.horizon.contains(number, offset)
            return within and (not text or self._inquiry.matches(text, number, offset))

        gone = self._schedule.purge(now_ms, step, Trigger.PURGE, most=most, matches=matches)
        held = sum(one.held for one in gone)
        return {"scheduled": len(gone) - held, "held": held}
