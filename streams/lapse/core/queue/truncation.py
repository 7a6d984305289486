"""Truncation: messages whose records Kafka has removed, or removed with their whole topic, leave (C40, C42)."""

from __future__ import annotations

from typing import Final

import numpy as np

from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.decision import Decisions, places_of
from lapse.core.queue.message_state import LIVE, UNLEASED, State
from lapse.core.queue.removal import Removals
from lapse.core.queue.schedule import Schedule
from lapse.core.queue.step import Step
from lapse.core.reason import Reason

AT_ONCE: Final = 4096
"""About so many messages leave in one step."""


class Truncation:
    """Takes out what stands in a log no longer, a bounded amount at a time."""

    def __init__(self, decisions: Decisions, removals: Removals, schedule: Schedule) -> None:
        self._decisions = decisions
        self._removals = removals
        self._schedule = schedule
        self._state = decisions.state

    def below(self, topic: str, partition: int, begin_offset: int, now_ms: int, step: Step) -> bool:
        """See `QueueShard.log_begins`."""
        number = self._state.sources.find(topic, partition)
        if number is None:
            return True
        source = self._state.sources[number]
        source.begin_offset = max(source.begin_offset, begin_offset)
        return self._take_out(number, begin_offset, UNLEASED, now_ms, step)

    def not_acknowledged(self, topic: str, partition: int, first: int, last: int) -> list[tuple[int, int]]:
        """See `QueueShard.not_acknowledged`."""
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

    def replace(self, topic: str, epoch: int, now_ms: int, step: Step) -> bool:
        """See `QueueShard.replace_topic`."""
        state = self._state
        numbers = state.sources.of_topic(topic)
        if not all(self._take_out(number, 1 << 62, LIVE, now_ms, step) for number in numbers):
            return False
        for number in numbers:
            self._let_go_of_sent(number, step)
        if step.removals:
            # What leaves in this step may be kept for a letter's sake (C27), and belongs to the old source.
            return False
        for number in numbers:
            for outdated in [at for at, chunk in state.repeats.chunks.items() if chunk.source == number]:
                self._decisions.do(Change(ChangeKind.FORGOTTEN, offset=outdated), step)
            self._decisions.do(Change(ChangeKind.REPLACED, source=number), step)
            self.begins(topic, state.sources[number].partition, epoch)
        return True

    def begins(self, topic: str, partition: int, epoch: int) -> None:
        """See `QueueShard.topic_begins`."""
        sources = self._state.sources
        sources[sources.number(topic, partition)].since_epoch = epoch

    def _let_go_of_sent(self, number: int, step: Step) -> None:
        """Forget what was sent at most once: it left when it was sent, so it gets no letter (C79)."""
        source = self._state.sources[number]
        for piece in list(source.find(0, source.next_offset - 1)):
            if piece.place < 0:
                continue
            for segment, first, stop in list(self._state.spans([(piece.place, piece.last - piece.first + 1)])):
                slots = np.flatnonzero(segment.state[first:stop] == State.SENT) + first
                if len(slots):
                    self._decisions.do(Change(ChangeKind.SETTLED, places_of([(segment, slots)])), step)
            self._state.segments.make_room()

    def _take_out(self, number: int, begin_offset: int, states: tuple[State, ...], now_ms: int, step: Step) -> bool:
        """Let messages of a source below an offset leave that are in some states; False if some are left."""
        state, source, reasons = self._state, self._state.sources[number], (Reason.LOG_TRUNCATED,)
        last = min(begin_offset, source.next_offset) - 1
        left = AT_ONCE
        for piece in list(source.find(0, last)):
            if piece.place < 0:
                continue
            for segment, first, stop in state.spans([(piece.place, piece.last - piece.first + 1)]):
                slots = np.flatnonzero(np.isin(segment.state[first:stop], states)) + first
                if len(slots):
                    self._removals.remove([(segment, slots)], reasons, now_ms, step)
                    left -= len(slots)
                break
            state.segments.make_room()
            if left <= 0:
                return False
        for offset in list(state.scheduled.between(number, 0, last)):
            self._schedule.remove(number, offset, reasons, now_ms, step)
            if not (left := left - 1):
                return False
        for of, offset in [one for one in state.remembered if one[0] == number and one[1] < begin_offset]:
            self._decisions.do(Change(ChangeKind.HONOURED, source=of, offset=offset), step)
        return True
