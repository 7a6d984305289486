"""Truncation: removes messages whose records, or whose whole topic, Kafka no longer has (C40, C42)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.generation import position_of
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions, places_of
from lapse.core.queue.life.message_state import State
from lapse.core.queue.life.table import Guard, Trigger, route
from lapse.core.queue.life.transitions import Transitions
from lapse.core.queue.rewind import departing
from lapse.core.queue.schedule.schedule import Schedule
from lapse.core.queue.segments.segment import Segment
from lapse.core.queue.settlement.locator import Locator
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.step import Messages, Step
from lapse.core.shard.event import EventKind

AT_ONCE: Final = 4096
"""About how many messages may leave in one step."""

UNREAD: Final = route(Trigger.TRUNCATE).row(State.UNREAD)
"""The row of messages that Kafka removed before they were taken in. They may be millions, so ranges name them (C80)."""


class Truncation:
    """Removes messages whose records are no longer in the log, a limited number at a time."""

    def __init__(self, decisions: Decisions, transitions: Transitions, schedule: Schedule, locator: Locator) -> None:
        self._decisions = decisions
        self._transitions = transitions
        self._locator = locator
        self._schedule = schedule
        self._state = decisions.state

    def remove_below(self, topic: str, partition: int, begin_offset: int, now_ms: int, step: Step) -> bool:
        """See `QueueShard.truncate_below`."""
        number = self._state.sources.find(topic, partition)
        if number is None:
            return True
        source = self._state.sources[number]
        source.begin_offset = max(source.begin_offset, begin_offset)
        return self._remove_below_offset(number, begin_offset, Trigger.TRUNCATE, now_ms, step)

    def without_acknowledged(self, topic: str, partition: int, first: int, last: int) -> list[tuple[int, int]]:
        """See `QueueShard.without_acknowledged`."""
        number = self._state.sources.find(topic, partition)
        if number is None:
            return [(first, last)]
        settled = sorted(at for of, at in self._state.remembered if of == number and first <= at <= last)
        ranges: list[tuple[int, int]] = []
        for offset in settled:
            if offset > first:
                ranges.append((first, offset - 1))
            first = offset + 1
        return [*ranges, (first, last)] if first <= last else ranges

    def replace_topic(self, topic: str, epoch: int, now_ms: int, step: Step) -> bool:
        """Remove the messages of a topic that was deleted and created again. It is read from its beginning (C42).

        Args:
            topic: name of the topic.
            epoch: number of the current epoch; settlements of deliveries from earlier epochs are stale from now on.
            now_ms: the instant, ms since 1970.
            step: receives the removals.

        Returns:
            False if messages are left. Then call it again with the next step, and do nothing else in between.
        """
        state = self._state
        numbers = state.sources.numbers_of_topic(topic)
        if not all(
            self._remove_below_offset(number, 1 << 62, Trigger.REPLACE_TOPIC, now_ms, step) for number in numbers
        ):
            return False
        if step.removals:
            # Messages that leave in this step may be kept until their letters are safe (C27), as the old source's.
            return False
        for number in numbers:
            for outdated in [at for at, chunk in state.repeats.chunks.items() if chunk.source == number]:
                self._decisions.apply_change(Change(ChangeKind.FORGOTTEN, offset=outdated), step)
            self._decisions.apply_change(Change(ChangeKind.REPLACED, source=number), step)
            self.note_topic_epoch(topic, state.sources[number].partition, epoch)
        return True

    def note_topic_epoch(self, topic: str, partition: int, epoch: int) -> None:
        """See `QueueShard.note_topic_epoch`."""
        sources = self._state.sources
        sources[sources.number(topic, partition)].since_epoch = epoch

    def remove_recordless(
        self, trigger: Trigger, claim: Claim, now_ms: int, step: Step, handed_out: bool, detail: str = ""
    ) -> None:
        """Remove messages whose records Kafka no longer has (C40), or that must not be processed (X7).

        If they were `handed_out` in this step, the delivery will reach nobody. So it neither counts nor protects the
        messages.
        """
        self._state.segments.make_room()
        for segment, first, stop, _, _ in self._locator.locate(claim, []):
            if handed_out:
                self._undeliver(
                    segment, self._transitions.slots_to_change(Trigger.UNDELIVER, segment, first, stop), step
                )
            slots = self._transitions.slots_to_change(trigger, segment, first, stop)
            if len(slots):
                self._transitions.apply_trigger(trigger, [(segment, slots)], now_ms, step, detail=detail)
        if handed_out:
            self._replace_release(trigger, claim, now_ms, step, detail)

    def _replace_release(self, trigger: Trigger, claim: Claim, now_ms: int, step: Step, detail: str) -> None:
        """Report a barrier that this step releases as removed.

        If Kafka no longer has its record, nobody gets it, and the release is undone (C40). If only the target of
        forwarding refuses it, all others get it, and a letter keeps what the target lacks (D3).
        """
        named = {"topic": claim.topic, "partition": claim.partition, "offset": claim.first}
        changed_at = next(
            (
                at
                for at, change in enumerate(step.changes)
                if change.kind is ChangeKind.RELEASED and named.items() <= change.facts.items()
            ),
            None,
        )
        event_at = next(
            (
                at
                for at, event in enumerate(step.events)
                if event.kind is EventKind.BARRIER_RELEASED and event.messages is not None
                if _names(event.messages, claim)
            ),
            None,
        )
        if changed_at is None or event_at is None:
            return
        change, event = step.changes[changed_at], step.events.pop(event_at)
        assert event.messages is not None
        guard = Guard.RECORDLESS if trigger is Trigger.TRUNCATE else Guard.REFUSED
        row = route(Trigger.RELEASE, guard).row(State.AVAILABLE)
        assert row.reason is not None
        if row.changes[0] is not change.kind:
            step.changes[changed_at] = Change(row.changes[0], change.places)
        elif receivers := ", ".join(change.facts["receivers"]):
            detail = f"{detail}; the barrier was released to {receivers}"
        places = np.array([place for place, _ in change.places], np.int64)
        self._decisions.record_removal(event.messages, places, (row.reason,), now_ms, step, detail)

    def _undeliver(self, segment: Segment, slots: NDArray[np.intp], step: Step) -> None:
        for of_state in (State.LEASED, State.SENT):
            matching = slots[segment.state[slots] == of_state]
            if len(matching):
                kind = route(Trigger.UNDELIVER).row(of_state).changes[0]
                self._decisions.apply_change(Change(kind, places_of([(segment, matching)])), step)

    def _remove_below_offset(self, number: int, begin_offset: int, trigger: Trigger, now_ms: int, step: Step) -> bool:
        """Remove a source's messages below an offset to which a trigger applies. Return False if some are left."""
        state, source = self._state, self._state.sources[number]
        last = min(begin_offset, source.next_offset) - 1
        left = AT_ONCE
        ends = [(position_of(0, one), position_of(last, one)) for one in range(source.generation + 1)]
        for piece in [piece for low, high in ends for piece in source.find(low, high)]:
            if piece.place < 0:
                continue
            for segment, first, stop in state.spans([(piece.place, piece.last - piece.first + 1)]):
                slots = self._transitions.slots_to_change(trigger, segment, first, stop)
                if len(slots):
                    self._transitions.apply_trigger(trigger, [(segment, slots)], now_ms, step)
                    left -= len(slots)
                break
            state.segments.make_room()
            if left <= 0:
                return False
        for offset in [offset for low, high in ends for offset in state.scheduled.between(number, low, high)]:
            self._schedule.remove(trigger, number, offset, now_ms, step)
            if not (left := left - 1):
                return False
        departing.forget_below(self._decisions, number, begin_offset, step)
        forgets = route(trigger).row(State.REMEMBERED).changes[0]
        for of, offset in [one for one in state.remembered if one[0] == number and one[1] < begin_offset]:
            self._decisions.apply_change(Change(forgets, source=of, offset=offset), step)
        return True


def _names(messages: Messages, claim: Claim) -> bool:
    """Return whether a claim names a single message."""
    of_claim = claim.topic, claim.partition, claim.first
    return (messages.topic, messages.partition, int(messages.offsets[0])) == of_claim
