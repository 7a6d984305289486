"""Advances a shard to an instant: expiry, ends of leases, lost consumers and schedules, in the order of C2."""

from __future__ import annotations

from collections.abc import Iterable

from lapse.core.queue.decision import Decisions
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.schedule.schedule import WEIGHT, Schedule
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.settlement.locator import Locator
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.step import Step
from lapse.core.queue.subscriptions.subscribing import Subscribing
from lapse.core.queue.timer import Timers
from lapse.core.shard.activity import Activity
from lapse.core.shard.agreement import Agreement


class Advance:
    """Carries out what is due at an instant, and computes the next instant at which something is due.

    Args:
        decisions: the shard's decisions.
        transitions: changes the state of messages with places.
        schedule: the messages that have no place yet.
        subscribing: ends subscriptions whose client was not heard of in time.
        locator: finds messages by bookmark.
        activity: notes when the queue was last used.
        agreement: the shard's part in ending the entity.
    """

    def __init__(
        self,
        decisions: Decisions,
        transitions: Transitions,
        schedule: Schedule,
        subscribing: Subscribing,
        locator: Locator,
        activity: Activity[Step],
        agreement: Agreement[Step],
    ) -> None:
        self._state = decisions.state
        self._timers = Timers(decisions, transitions)
        self._schedule = schedule
        self._subscribing = subscribing
        self._locator = locator
        self._activity = activity
        self._is_temporary = activity.is_temporary
        self._agreement = agreement

    def process_due(self, now_ms: int, step: Step, most: int) -> int:
        """Do what is due at `now_ms`, in the order of C2. If much is due, a part is left for the next call (C60).

        Args:
            now_ms: the instant, ms since the epoch.
            step: receives the decisions.
            most: about how many messages may expire or return; one that materialises counts as `WEIGHT` messages.

        Returns:
            How many messages expired, returned or materialised, counted in the same way.
        """
        self._state.segments.make_room()
        if self._state.ending.retirement is not None and self._agreement.retired:
            self._agreement.advance(now_ms, step)
            return 0
        removed = len(step.removals)
        done = self._timers.expire(now_ms, step, most)
        changed = len(step.changes)
        done += self._timers.end_leases(now_ms, step, max(most - done, most // 2))
        self._subscribing.end_lost(now_ms, step)
        done += WEIGHT * self._schedule.advance(now_ms, step, max(most - done, most // 2, 1) // WEIGHT or 1)
        if len(step.changes) > changed or len(step.removals) > removed:
            self._activity.note_use(now_ms, step, self._agreement)  # before the agreement checks for idleness (C50)
        self._agreement.advance(now_ms, step)
        return done

    def end_named_leases(self, claims: Iterable[Claim], now_ms: int, step: Step) -> None:
        """Put named messages whose lease or delay is over back into the queue, ahead of all others (C2, C60)."""
        if self._timers.next_due_ms() > now_ms:
            return
        for claim in claims:
            for segment, first, stop, _, _ in self._locator.locate(claim, []):
                self._timers.end_leases_in(segment, first, stop, now_ms, step, SIZE)

    def forget_gone(self, until_ms: int) -> None:
        """See `Timers.forget_gone`."""
        self._timers.forget_gone(until_ms)

    def next_due_ms(self) -> int:
        """Return the next instant at which something is due, ms since the epoch; `NEVER` if there is none."""
        if self._state.ending.retirement is not None and self._agreement.retired:
            return self._agreement.next_due_ms()
        due_ms, scheduled_ms = self._in_service_due_ms(), self._schedule.next_due_ms()
        if scheduled_ms < due_ms:  # `min` takes four times as long
            due_ms = scheduled_ms
        return due_ms

    def is_due(self, at_ms: int) -> bool:
        """Return whether something is due at an instant. Scheduled messages may wait for older arrivals (C76)."""
        if self._state.ending.retirement is not None and self._agreement.retired:
            return self._agreement.next_due_ms() <= at_ms
        return self._in_service_due_ms() <= at_ms or self._schedule.is_due(at_ms)

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """Return whether a scheduled message is due at an instant but must wait for earlier arrivals (C76)."""
        return self._schedule.waits_for_arrivals(at_ms) and not (self._agreement.frozen or self._agreement.retired)

    def _in_service_due_ms(self) -> int:
        """Return the next due instant of a shard in service, schedules left out."""
        due_ms, lost_at_ms = self._timers.next_due_ms(), self._state.subscription_table.lost_at_ms
        if lost_at_ms < due_ms:
            due_ms = lost_at_ms
        if not self._is_temporary and self._state.ending.retirement is None:
            return due_ms  # nothing ends the queue
        return min(due_ms, self._agreement.next_due_ms())
