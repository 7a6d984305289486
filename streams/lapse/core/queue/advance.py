"""What time brings to a shard: expiry, ends of leases, lost consumers, schedules, in the order of C2."""

from __future__ import annotations

from collections.abc import Iterable

from lapse.core.queue.decision import Decisions
from lapse.core.queue.delivery.dispatch import STEP_MESSAGES
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
    """Does what is due, and knows when that is.

    Args:
        decisions: the shard's.
        transitions: how messages with places change.
        schedule: what has no place yet.
        subscribing: who is lost.
        locator: finds what is named.
        activity: whether the queue is used.
        agreement: on the end of the entity.
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
        self._agreement = agreement

    def to(self, now_ms: int, step: Step, most: int = STEP_MESSAGES) -> int:
        """Do what is due at `now_ms`, in the order of C2; much of it at once is left for the next call (C60).

        Args:
            now_ms: the instant.
            step: gets what is decided.
            most: about so many messages expire or return; one that materialises counts as `WEIGHT` of them.

        Returns:
            How many did, counted so.
        """
        self._state.segments.make_room()
        if self._agreement.retired:
            self._agreement.advance(now_ms, step)
            return 0
        removed = len(step.removals)
        done = self._timers.expire(now_ms, step, most)
        changed = len(step.changes)
        done += self._timers.end_leases(now_ms, step, max(most - done, most // 2))
        self._subscribing.end_lost(now_ms, step)
        done += WEIGHT * self._schedule.advance(now_ms, step, max(most - done, most // 2, 1) // WEIGHT or 1)
        if len(step.changes) > changed or len(step.removals) > removed:
            self._activity.use(now_ms, step, self._agreement)  # before anybody looks whether the queue is idle (C50)
        self._agreement.advance(now_ms, step)
        return done

    def end_leases_of(self, claims: Iterable[Claim], now_ms: int, step: Step) -> None:
        """Return what is named and whose lease or delay is over, before others whose are over, too (C2, C60)."""
        if self._timers.next_due_ms() > now_ms:
            return
        for claim in claims:
            for segment, first, stop, _, _ in self._locator.located(claim, []):
                self._timers.end_leases_in(segment, first, stop, now_ms, step, SIZE)

    def next_due_ms(self) -> int:
        """The next instant at which `advance` has something to do; `NEVER` if there is none."""
        if self._agreement.retired:
            return self._agreement.next_due_ms()
        return min(self._undecided_due_ms(), self._schedule.next_due_ms())

    def is_due(self, at_ms: int) -> bool:
        """Whether `advance` has something to do at an instant; what is scheduled may wait for older arrivals (C76)."""
        if self._agreement.retired:
            return self._agreement.next_due_ms() <= at_ms
        return self._undecided_due_ms() <= at_ms or self._schedule.is_due(at_ms)

    def waits_for_arrivals(self, at_ms: int) -> bool:
        """Whether a scheduled message is due at an instant, and has to stand behind what arrived before it (C76)."""
        return self._schedule.waits_for_arrivals(at_ms) and not (self._agreement.frozen or self._agreement.retired)

    def _undecided_due_ms(self) -> int:
        """The next instant, without what is scheduled, unless the end of the entity is decided."""
        return min(self._timers.next_due_ms(), self._subscribing.lost_at_ms, self._agreement.next_due_ms())
