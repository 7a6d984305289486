"""Locator: finds the places of the messages that a claim names, and the results of those without a place."""

from __future__ import annotations

from collections.abc import Iterator

from lapse.core.generation import generation_of, position_of
from lapse.core.queue.arrival.source import Source
from lapse.core.queue.segments.segment import SIZE, Segment
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.settlement import Claim, Outcome, Result
from lapse.core.queue.state import QueueState

Located = tuple[Segment, int, int, int, int]
"""Segment, first slot, slot after the last, offset of the first, and the code SETTLED."""

Place = tuple[Segment, int]
"""Segment and slot."""


class Locator:
    """Finds messages by bookmark."""

    def __init__(self, state: QueueState) -> None:
        self._state = state

    def locate(self, claim: Claim, outcomes: list[Outcome]) -> Iterator[Located]:
        """Find the places that a claim names. Messages without a place get their outcomes, in order.

        Yields:
            See `Located`.
        """
        topic, partition, first, last = claim[:4]
        number = self._state.sources.find(topic, partition)
        if number is None:
            outcomes.append(Outcome(topic, partition, first, last, Result.UNKNOWN))
            return
        source = self._state.sources[number]
        # All pieces are found first, since the caller may settle messages meanwhile, which can drop a segment.
        seen_to = source.next_unread_position(first)
        if first == last and first < seen_to and (alone := self._find_single(source, first)) is not None:
            segment, slot = alone
            yield segment, slot, slot + 1, first, settlement.SETTLED
            self._state.segments.make_room()
            return
        for piece in list(source.find(first, min(last, seen_to - 1))):
            if piece.place < 0:
                outcomes.extend(self._missing(number, piece.first, piece.last))
                continue
            for segment, slot, stop in list(self._state.spans([(piece.place, piece.last - piece.first + 1)])):
                yield segment, slot, stop, piece.first, settlement.SETTLED
                self._state.segments.make_room()
                break
            else:
                outcomes.extend(self._missing(number, piece.first, piece.last))
        if last >= seen_to:
            outcomes.append(Outcome(topic, partition, max(first, seen_to), last, Result.UNKNOWN))

    def find_named(self, claim: Claim) -> Place | None:
        """Return segment and slot of the one message that a claim names; None if it has no place.

        Unlike with `locate`, the caller calls `make_room` afterwards.
        """
        number = self._state.sources.find(claim.topic, claim.partition)
        if number is None:
            return None
        source, position = self._state.sources[number], claim.first
        return None if position >= source.next_unread_position(position) else self._find_single(source, position)

    def _find_single(self, source: Source, position: int) -> Place | None:
        """Find the place of one message, as most claims name one; None if it has no place."""
        run = source.find_run(position)
        if run is None or self._state.as_of:
            return None
        offset, place, _ = run
        index, slot = divmod(place + position - offset, SIZE)
        segment = self._state.segments.find(index)
        return None if segment is None else (segment, slot)

    def _missing(self, number: int, first: int, last: int) -> Iterator[Outcome]:
        """Yield the outcomes of offsets without a place: scheduled, expired, settled before, or of an older shard."""
        source = self._state.sources[number]
        marks: list[tuple[int, int, Result]] = [
            (
                offset,
                offset,
                Result.TRANSFERRING if self._state.scheduled[number, offset].in_transfer else Result.SCHEDULED,
            )
            for offset in self._state.scheduled.between(number, first, last)
        ]
        marks += [
            (max(first, low), min(last, high), Result.TIME_LIMIT)
            for of, low, high in self._state.expired
            if of == number and low <= last and high >= first
        ]
        at = first
        for low, high, result in sorted(marks):
            if low > at:
                yield from left_before(source, at, low - 1)
            if high >= at:
                yield Outcome(source.topic, source.partition, max(at, low), high, result)
                at = high + 1
        if at <= last:
            yield from left_before(source, at, last)


def left_before(source: Source, first: int, last: int) -> Iterator[Outcome]:
    """Yield the outcomes of messages that are not in the shard any more: what it never read is not known to it (C81).

    Args:
        source: their source.
        first: first position.
        last: last position, of the same generation.
    """
    begun = position_of(source.begun_offset, generation_of(first))
    if first < begun:
        yield Outcome(source.topic, source.partition, first, min(last, begun - 1), Result.UNKNOWN)
    if last >= begun:
        yield Outcome(source.topic, source.partition, max(first, begun), last, Result.ALREADY_SETTLED)
