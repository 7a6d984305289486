"""Inquiry: depth and peek (Q15, C12)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.decision import Decisions
from lapse.core.queue.life.message_state import EXPIRES, LIVE, THERE, State
from lapse.core.queue.rates.rate_wait import RateWait
from lapse.core.queue.removal.pending_letter import PendingLetter
from lapse.core.queue.schedule.scheduled import Scheduled
from lapse.core.queue.segments.segment import SIZE, Segment
from lapse.core.queue.settlement.locator import Locator
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.step import Queued

_SCHEDULED: Final = "scheduled"
_DYING: Final = "dying"
PLACED: Final = frozenset(state.name.lower() for state in LIVE)
"""Names, in a peek, of the states of messages with a place."""

_WITHOUT_PLACE: Final = {
    _SCHEDULED: State.SCHEDULED,
    "held": State.HELD,
    "unconfirmed": State.UNCONFIRMED,
    "transferring": State.TRANSFERRING_EARLY,
}
"""States of messages without a place, by their names in a peek."""


class Inquiry:
    """Answers questions about the messages of a shard, and changes nothing."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._locator = Locator(decisions.state)

    def depth(self, now_ms: int = -1) -> dict[str, int]:
        """Return how many messages there are, by state. Messages without a place do not count in `depth`."""
        counts = dict.fromkeys(LIVE, 0)
        due_ms = self._decisions.deadlines_count_ms(now_ms)
        for index in self._state.segments:
            outline = self._state.outline(index)
            if outline.min_deadline_ms <= due_ms:
                there = _unexpired(self._state.segments.look(index), due_ms)
                counts = {state: count + there[state] for state, count in counts.items()}
                continue
            counts[State.AVAILABLE] += outline.available
            if outline.available != outline.occupied:
                for bound in LIVE[1:]:
                    counts[bound] += outline.count(bound)
        scheduled = self._state.scheduled
        return {
            "available": counts[State.AVAILABLE],
            "leased": counts[State.LEASED],
            "delayed": counts[State.DELAYED],
            "transferring": counts[State.TRANSFERRING] + scheduled.in_transfer,
            "scheduled": len(scheduled) - scheduled.in_transfer - scheduled.unconfirmed - scheduled.held,
            "held": scheduled.held,
            "unconfirmed": scheduled.unconfirmed,
            "dying": len(self._state.pending),
            "depth": sum(counts.values()),
        }

    def count_before_barrier(self) -> dict[str, int]:
        """Return how many messages and refused letters the first barrier waits for; empty if for none (C48)."""
        if not self._state.index.barriers or self._decisions.settings.traits.barrier is None:
            return {}
        barrier = self._state.index.barriers[0]
        index, slot = divmod(barrier, SIZE)
        waiting = sum(self._state.outline(one).occupied for one in self._state.segments if one < index)
        segment = self._state.segments.look(index)
        waiting += int(THERE[segment.state[:slot]].sum())
        letters = sum(one.place <= barrier for one in self._state.pending.values())
        waits_for = {"before_barrier": waiting, "dying_before_barrier": letters}
        return {name: count for name, count in waits_for.items() if count}

    def _barrier_wait_texts(self) -> dict[int, str]:
        """Return, by place, a text that says what a barrier waits for; none if it waits only for a subscription."""
        if self._decisions.settings.traits.barrier is None:
            return {}
        waits = dict.fromkeys(self._state.index.barriers[1:], "the barrier before it")
        figures = self.count_before_barrier()
        parts = []
        if messages := figures.get("before_barrier"):
            parts.append(f"{messages:,} message{'s' * (messages > 1)} before it")
        if letters := figures.get("dying_before_barrier"):
            parts.append(f"{letters:,} refused dead letter{'s' * (letters > 1)} of messages before it")
        if parts:
            waits[self._state.index.barriers[0]] = " and ".join(parts)
        return waits

    def _slots_in_states(
        self, segment: Segment, states: Sequence[State], now_ms: int, text: str = ""
    ) -> NDArray[np.intp]:
        """Return the slots in some states, without messages past their deadline that have not left yet (L11)."""
        slots = self._decisions.slots_in(segment, states, text)
        due_ms = self._decisions.deadlines_count_ms(now_ms)
        if segment.min_deadline_ms > due_ms or segment.deadline_ms is None:
            return slots
        expires = EXPIRES[segment.state[slots]]
        return slots[~expires | (segment.deadline_ms[slots] > due_ms)]

    def oldest(self, now_ms: int) -> int | None:
        """Return the place of the first message in the depth that has not expired; None if there is none.

        A message that was sent at most once has left, and is not in the depth (C79).
        """
        first, due_ms = self._state.first_occupied(), self._decisions.deadlines_count_ms(now_ms)
        if first is None:
            return None
        outline = self._state.outline(first // SIZE)
        if outline.min_deadline_ms > due_ms and not outline.count(State.SENT):
            return first
        for index in sorted(self._state.segments):
            if index >= first // SIZE and self._state.outline(index).occupied:
                segment = self._state.segments.look(index)
                slots = self._slots_in_states(segment, LIVE, now_ms)
                if len(slots):
                    return segment.base + int(slots[0])
        return None

    def matching_depth(self, text: str, now_ms: int) -> dict[str, int]:
        """Return the depth of messages that match a filter under selection. Dying messages are not counted (C82)."""
        counts = dict.fromkeys(LIVE, 0)
        for index in self._state.segments:
            segment = self._state.segments.look(index)
            for state in LIVE:
                counts[state] += len(self._slots_in_states(segment, (state,), now_ms, text))
        figures = {state.name.lower(): count for state, count in counts.items()} | {"depth": sum(counts.values())}
        figures |= dict.fromkeys(("scheduled", "held", "unconfirmed"), 0)
        for (number, offset), scheduled in self.scheduled(text):
            figures[self.queued_scheduled(number, offset, scheduled).state_name] += 1
        return figures

    def scheduled(self, text: str = "", wanted: str = "") -> list[tuple[tuple[int, int], Scheduled]]:
        """Return messages without a place, in order.

        With a filter under selection, only those that are known to match. With a state, only those in it.
        """
        items = self._in_state(wanted)
        if text:
            seen = [
                self._decisions.matching.matched_offsets(text, one.topic, one.partition) for one in self._state.sources
            ]
            items = [item for item in items if item[0][1] in seen[item[0][0]]]
        return sorted(items, key=self._sort_key)

    def _in_state(self, wanted: str) -> Iterable[tuple[tuple[int, int], Scheduled]]:
        """Return messages without a place that are in a state; all if none is named."""
        all_ = self._state.scheduled
        if not wanted or (wanted == _SCHEDULED and not all_.in_transfer + all_.unconfirmed + all_.held):
            return all_.items()
        if wanted not in _WITHOUT_PLACE:
            return ()
        return (item for item in all_.items() if item[1].state is _WITHOUT_PLACE[wanted])

    def _first_scheduled(self, most: int, wanted: str) -> list[tuple[tuple[int, int], Scheduled]]:
        """Return the first messages without a place, in order, without sorting very many others (C60)."""
        all_ = self._state.scheduled
        if most <= 0:
            return []
        if most >= len(all_):
            return self.scheduled(wanted=wanted)
        items = list(self._in_state(wanted))
        if most >= len(items):
            return sorted(items, key=self._sort_key)
        source_offsets = [source_offset for source_offset, _ in items]
        instants = np.fromiter((one.at_ms for _, one in items), np.int64, len(source_offsets))
        first = np.flatnonzero(instants <= np.partition(instants, most - 1)[most - 1])
        if len(first) > most:  # bookmarks order messages of one instant, so the lowest offsets of each source suffice
            offsets = np.fromiter((source_offsets[at][1] for at in first.tolist()), np.int64, len(first))
            sources = np.fromiter((source_offsets[at][0] for at in first.tolist()), np.int64, len(first))
            order = np.lexsort((offsets, instants[first], sources))
            beginnings = np.flatnonzero(np.diff(sources[order], prepend=-1))
            ends = [*beginnings[1:].tolist(), len(order)]
            parts = [
                order[begin : min(end, begin + most)] for begin, end in zip(beginnings.tolist(), ends, strict=True)
            ]
            first = first[np.concatenate(parts)]
        return sorted(((source_offsets[at], all_[source_offsets[at]]) for at in first.tolist()), key=self._sort_key)

    def matches(self, text: str, number: int, offset: int) -> bool:
        """Return whether a message without a place is known to match a filter under selection."""
        source = self._state.sources[number]
        return offset in self._decisions.matching.matched_offsets(text, source.topic, source.partition)

    def peek(
        self,
        skip: int,
        limit: int,
        text: str,
        now_ms: int,
        refused: Callable[[tuple[int, int]], str],
        wanted: str = "",
    ) -> Iterator[Queued]:
        """See `QueueShard.peek`."""
        left, due_ms = limit, self._decisions.deadlines_count_ms(now_ms)
        placed = [state for state in LIVE if wanted in ("", state.name.lower())]
        waits, rate_wait = self._barrier_wait_texts(), RateWait(self._decisions, now_ms)
        for index in sorted(self._state.segments) if placed else ():
            if left <= 0:
                return
            outline = self._state.outline(index)
            plain = not text and outline.min_deadline_ms > due_ms
            if plain and skip >= (there := sum(outline.count(state) for state in placed)):
                skip -= there
                continue
            segment = self._state.segments.look(index)
            slots = self._slots_in_states(segment, placed, now_ms, text)
            if skip >= len(slots):
                skip -= len(slots)
                continue
            for slot in slots[skip : skip + left].tolist():
                queued = self.queued(segment, slot)
                queued.waits_for = waits.get(segment.base + slot) or rate_wait.find_waits(segment, slot)
                yield queued
                left -= 1
            skip = 0
        rest = self.scheduled(text, wanted) if text else self._first_scheduled(skip + left, wanted)
        for (number, offset), scheduled in rest[skip : skip + left]:
            yield self.queued_scheduled(number, offset, scheduled)
            left -= 1
        if text or wanted not in ("", _DYING):
            return
        skip = skip if wanted else max(0, skip - len(self._state.scheduled))
        last = sorted(self._state.pending.items(), key=lambda item: (item[1].at_ms, item[0]))
        for source_offset, dying in last[skip : skip + left]:
            yield self._queued_dying(source_offset, dying, refused)

    def find_named(
        self, claims: Sequence[Claim], now_ms: int, refused: Callable[[tuple[int, int]], str]
    ) -> Iterator[Queued]:
        """Yield the messages of some bookmarks, in any state; `now_ms` and `refused` are those of `peek`."""
        waits, rate_wait = self._barrier_wait_texts(), RateWait(self._decisions, now_ms)
        for claim in claims:
            for segment, first, stop, _, _ in self._locator.locate(claim, []):
                for slot in range(first, stop):
                    if THERE[segment.state[slot]]:
                        queued = self.queued(segment, slot)
                        queued.waits_for = waits.get(segment.base + slot) or rate_wait.find_waits(segment, slot)
                        yield queued
            number = self._state.sources.find(claim.topic, claim.partition)
            if number is not None:
                for offset in self._state.scheduled.between(number, claim.first, claim.last):
                    yield self.queued_scheduled(number, offset, self._state.scheduled[number, offset])
        for (number, offset), dying in self._state.pending.items():
            source = self._state.sources[number]
            if any(
                claim[:2] == (source.topic, source.partition) and claim.first <= offset <= claim.last
                for claim in claims
            ):
                yield self._queued_dying((number, offset), dying, refused)

    def _queued_dying(
        self, source_offset: tuple[int, int], dying: PendingLetter, refused: Callable[[tuple[int, int]], str]
    ) -> Queued:
        source = self._state.sources[source_offset[0]]
        deadline_ms = None if dying.deadline_ms == NEVER else dying.deadline_ms
        queued = Queued(
            source.topic, source.partition, source_offset[1], None, deadline_ms, dying.deliveries, dying.cancels
        )
        queued.pending, queued.waits_for = True, refused(source_offset)
        return queued

    def _sort_key(self, item: tuple[tuple[int, int], Scheduled]) -> tuple[int, str, int, int]:
        """Return the sort key of a scheduled message: its instant, then its bookmark (C11)."""
        (number, offset), scheduled = item
        source = self._state.sources[number]
        return scheduled.at_ms, source.topic, source.partition, offset

    def bookmark_of(self, place: int) -> tuple[str, int, int] | None:
        """Return topic, partition and offset of the message at a place; None if its segment does not hold the place."""
        index, slot = divmod(place, SIZE)
        if slot >= self._state.outline(index).used:
            return None
        segment = self._state.segments.look(index)
        run = segment.run_at(slot)
        source = self._state.sources[run.source]
        return source.topic, source.partition, run.offset + slot - run.slot

    def queued(self, segment: Segment, slot: int) -> Queued:
        """Return a message with a place as a peek shows it."""
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
            number, until_ms = int(segment.holder[slot]), int(segment.until_ms[slot])
            if state is State.TRANSFERRING:
                queued.subscription, queued.until_ms = self._state.transfers.name(number), until_ms or None
            else:
                holder = self._state.subscription_table.find(number)
                queued.subscription, queued.until_ms = "" if holder is None else holder.id, until_ms
                if state is State.LEASED and segment.since_ms is not None:
                    queued.since_ms = int(segment.since_ms[slot]) or None
        return queued

    def queued_scheduled(self, number: int, offset: int, scheduled: Scheduled) -> Queued:
        """Return a message that is not visible yet as a peek shows it; `number` is its source's."""
        source = self._state.sources[number]
        deadline_ms = None if scheduled.deadline_ms == NEVER else scheduled.deadline_ms
        state = State.TRANSFERRING if scheduled.in_transfer else None
        queued = Queued(source.topic, source.partition, offset, state, deadline_ms, until_ms=scheduled.at_ms)
        queued.held = scheduled.held
        queued.deliveries, queued.cancels = scheduled.counts
        if scheduled.transfer:
            queued.subscription, queued.until_ms = scheduled.transfer, scheduled.then_ms or None
            queued.confirmed = scheduled.in_transfer
        return queued


def _unexpired(segment: Segment, due_ms: int) -> list[int]:
    """Return the number of a segment's messages by state, without those that have expired by `due_ms` (L11)."""
    states = segment.state[: segment.used]
    if segment.deadline_ms is not None:
        states = states[~(EXPIRES[states] & (segment.deadline_ms[: segment.used] <= due_ms))]
    return list(map(int, np.bincount(states, minlength=len(State))))
