"""Inquiry: depth, peek, and messages selected by a filter (Q15, Q8, C12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.queue.decision import Decisions
from lapse.core.queue.matching import UNKNOWN
from lapse.core.queue.scheduled import Scheduled
from lapse.core.queue.segment import LIVE, SIZE, Segment, State
from lapse.core.queue.settlement import Claim
from lapse.core.queue.step import Queued

JUDGED_AT_ONCE: Final = 1_000
"""So many messages are read back and judged under the filters at a time."""


class Inquiry:
    """Looks at the messages of a shard, and changes nothing."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state

    def depth(self) -> dict[str, int]:
        """How many messages there are, by state; scheduled and dying ones do not count in the depth."""
        counts = {State.AVAILABLE: 0, State.LEASED: 0, State.DELAYED: 0}
        for index in self._state.segments:
            outline = self._state.outline(index)
            counts[State.AVAILABLE] += outline.available
            if outline.available != outline.held:
                for bound in (State.LEASED, State.DELAYED):
                    counts[bound] += outline.count(bound)
        return {
            "available": counts[State.AVAILABLE],
            "leased": counts[State.LEASED],
            "delayed": counts[State.DELAYED],
            "scheduled": len(self._state.scheduled),
            "dying": len(self._state.dying),
            "depth": sum(counts.values()),
        }

    def peek(self, skip: int, limit: int, text: str) -> Iterator[Queued]:
        """See `QueueShard.peek`."""
        left = limit
        for index in sorted(self._state.segments):
            if left <= 0:
                return
            outline = self._state.outline(index)
            if not text and skip >= (there := sum(outline.count(state) for state in LIVE)):
                skip -= there
                continue
            segment = self._state.segments.look(index)
            slots = self._decisions.slots_in(segment, LIVE, text)
            if skip >= len(slots):
                skip -= len(slots)
                continue
            for slot in slots[skip : skip + left].tolist():
                yield self._queued(segment, slot)
                left -= 1
            skip = 0
        if text:
            return
        rest = sorted(self._state.scheduled.items(), key=self._turn)
        for (number, offset), scheduled in rest[skip : skip + left]:
            source = self._state.sources[number]
            deadline_ms = None if scheduled.deadline_ms == NEVER else scheduled.deadline_ms
            yield Queued(source.topic, source.partition, offset, None, deadline_ms, until_ms=scheduled.at_ms)
            left -= 1
        skip = max(0, skip - len(rest))
        last = sorted(self._state.dying.items(), key=lambda item: (item[1].at_ms, item[0]))
        for (number, offset), dying in last[skip : skip + left]:
            source = self._state.sources[number]
            deadline_ms = None if dying.deadline_ms == NEVER else dying.deadline_ms
            counts = (dying.deliveries, dying.cancels)
            yield Queued(source.topic, source.partition, offset, None, deadline_ms, *counts, dying=True)

    def _turn(self, item: tuple[tuple[int, int], Scheduled]) -> tuple[int, str, int, int]:
        """The order of scheduled messages: by instant, then bookmark (C11)."""
        (number, offset), scheduled = item
        source = self._state.sources[number]
        return scheduled.at_ms, source.topic, source.partition, offset

    def selected(self, text: str) -> list[Claim]:
        """See `QueueShard.selected`."""
        claims: list[Claim] = []
        for index in sorted(self._state.segments):
            segment = self._state.segments.look(index)
            for messages in self._decisions.messages([(segment, self._decisions.slots_in(segment, LIVE, text))]):
                claims += [Claim(messages.topic, messages.partition, *ends) for ends in messages.ranges()]
        return claims

    def to_judge(self, text: str, limit: int) -> list[int]:
        """See `QueueShard.to_judge`."""
        places: list[int] = []
        for index in sorted(self._state.segments):
            if index < self._decisions.matching.judged_to(text):
                continue
            segment = self._state.segments.look(index)
            slots = self._decisions.slots_in(segment, LIVE, text, UNKNOWN)
            places += (slots[: limit - len(places)] + segment.base).tolist()
            if len(places) >= limit:
                self._decisions.matching.note_judged(text, index)
                break
        return places

    def bookmark_of(self, place: int) -> tuple[str, int, int] | None:
        """Topic, partition and offset of the message at a place; None if it is gone."""
        index, slot = divmod(place, SIZE)
        if slot >= self._state.outline(index).used:
            return None
        segment = self._state.segments.look(index)
        run = segment.run_at(slot)
        source = self._state.sources[run.source]
        return source.topic, source.partition, run.offset + slot - run.slot

    def _queued(self, segment: Segment, slot: int) -> Queued:
        run = segment.run_at(slot)
        source = self._state.sources[run.source]
        state, deadline_ms = State(int(segment.state[slot])), segment.deadline_of(slot)
        queued = Queued(
            source.topic,
            source.partition,
            run.offset + slot - run.slot,
            state,
            None if deadline_ms == NEVER else deadline_ms,
            int(segment.deliveries[slot]),
            segment.cancels_of(slot),
        )
        if state is not State.AVAILABLE and segment.holder is not None and segment.until_ms is not None:
            holder = self._state.roll.find(int(segment.holder[slot]))
            queued.subscription = "" if holder is None else holder.id
            queued.until_ms = int(segment.until_ms[slot])
        return queued
