"""Transitions: apply triggers to messages with places, as the table of their life says (see `table`).

A part of the shard names a trigger and messages. The table says which of the messages it applies to, by which change,
with which event, and whether they leave. The table is read once for each run of messages, not for each message.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.ma  # np.unique imports it at its first call, which would delay the first end of a lease by 50 ms
from numpy.typing import NDArray

from lapse.core.generation import offset_of
from lapse.core.queue.change import COME_BACK, Change, ChangeKind
from lapse.core.queue.decision import Decisions, Slots, places_of
from lapse.core.queue.delivery.retry import delay_text, wait_ends_ms
from lapse.core.queue.delivery.retry_cause import Cause
from lapse.core.queue.life.message_state import MEANINGS, STATES, State, state_of_all
from lapse.core.queue.life.table import Guard, ImpossibleTransition, Row, Trigger, route
from lapse.core.queue.rewind.departing import goes_elsewhere, note_slots_elsewhere
from lapse.core.queue.segments.segment import LEASED, Segment
from lapse.core.queue.step import Step
from lapse.core.reason import Reason, in_order
from lapse.core.retry_delay import FAULT, UNREADABLE
from lapse.core.shard.event import ShardEvent

_TIME_LIMIT: Final = Reason.TIME_LIMIT  # a look-up in the enumeration takes five times as long

_ACKNOWLEDGING: Final = route(Trigger.ACKNOWLEDGE)

_REVIEW: Final = (
    (1, route(Trigger.DEADLINE)),
    (2, route(Trigger.EXCEED, Guard.DELIVERIES)),
    (4, route(Trigger.EXCEED, Guard.CANCELS)),
    (8, route(Trigger.TRUNCATE)),
)
"""By bit: triggers that can also apply to a message that returns, each with its reason for removal."""


class Transitions:
    """Applies triggers to messages with places."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._settings = decisions.settings

    def slots_to_change(
        self, trigger: Trigger, segment: Segment, first: int = 0, stop: int | None = None, guard: Guard | None = None
    ) -> NDArray[np.intp]:
        """Return the slots from `first` up to `stop` whose messages a trigger applies to."""
        column = segment.state[first : segment.used if stop is None else stop]
        slots = route(trigger, guard).takes.take(column).nonzero()[0]  # indexing takes three times as long
        return slots + first if first else slots

    def apply_trigger(
        self,
        trigger: Trigger,
        slots: Slots,
        now_ms: int,
        step: Step,
        *,
        guard: Guard | None = None,
        subscription: str | None = None,
        detail: str = "",
        holder: int = -1,
        until_ms: int = 0,
        untils_ms: NDArray[np.int64] | None = None,
    ) -> None:
        """Apply a trigger to messages. Those that return but may not stay leave at once (Q9, Q10).

        Args:
            trigger: the trigger.
            slots: the messages.
            now_ms: the instant, ms since the epoch.
            step: receives the decisions.
            guard: the guard that chooses among several rows.
            subscription: id of the subscription that caused it; None = none did, and events name the message's holder.
            detail: a sentence for people.
            holder: number of the subscription or transfer that holds the messages afterwards.
            until_ms: end of the lease or delay that begins, ms since the epoch; 0 without one.
            untils_ms: end of each message's delay, in the same order, if they differ; all messages then share a row.
        """
        for row, some in _by_row(trigger, guard, slots):
            if row.reason is not None:
                for segment, of_segment in some:
                    self._remove_for_reasons(row.reason, segment, of_segment, now_ms, step, subscription or "", detail)
                continue
            whose = [(subscription or "", some)]
            if subscription is None and row.emits and MEANINGS[row.state].fills:
                whose = self._by_holder(some)
            if goes_elsewhere(trigger, subscription):
                note_slots_elsewhere(self._decisions, some, step)
            change = Change(row.changes[0], places_of(some), holder=holder, until_ms=until_ms, untils_ms=untils_ms)
            self._decisions.apply_change(change, step)
            if row.emits:
                if row.to is State.DELAYED and until_ms:
                    detail = detail or delay_text(until_ms, until_ms)
                for name, held in whose:
                    self._decisions.record_event(row.emits, held, now_ms, step, name, detail)
            if change.kind in COME_BACK:
                self.review_returned(some, now_ms, step)

    def acknowledge_one(self, segment: Segment, slot: int, now_ms: int, step: Step, subscription: str) -> None:
        """Do what `apply_trigger` does for the acknowledgment of one message, as most are, without columns of one.

        The forwarder's messages live on elsewhere, so they go the other way.
        """
        row = _ACKNOWLEDGING.row(STATES[segment.state.item(slot)])
        self._decisions.apply_change(Change(row.changes[0], [(segment.base + slot, 1)]), step)
        if row.emits:
            _, messages = self._state.sources.find_single(segment, slot)
            step.events.append(ShardEvent(row.emits, now_ms, messages, subscription))

    def return_messages(
        self,
        trigger: Trigger,
        cause: Cause,
        slots: Slots,
        now_ms: int,
        step: Step,
        *,
        since_ms: int | None = None,
        subscription: str | None = None,
    ) -> None:
        """Put messages back into the queue, each after the delay of the message or of the queue (Q24).

        Args:
            trigger: the trigger.
            cause: why the messages return.
            slots: the messages by segment, with ascending slots.
            now_ms: the instant, ms since the epoch.
            step: receives the decisions.
            since_ms: the start of the delays, ms since the epoch; None = the end of each message's lease.
            subscription: see `apply_trigger`.
        """
        if not self._settings.retry.delay_ms and all(segment.retries is None for segment, _ in slots):
            self.apply_trigger(trigger, slots, now_ms, step, subscription=subscription)
            return
        readable_slots = [
            some if segment.retries is None else some[segment.retries[some] != UNREADABLE] for segment, some in slots
        ]
        if sum(map(len, readable_slots)) == sum(len(some) for _, some in slots):
            self._return_readable(trigger, cause, slots, now_ms, step, since_ms, subscription, "")
            return
        for (segment, some), readable in zip(slots, readable_slots, strict=True):
            for part, fault in ((readable, ""), (np.setdiff1d(some, readable, assume_unique=True), FAULT)):
                if len(part):
                    self._return_readable(
                        trigger, cause, [(segment, part)], now_ms, step, since_ms, subscription, fault
                    )

    def _return_readable(
        self,
        trigger: Trigger,
        cause: Cause,
        slots: Slots,
        now_ms: int,
        step: Step,
        since_ms: int | None,
        subscription: str | None,
        fault: str,
    ) -> None:
        """Put messages back whose retry headers are all readable, or all unreadable, with `fault` as the detail."""
        at_once: Slots = []
        later: Slots = []
        untils: list[NDArray[np.int64]] = []
        for segment, some in slots:
            untils_ms = self._retry_at_ms(cause, segment, some, since_ms)
            if untils_ms is None:
                at_once.append((segment, some))
                continue
            waits = (
                (untils_ms > now_ms) & (segment.state[some] == LEASED) & (self._at_limits(cause, segment, some) == 0)
            )
            if not waits.any():
                at_once.append((segment, some))
                continue
            later.append((segment, some[waits]))
            untils.append(untils_ms[waits])
            if not waits.all():
                at_once.append((segment, some[~waits]))
        self.apply_trigger(trigger, at_once, now_ms, step, subscription=subscription, detail=fault)
        if later:
            ends = np.concatenate(untils)
            first_ms, last_ms = int(ends.min()), int(ends.max())
            self.apply_trigger(
                trigger,
                later,
                now_ms,
                step,
                guard=Guard.DELAY,
                subscription=subscription,
                detail="; ".join(filter(None, (delay_text(first_ms, last_ms), fault))),
                until_ms=first_ms,
                untils_ms=None if first_ms == last_ms else ends,
            )

    def _at_limits(self, cause: Cause, segment: Segment, slots: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Return, as bits of `_REVIEW`, the limits that make each returning message leave without a delay (Q9)."""
        holds = self._beyond_limits(segment, slots)
        if cause is Cause.CANCEL and self._settings.max_cancels:
            cancels = 0 if segment.cancels is None else segment.cancels[slots]
            holds |= np.asarray(cancels >= self._settings.max_cancels, np.uint8) << 2
        return holds

    def _retry_at_ms(
        self, cause: Cause, segment: Segment, slots: NDArray[np.intp], since_ms: int | None
    ) -> NDArray[np.int64] | None:
        """Return when each returned message may be delivered again, ms since the epoch; None = all at once."""
        rule = self._settings.retry
        if cause not in rule.on or (not rule.delay_ms and segment.retries is None):
            return None
        waits_ms, at = np.zeros(len(slots), np.int64), 0
        for one in self._state.sources.messages(segment, slots):
            stop = at + len(one)
            stated_ms = None if segment.retries is None else segment.retries[slots[at:stop]]
            waits_ms[at:stop] = rule.waits_ms(one.topic, one.partition, one.offsets, one.deliveries, stated_ms)
            at = stop
        if since_ms is None and segment.until_ms is not None:
            return np.where(waits_ms > 0, wait_ends_ms(segment.until_ms[slots], waits_ms), 0)
        return np.where(waits_ms > 0, wait_ends_ms(np.full(len(slots), since_ms or 0, np.int64), waits_ms), 0)

    def review_returned(self, slots: Slots, now_ms: int, step: Step) -> None:
        """Remove returned messages that have expired, were truncated, or were delivered or cancelled too often."""
        for segment, some in slots:
            self._remove_for_reasons(None, segment, some, now_ms, step, "", "")

    def remove_beyond_limits(self, now_ms: int, step: Step) -> None:
        """Remove waiting messages that exceed a lowered limit (C23)."""
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
            waiting = self.slots_to_change(Trigger.EXCEED, segment, guard=Guard.DELIVERIES)
            beyond = waiting[self._beyond_limits(segment, waiting) > 0]
            if len(beyond):
                self.review_returned([(segment, beyond)], now_ms, step)
            self._state.segments.make_room()

    # Removal

    def _remove_for_reasons(
        self,
        reason: Reason | None,
        segment: Segment,
        slots: NDArray[np.intp],
        now_ms: int,
        step: Step,
        subscription: str,
        detail: str,
    ) -> None:
        """Remove messages for all reasons that hold (C22). If `reason` is None, a message without any reason stays."""
        if reason is _TIME_LIMIT:
            self._remove(segment, slots, (_TIME_LIMIT,), now_ms, step, subscription, detail)
            return
        if reason is None and len(slots) == 1 and self._may_stay(segment, int(slots[0]), now_ms):
            return
        holds = np.zeros(len(slots), np.uint8)
        if reason is None:
            holds |= self._beyond_limits(segment, slots) | self._truncated(segment, slots)
        if self._settings.expiration.enabled and segment.deadline_ms is not None:
            holds |= segment.deadline_ms[slots] <= now_ms
        for bits, which in _distinct_values(holds):
            alike = slots[which]
            if reason is not None:
                reasons = in_order((reason, Reason.TIME_LIMIT) if bits else (reason,))
            else:
                state = State(int(segment.state[alike[0]]))
                found = (along.row(state).reason for bit, along in _REVIEW if bits & bit)
                reasons = in_order(one for one in found if one is not None)
            if reasons:
                self._remove(segment, alike, reasons, now_ms, step, subscription, detail)

    def _may_stay(self, segment: Segment, slot: int, now_ms: int) -> bool:
        """Return whether no reason holds for which a returned message would leave."""
        settings, sources = self._settings, self._state.sources
        if settings.max_deliveries and segment.deliveries[slot] >= settings.max_deliveries:
            return False
        if settings.max_cancels and segment.cancels_of(slot) > settings.max_cancels:
            return False
        if settings.expiration.enabled and segment.deadline_of(slot) <= now_ms:
            return False
        run = segment.run_at(slot)
        return offset_of(run.offset) + slot - run.slot >= sources[run.source].begin_offset

    def _remove(
        self,
        segment: Segment,
        slots: NDArray[np.intp],
        reasons: tuple[Reason, ...],
        now_ms: int,
        step: Step,
        subscription: str,
        detail: str,
    ) -> None:
        at = 0
        for messages in self._state.sources.messages(segment, slots):
            places = slots[at : at + len(messages)].astype(np.int64) + segment.base
            self._decisions.record_removal(messages, places, reasons, now_ms, step, detail, subscription)
            at += len(messages)
        kind = ChangeKind.EXPIRED if _TIME_LIMIT in reasons else ChangeKind.SETTLED
        self._decisions.apply_change(Change(kind, places_of([(segment, slots)])), step)

    def _truncated(self, segment: Segment, slots: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Return a bit of `_REVIEW` for each message whose record Kafka removed during its lease (C80)."""
        holds = np.zeros(len(slots), np.uint8)
        sources = self._state.sources
        if not any(sources[run.source].begin_offset > offset_of(run.offset) for run in segment.runs):
            return holds
        for at, slot in enumerate(slots.tolist()):
            run = segment.run_at(slot)
            if offset_of(run.offset) + slot - run.slot < sources[run.source].begin_offset:
                holds[at] = 8
        return holds

    def _beyond_limits(self, segment: Segment, slots: NDArray[np.intp]) -> NDArray[np.uint8]:
        """Return, as bits of `_REVIEW`, the limits that forbid another delivery of each message (Q9)."""
        settings = self._settings
        holds = np.zeros(len(slots), np.uint8)
        if settings.max_deliveries:
            holds |= (segment.deliveries[slots] >= settings.max_deliveries).astype(np.uint8) << 1
        if settings.max_cancels and segment.cancels is not None:
            holds |= (segment.cancels[slots] > settings.max_cancels).astype(np.uint8) << 2
        return holds

    def _by_holder(self, slots: Slots) -> list[tuple[str, Slots]]:
        """Return messages by the id of the subscription that holds them, segment by segment; empty id = none does."""
        found: list[tuple[str, Slots]] = []
        for segment, some in slots:
            holders = np.full(len(some), -1, np.int64) if segment.holder is None else segment.holder[some]
            for number, which in _distinct_values(holders):
                holder = self._state.subscription_table.find(number)
                found.append(("" if holder is None else holder.id, [(segment, some[which])]))
        return found


def _distinct_values(column: NDArray[Any]) -> Iterator[tuple[int, NDArray[np.bool_] | slice]]:
    """Yield each distinct value of a column, ascending, with an index of its messages. Often all values are equal."""
    if not len(column):
        return
    if len(column) == 1 or bool((column == column[0]).all()):
        yield int(column[0]), slice(None)
        return
    for value in np.unique(column).tolist():
        yield value, column == value


def _by_row(trigger: Trigger, guard: Guard | None, slots: Slots) -> list[tuple[Row, Slots]]:
    """Return messages by the row that applies to them. States with the same effect are together."""
    along = route(trigger, guard)
    if len(slots) == 1:
        segment, some = slots[0]
        alike = STATES[segment.state[some[0]]] if len(some) == 1 else state_of_all(segment.state[some])
        if alike is not None and along.effects[alike] >= 0:
            return [(along.rows[along.effects[alike]], slots)]
    found: dict[int, Slots] = {}
    for segment, some in slots:
        if not len(some):
            continue
        states = segment.state[some]
        alike = state_of_all(states)
        if alike is not None:
            found.setdefault(along.effects[alike], []).append((segment, some))
            continue
        effects = along.effect_of[states]
        for effect in np.unique(effects).tolist():
            found.setdefault(effect, []).append((segment, some[effects == effect]))
    if -1 in found:
        raise ImpossibleTransition(
            f"{trigger} takes none of {len(found[-1][0][1])} messages in segment {found[-1][0][0].index}"
        )
    return [(along.rows[effect], found[effect]) for effect in sorted(found)]
