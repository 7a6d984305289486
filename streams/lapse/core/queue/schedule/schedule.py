"""Schedule: scheduled messages materialise, expire or are withdrawn (L5, C11).

Messages that come due beyond the target depth are held, invisible and in order, until there is room (C51).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Any, Final

import numpy as np

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.target_depth import UNLIMITED, TargetDepth
from lapse.core.queue.arrival.trait import NONE, Flag, Traits
from lapse.core.queue.change import Change, with_counts
from lapse.core.queue.decision import Decisions
from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import Guard, Route, Row, Trigger, route
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.rewind import departing
from lapse.core.queue.schedule.scheduled import Scheduled
from lapse.core.queue.segments.segment import SIZE
from lapse.core.queue.step import Messages, Step
from lapse.core.reason import UNCONFIRMED, Reason, in_order
from lapse.core.retry_delay import UNSTATED
from lapse.core.shard.event import ShardEvent
from lapse.core.transfer_counts import NONE as NO_COUNTS
from lapse.core.transfer_counts import Counts

WEIGHT: Final = 4
"""The work on one scheduled message, in units of a message that leaves together with others (C60)."""

SCHEDULED_AT_ONCE: Final = 1_024
"""How many messages without places leave in one step. Each takes about as long as four that have places (C60)."""

_HELD_BACK: Final = route(Trigger.COME_DUE, Guard.NO_ROOM)


class Schedule:
    """Handles scheduled messages in the order in which they become due or expire.

    Attributes:
        read_to_ms: all arrivals up to this instant were taken in, ms since the epoch. Messages that are due later get
            no place yet (C76).
    """

    def __init__(self, decisions: Decisions, target_depth: TargetDepth, transitions: Transitions) -> None:
        self.read_to_ms = NEVER
        self._transitions = transitions
        self._decisions = decisions
        self._target_depth = target_depth
        self._state = decisions.state
        self._agenda = decisions.state.agenda

    def next_due_ms(self) -> int:
        """Return the next instant at which `advance` has something to do, ms since the epoch; `NEVER` without one."""
        agenda = self._agenda
        if agenda.held.first is not None and self._target_depth.room():
            return self.next_place_ms()
        first = agenda.to_come.first
        return NEVER if first is None else first[0]

    def is_due(self, now_ms: int) -> bool:
        """Return whether `advance` has something to do at an instant."""
        due_ms = self.next_due_ms()
        return due_ms <= now_ms and due_ms <= self._until_ms(now_ms)

    def waits_for_arrivals(self, now_ms: int) -> bool:
        """Return whether a message is due at an instant but must wait for earlier arrivals (C76)."""
        until_ms = self._until_ms(now_ms)
        return until_ms < now_ms and self._agenda.has_due(until_ms, now_ms)

    def _until_ms(self, now_ms: int) -> int:
        """Return the instant up to which messages may become due. Without room there are no places to wait for."""
        return min(now_ms, self.read_to_ms) if self._target_depth.room() else now_ms

    def next_place_ms(self) -> int:
        """Return the instant of the first message without a place, held ones included; `NEVER` without one."""
        return self._agenda.next_ms()

    def add(
        self,
        row: Row,
        source: int,
        offset: int,
        at_ms: int,
        deadline_ms: int,
        traits: Traits,
        step: Step,
        facts: dict[str, Any] | None = None,
        counts: Counts = NO_COUNTS,
    ) -> None:
        """Schedule a message by its row; `facts` says what else holds it back (Q17, C51)."""
        self._decisions.apply_change(
            Change(
                row.changes[0],
                source=source,
                offset=offset,
                until_ms=at_ms,
                deadlines_ms=np.array([deadline_ms], np.int64),
                traits=traits,
                facts=with_counts(facts or {}, counts),
            ),
            step,
        )
        held = bool(facts and facts.get("held"))
        self._agenda.plan(at_ms if held else min(at_ms, deadline_ms), source, offset, held=held)

    def advance(self, now_ms: int, step: Step, most: int = UNLIMITED) -> int:
        """Do what is due, for at most `most` messages. Return how many were examined."""
        return self.materialise(self._until_ms(now_ms), self._target_depth.room(), step, most, now_ms)

    def materialise(
        self, until_ms: int, room: int, step: Step, most: int = UNLIMITED, now_ms: int | None = None
    ) -> int:
        """Give due messages places, by instant and then by bookmark (C11), and remove those that expired.

        Messages without room are held, and may expire meanwhile (C12, C51).

        Args:
            until_ms: the instant up to which messages are due, ms since the epoch.
            room: how many may get places.
            step: receives the decisions.
            most: the greatest number to examine.
            now_ms: the instant of the decision, ms since the epoch; None = `until_ms`.

        Returns:
            How many were examined.
        """
        now_ms = until_ms if now_ms is None else now_ms
        on = self._decisions.settings.expiration.enabled
        held: dict[int, list[int]] = {}
        looked = 0
        while looked < most and (heap := self._agenda.next_due_heap(until_ms, room)) is not None:
            looked += 1
            due_ms, _, _, offset, source = heap.pop()
            scheduled = self._state.scheduled.get(source, offset)
            if scheduled is None or scheduled.held is not (heap is self._agenda.held):
                continue
            late = on and scheduled.deadline_ms <= now_ms
            if late and (room or scheduled.deadline_ms <= scheduled.at_ms):
                self.remove(Trigger.DEADLINE, source, offset, now_ms, step)
            elif scheduled.at_ms > due_ms:
                later_ms = scheduled.at_ms if scheduled.deadline_ms <= due_ms else scheduled.due_ms
                self._agenda.plan(later_ms, source, offset)
            elif room:
                room -= 1
                self._change_state(route(Trigger.COME_DUE, Guard.ROOM), source, offset, scheduled.at_ms, now_ms, step)
            else:
                self._change_state(_HELD_BACK, source, offset, scheduled.at_ms, now_ms, step)
                held.setdefault(source, []).append(offset)
        self._record_held_events(held, now_ms, step)
        return looked

    def _change_state(
        self, along: Route, source: int, offset: int, at_ms: int, now_ms: int, step: Step, transfer: str = ""
    ) -> Row:
        """Move a message by its row; `at_ms` is its instant afterwards. Return the row."""
        scheduled = self._state.scheduled[source, offset]
        row = along.row(scheduled.state)
        if row.to is State.AVAILABLE:
            self._enter(row, source, offset, now_ms, step)
            return row
        facts: dict[str, Any] = {}
        if row.to is State.HELD:  # `held` messages are ordered by their instants
            facts = {"held": True}
        elif row.to is State.TRANSFERRING_EARLY:
            at_ms, facts = NEVER, {"transfer": transfer, "then_ms": at_ms, "in_transfer": True}
        traits, counts = scheduled.all_traits(), scheduled.counts
        self.add(row, source, offset, at_ms, scheduled.deadline_ms, traits, step, facts, counts)
        return row

    def _enter(self, row: Row, source: int, offset: int, now_ms: int, step: Step) -> None:
        """Give a message its place. One that was delivered too often elsewhere leaves at once (C23, C73)."""
        scheduled, traits = self._state.scheduled[source, offset], NONE
        handed_over = scheduled.flags & Flag.HANDED_OVER
        if self._decisions.settings.traits.is_needed or scheduled.retry_ms != UNSTATED or handed_over:
            traits = scheduled.traits(self._decisions.settings.traits)
        self._decisions.apply_change(Change(row.changes[0], source=source, offset=offset), step)
        deadlines_ms = np.array([scheduled.deadline_ms], np.int64)
        place = self._state.next_place
        self._decisions.enter(row, source, offset, deadlines_ms, traits, step, scheduled.counts)
        if scheduled.counts != NO_COUNTS:
            index, slot = divmod(place, SIZE)
            self._transitions.review_returned([(self._state.segments[index], np.array([slot]))], now_ms, step)

    def _record_held_events(self, held: dict[int, list[int]], now_ms: int, step: Step) -> None:
        """Write one event for each source about messages that wait for room."""
        for number, offsets in held.items():
            source = self._state.sources[number]
            in_order = np.array(sorted(offsets), np.int64)
            deadlines_ms = [self._state.scheduled[number, offset].deadline_ms for offset in in_order.tolist()]
            none_yet = np.zeros(len(offsets), np.uint32)
            messages = Messages(
                source.topic, source.partition, in_order, np.array(deadlines_ms, np.int64), none_yet, None
            )
            step.events.append(ShardEvent(_HELD_BACK.rows[0].event, now_ms, messages))

    def transfer(self, source: int, offset: int, transfer_id: str, now_ms: int, step: Step) -> None:
        """Hold a message for a transfer (Q17)."""
        at_ms = self._state.scheduled[source, offset].at_ms
        row = self._change_state(route(Trigger.BEGIN_TRANSFER), source, offset, at_ms, now_ms, step, transfer_id)
        self._record_event(row, source, offset, now_ms, step, "", transfer_id)

    def release(self, trigger: Trigger, source: int, offset: int, now_ms: int, step: Step) -> None:
        """Release a message from a transfer: to a place if its instant has come, else to the schedule.

        Without room it is held. A returned message waits in the order of its instant, a new one in that of now (C51).
        """
        scheduled = self._state.scheduled[source, offset]
        at_ms, guard = scheduled.then_ms, Guard.ROOM
        if scheduled.then_ms > now_ms:
            guard = Guard.LATER
        elif self._target_depth.bounded and (self._state.scheduled.held or not self._target_depth.room()):
            at_ms, guard = scheduled.then_ms if scheduled.in_transfer else now_ms, Guard.NO_ROOM
        messages = self._decisions.unplaced_message(source, offset, scheduled.deadline_ms, scheduled.counts)
        row = self._change_state(route(trigger, guard), source, offset, at_ms, now_ms, step)
        if guard is Guard.NO_ROOM:
            self._record_held_events({source: [offset]}, now_ms, step)
        step.events.append(ShardEvent(row.event, now_ms, messages, detail=scheduled.transfer))

    def remove(
        self,
        trigger: Trigger,
        source: int,
        offset: int,
        now_ms: int,
        step: Step,
        *,
        guard: Guard | None = None,
        subscription: str = "",
        detail: str = "",
    ) -> None:
        """Remove a message that never had a place, by its row: for all reasons that hold (C22), or without any."""
        scheduled = self._state.scheduled[source, offset]
        row = route(trigger, guard).row(scheduled.state)
        if row.reason is None:
            self._record_event(row, source, offset, now_ms, step, subscription, detail)
        reasons, detail = self._leave(row, source, offset, now_ms, step, subscription)
        if reasons:
            messages = self._decisions.unplaced_message(source, offset, scheduled.deadline_ms, scheduled.counts)
            self._decisions.refuse_one(messages, reasons, now_ms, step, detail)

    def purge(
        self,
        now_ms: int,
        step: Step,
        trigger: Trigger,
        guard: Guard | None = None,
        most: int = UNLIMITED,
        matches: Callable[[int, int], bool] = lambda source, offset: True,
    ) -> list[Scheduled]:
        """Remove messages that a trigger applies to, for all reasons that hold (C37, C60).

        Args:
            now_ms: the instant, ms since the epoch.
            step: receives the decisions.
            trigger: the trigger.
            guard: the guard that chooses the rows.
            most: the greatest number to remove.
            matches: returns whether to remove a message, given source number and offset.

        Returns:
            The removed messages. If there are `most` of them, others may be left to remove.
        """
        along = route(trigger, guard)
        wanted = (item for item in self._state.scheduled.items() if along.takes[item[1].state] and matches(*item[0]))
        gone = list(islice(wanted, most))
        alike: dict[tuple[int, tuple[Reason, ...], str], list[tuple[int, int, Counts]]] = {}
        for (source, offset), one in sorted(gone, key=_bookmark_key):
            why = self._leave(along.row(one.state), source, offset, now_ms, step)
            alike.setdefault((source, *why), []).append((offset, one.deadline_ms, one.counts))
        for (source, reasons, detail), messages in alike.items():
            self._decisions.refuse_all(source, messages, reasons, now_ms, step, detail)
        return [one for _, one in gone]

    def _leave(
        self, row: Row, source: int, offset: int, now_ms: int, step: Step, subscription: str = ""
    ) -> tuple[tuple[Reason, ...], str]:
        """Take a message out of the schedule by its row. Return all reasons that hold, if any, and the fault (C22)."""
        scheduled = self._state.scheduled[source, offset]
        never = scheduled.state is State.UNCONFIRMED
        if never or departing.goes_elsewhere(row.trigger, subscription):
            departing.note_departed(self._decisions, source, [(offset, offset)], step, never=never)
        self._decisions.apply_change(Change(row.changes[0], source=source, offset=offset), step)
        if row.reason is None:
            return (), ""
        late = scheduled.deadline_ms <= self._decisions.deadlines_count_ms(now_ms)
        return in_order((row.reason, Reason.TIME_LIMIT) if late else (row.reason,)), UNCONFIRMED if never else ""

    def _record_event(
        self, row: Row, source: int, offset: int, now_ms: int, step: Step, subscription: str, detail: str
    ) -> None:
        scheduled = self._state.scheduled[source, offset]
        messages = self._decisions.unplaced_message(source, offset, scheduled.deadline_ms, scheduled.counts)
        step.events.append(ShardEvent(row.event, now_ms, messages, subscription, detail))


def _bookmark_key(item: tuple[tuple[int, int], Scheduled]) -> tuple[int, int]:
    return item[0]
