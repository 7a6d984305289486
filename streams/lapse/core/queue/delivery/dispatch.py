"""Dispatch: hands messages and barriers to the subscriptions (Q3, Q5 to Q7, Q12)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.letter import FORWARDER
from lapse.core.narrow_order import sort_narrow
from lapse.core.queue.change import Change, Places, join_places
from lapse.core.queue.decision import Decisions
from lapse.core.queue.delivery.candidates import available, last_holders
from lapse.core.queue.delivery.choice import Chooser
from lapse.core.queue.delivery.fairness import Shares, Turns
from lapse.core.queue.delivery.handed_out import released_message
from lapse.core.queue.groups.group_choice import GroupChooser
from lapse.core.queue.groups.runs_in_turn import RunsInTurn
from lapse.core.queue.groups.turn_columns import TurnColumns
from lapse.core.queue.groups.waiting import Waiting
from lapse.core.queue.inquiry.matching import UNKNOWN, YES
from lapse.core.queue.inquiry.selection import JUDGED_AT_ONCE
from lapse.core.queue.life.table import Guard, Trigger, route
from lapse.core.queue.modes import Semantics
from lapse.core.queue.rates.allowance import Allowance
from lapse.core.queue.segments.segment import SIZE, Segment, State
from lapse.core.queue.step import Delivery, Step
from lapse.core.queue.subscriptions.subscription import Subscription
from lapse.core.shard.event import ShardEvent

STEP_MESSAGES: Final = 4096
"""About how many messages may leave or be handed out in one step, so that other shards do not wait long."""

BARRIERS_AT_ONCE: Final = 128
"""About how many deliveries of barriers one call makes. Each has a record, an event and a change of its own (C60)."""

_AVAILABLE: Final = State.AVAILABLE  # a look-up in the enumeration takes five times as long

_SINGLY: Final = 64
"""How many deliveries follow before waiting groups are in columns again, since it costs much to derive them."""


class Dispatch:
    """Hands messages to subscriptions, under leases or at most once.

    Args:
        decisions: the shard's decisions.
        allowance: the number of deliveries that the rates permit.

    Attributes:
        unjudged: places that must be judged before delivery can go on; their payloads are needed.
    """

    def __init__(self, decisions: Decisions, allowance: Allowance) -> None:
        self.unjudged: list[int] = []
        self._decisions = decisions
        self._state = decisions.state
        self._settings = decisions.settings
        self._matching = decisions.matching
        self._turns = Turns(decisions.settings.fairness)
        self._waiting = Waiting(decisions.settings)
        self._singly = 0
        """For how many deliveries messages of groups are chosen one by one, since one was without a group."""
        self._again = False
        self._allowance = allowance
        self._waits_for_letters = self._hands_on = False
        self._has_traits = decisions.settings.traits.is_needed
        self._once = decisions.settings.semantics is Semantics.AT_MOST_ONCE
        self._leasing = route(Trigger.DELIVER, Guard.AT_LEAST_ONCE)
        self._along = route(Trigger.DELIVER, Guard.AT_MOST_ONCE) if self._once else self._leasing

    def deliver(self, now_ms: int, step: Step) -> bool:
        """See `QueueShard.deliver`."""
        self._again = False
        if not self._allowance.is_bounded:
            return self._deliver(now_ms, step) or self._waits_for_letters or self._hands_on or self._again
        self._allowance.clear_waits()
        more = self._deliver(now_ms, step) or self._waits_for_letters or self._hands_on or self._again
        self._allowance.journal_counts(now_ms, step)
        return more

    def _deliver(self, now_ms: int, step: Step) -> bool:
        self.unjudged = []
        self._waits_for_letters = self._hands_on = False
        if self._state.paused:
            return False
        subscriptions = list(self._state.subscriptions.values())
        self._turns.forget_ended(subscriptions)
        barriers = self._settings.traits.barrier is not None and self._state.index.barriers
        if barriers and not self._release_barriers(subscriptions, now_ms, step):
            return bool(self.unjudged)
        open_ones, space = [], 0
        for one in subscriptions:
            free = one.max_backlog - one.outstanding
            if free > 0:
                open_ones.append(one)
                space += free
        if not space:
            return False
        limit = min(space, STEP_MESSAGES)
        if self._allowance.is_bounded:
            limit = min(limit, self._allowance.queue_room(now_ms))
            if not limit:
                if next(self._state.with_available(), None) is not None:
                    self._allowance.note_queue_wait()
                return False
        if self._has_traits or self._matching.active:
            handed = self._deliver_by_choice(subscriptions, limit, now_ms, step)
            return bool(self.unjudged) or handed == limit < space
        places = available(self._state, limit, self._decisions.deadlines_count_ms(now_ms))
        if not len(places):
            return False
        for subscription, share in self._allot(places, open_ones):
            if len(share) == len(places):
                self._hand_out(subscription, places, now_ms, step)
            elif share[-1] - share[0] == len(share) - 1:
                self._hand_out(subscription, places[share[0] : share[-1] + 1], now_ms, step)
            elif isinstance(places, list):
                self._hand_out(subscription, [places[position] for position in share], now_ms, step)
            else:
                self._hand_out(subscription, places[np.asarray(share)], now_ms, step)
        return len(places) == limit < space

    def groups_held_back(self) -> int:
        """Return how many groups wait because no subscription matches their first message (C87)."""
        chooser = Chooser(self._state, self._matching, self._settings, self._turns, -1)
        return chooser.groups_held_back(list(self._state.subscriptions.values()))

    def repeat_barrier(self, released: Change, step: Step) -> None:
        """Send a barrier again, since a crash may have prevented its delivery (C35)."""
        messages = released_message(released)
        for subscription_id in released.facts["receivers"]:
            if subscription_id in self._state.subscriptions and subscription_id != FORWARDER:  # named by older versions
                step.deliveries.append(Delivery(subscription_id, messages, 0, barrier=True))

    def _deliver_by_choice(self, subscriptions: Sequence[Subscription], limit: int, now_ms: int, step: Step) -> int:
        """Hand out messages by priority, barriers, filters or groups. Return how many."""
        deadlines_count_ms = self._decisions.deadlines_count_ms(now_ms)
        chooser = Chooser(self._state, self._matching, self._settings, self._turns, deadlines_count_ms)
        if chooser.by_group or self._allowance.by_group:
            dealt, unknown = self._choose_by_group(subscriptions, limit, now_ms, deadlines_count_ms)
        elif any(one.filter for one in subscriptions if one.space):
            dealt, unknown = chooser.assign(subscriptions, limit), chooser.unknown
        else:
            first = chooser.first_places(limit)
            for subscription, share in self._allot(first, subscriptions):
                self._hand_out(subscription, [first[position] for position in share], now_ms, step)
            return len(first)
        self.unjudged = unknown[:JUDGED_AT_ONCE]
        for subscription, places in dealt:
            self._hand_out(subscription, places, now_ms, step)
        return sum(len(places) for _, places in dealt)

    def _choose_by_group(
        self, subscriptions: Sequence[Subscription], limit: int, now_ms: int, deadlines_count_ms: int
    ) -> tuple[Sequence[tuple[Subscription, list[int] | NDArray[np.int64]]], list[int]]:
        """Assign messages of groups. Return each subscription's places, and those that must be judged first.

        Waiting groups are derived from the segments part by part, from the first call on.
        """
        last, allowance = (self._state.next_place - 1) // SIZE, self._allowance
        columns = self._waiting.columns(self._state) if self._goes_in_runs else None
        if columns is not None:
            if not columns.load_part(last):
                self._again = True
                return [], []
            if not (allowance.by_group and columns.own_messages_wait):
                return self._choose_runs(columns, subscriptions, limit, now_ms, deadlines_count_ms), []
            self._singly = _SINGLY
        lines = self._waiting.lines(self._state)
        if not lines.load_part(last):
            self._again = True
            return [], []
        in_turn = GroupChooser(self._decisions, self._turns, lines, allowance, deadlines_count_ms)
        dealt = in_turn.assign(subscriptions, limit, now_ms)
        self._again = in_turn.again
        if not self._again:  # else the columns would be derived again before this search is over, and so on forever
            self._singly = max(0, self._singly - 1)
        return dealt, in_turn.unknown

    @property
    def _goes_in_runs(self) -> bool:
        """Whether every subscription takes every message of a group, and only the turn, limits and rates decide."""
        traits = self._settings.traits
        barred = traits.barrier is not None and self._state.index.barriers
        return not (self._matching.active or traits.priority is not None or barred or self._singly)

    def _choose_runs(
        self,
        columns: TurnColumns,
        subscriptions: Sequence[Subscription],
        limit: int,
        now_ms: int,
        deadlines_count_ms: int,
    ) -> list[tuple[Subscription, list[int] | NDArray[np.int64]]]:
        """Assign messages of groups, many at once."""
        allowance = self._allowance
        if allowance.by_group:
            for until_ms in columns.restore_due(allowance.waited_to_ms(now_ms), allowance.was_written()):
                allowance.note_wait_until(until_ms)
        runs = RunsInTurn(self._state, columns, allowance, now_ms, deadlines_count_ms)
        places = runs.choose(limit)
        self._again = runs.again
        shares = self._allot(places, subscriptions)
        if sum(len(share) for _, share in shares) < len(places):
            columns.ahead.clear(columns.first)  # the others were to be handed out as well
        return [
            (one, places[share.start : share.stop] if isinstance(share, range) else places[np.asarray(share)])
            for one, share in shares
        ]

    def _allot(self, places: list[int] | NDArray[np.int64], subscriptions: Sequence[Subscription]) -> Shares:
        """Share out messages that every subscription may get."""
        last = last_holders(self._state, places) if len(subscriptions) > 1 else None
        return self._turns.allot(len(places), subscriptions, last)

    def _hand_out(
        self, subscription: Subscription, places: list[int] | NDArray[np.int64], now_ms: int, step: Step
    ) -> None:
        """Give messages to a subscription, under a lease or at most once (Q5, Q6).

        The forwarder always gets a lease. It settles its messages at the beginning of the next step, once the target
        has them, which may free further messages of their groups.
        """
        forwards = subscription.id == FORWARDER
        self._hands_on |= forwards
        once = self._once and not forwards
        row = (self._along if once else self._leasing).row(_AVAILABLE)
        if once and not subscription.outstanding:
            subscription.idle_until_ms = now_ms
        until_ms, since_ms = (0, 0) if once else (now_ms + self._settings.lease_ms, now_ms)
        places_in_order: Places = [(int(places[0]), 1)] if len(places) == 1 else []
        if len(places) > 1:
            places_in_order = join_places(sorted(places) if isinstance(places, list) else sort_narrow(places))
        self._decisions.apply_change(
            Change(row.changes[0], places_in_order, offset=since_ms, holder=subscription.number, until_ms=until_ms),
            step,
        )
        if self._allowance.is_bounded:
            self._allowance.count_deliveries(places_in_order)
        for messages in self._decisions.messages_at(places, places_in_order):
            step.deliveries.append(Delivery(subscription.id, messages, until_ms, subscription.payload))
            if row.emits:
                step.events.append(ShardEvent(row.emits, now_ms, messages, subscription=subscription.id))

    def _first_letter(self, step: Step) -> int:
        """Return the first place of a message whose letter this step writes at its end; `next_place` if there is none.

        The next step knows whether the broker took them.
        """
        letters = (removal.places for removal in step.removals if removal.letter)
        firsts = (0 if places is None else int(places.min()) for places in letters)
        return min(firsts, default=self._state.next_place)

    def _release_barriers(self, subscriptions: Sequence[Subscription], now_ms: int, step: Step) -> bool:
        """Send each barrier that no message precedes to all matching subscriptions (Q12, C34).

        Returns:
            False if nothing else can be handed out now: a barrier's payload must be judged first, or very many follow
            one another, and the others have their turn before the next ones (C60).
        """
        state, most = self._state, max(1, BARRIERS_AT_ONCE // (len(subscriptions) or 1))
        first_letter: int | None = None
        while state.index.barriers and subscriptions:
            if not most:
                self._again = True
                return False
            most -= 1
            place = state.index.barriers[0]
            index, slot = divmod(place, SIZE)
            segment, at = state.segments.look(index), np.array([slot])
            over = self._settings.expiration.enabled and segment.deadline_of(slot) <= now_ms
            if over or state.first_occupied() != place or segment.state[slot] != State.AVAILABLE:
                return True
            # It waits for the letters of what was before it (C48).
            first_letter = self._first_letter(step) if first_letter is None else first_letter
            self._waits_for_letters = state.first_pending() > place >= first_letter
            if self._waits_for_letters or state.first_pending() <= place:
                return True
            receivers = self._receivers(segment, at, subscriptions)
            if receivers is None:
                self.unjudged = [place]
                return False
            if FORWARDER in receivers:  # the others get it once the target has it
                self._hand_out(state.subscriptions[FORWARDER], [place], now_ms, step)
                return True
            self._release(segment, at, receivers, now_ms, step)
        return True

    def release_forwarded(self, now_ms: int, step: Step) -> int | None:
        """Release the barrier that the forwarder holds to the other subscriptions, since the target has it (Q12).

        If it matches no other subscription, the forwarder keeps it, and settles it like any message.

        Returns:
            The place of the barrier if it must be judged first; then call this again.
        """
        state = self._state
        if not (self._settings.traits.barrier is not None and state.index.barriers):
            return None
        place = state.index.barriers[0]
        index, slot = divmod(place, SIZE)
        segment, at = state.segments.look(index), np.array([slot])
        if segment.state[slot] != State.LEASED:
            return None
        receivers = self._receivers(segment, at, [*state.subscriptions.values()])
        if receivers is None:
            return place
        if receivers != [FORWARDER]:
            undone = route(Trigger.UNDELIVER).row(State.LEASED)
            self._decisions.apply_change(Change(undone.changes[0], [(place, 1)]), step)
            self._release(state.segments[index], at, receivers, now_ms, step)
        return None

    def _receivers(
        self, segment: Segment, at: NDArray[np.intp], subscriptions: Sequence[Subscription]
    ) -> list[str] | None:
        """Return the ids of the subscriptions that match a barrier; None if its payload must be judged first."""
        codes = {one.id: int(self._matching.codes(one.filter, segment.index, at)[0]) for one in subscriptions}
        if UNKNOWN in codes.values():
            return None
        return [subscription_id for subscription_id, code in codes.items() if code == YES]

    def _release(
        self, segment: Segment, at: NDArray[np.intp], receivers: Sequence[str], now_ms: int, step: Step
    ) -> None:
        """Send a barrier to its receivers. The forwarder's target has it already."""
        (messages,) = self._decisions.messages([(segment, at)])
        clients = [one for one in receivers if one != FORWARDER]
        for subscription_id in clients:
            step.deliveries.append(Delivery(subscription_id, messages, 0, barrier=True))
        row = route(Trigger.RELEASE).row(State.AVAILABLE)
        step.events.append(ShardEvent(row.event, now_ms, messages, detail=", ".join(receivers)))
        offset = int(messages.offsets[0])
        facts = {"topic": messages.topic, "partition": messages.partition, "offset": offset, "receivers": clients}
        self._decisions.apply_change(Change(row.changes[0], [(segment.base + int(at[0]), 1)], facts=facts), step)
