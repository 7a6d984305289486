"""Visibility: which messages a user may see and settle. For this user no others exist (X4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.decision import Decisions
from lapse.core.queue.inquiry.matching import YES
from lapse.core.queue.life.message_state import FILLS, THERE
from lapse.core.queue.segments.segment import Segment
from lapse.core.queue.settlement import settlement
from lapse.core.queue.settlement.locator import Located, Locator
from lapse.core.queue.settlement.settlement import Claim, Outcome, Result
from lapse.core.queue.step import Queued


class Visibility:
    """Finds the messages that may be seen: those that a subscription holds, and those that a row filter matches."""

    def __init__(self, decisions: Decisions, locator: Locator) -> None:
        self._state = decisions.state
        self._matching = decisions.matching
        self._locator = locator

    def places_not_held(self, subscription: str, claims: Iterable[Claim]) -> Iterator[list[int]]:
        """See `QueueShard.places_not_held`."""
        for claim in claims:
            for segment, first, stop, _, _ in self._locator.locate(claim, []):
                places = self._not_held(segment, first, stop, subscription) + segment.base
                if len(places):
                    yield places.tolist()

    def offsets_without_place(self, claims: Iterable[Claim], limit: int) -> Iterator[tuple[str, int, list[int]]]:
        """Yield named messages that have no place: settled, expired, scheduled, or never a message (X4).

        Yields:
            Topic, partition and ascending offsets for `judge_bookmarks`, at most `limit` offsets in all. All other
            messages count as invisible.
        """
        for claim in claims:
            offsets: list[int] = []
            missing: list[Outcome] = []
            for segment, first, stop, offset, _ in self._locator.locate(claim, missing):
                gone = np.flatnonzero(~THERE[segment.state[first:stop]])
                offsets += (gone[: limit - len(offsets)] + offset).tolist()
            for one in missing:
                if one.result is not Result.UNKNOWN:
                    offsets += range(one.first, min(one.last + 1, one.first + max(0, limit - len(offsets))))
            limit -= len(offsets)
            if offsets:
                yield claim.topic, claim.partition, sorted(offsets)

    def may_see(self, claim: Claim, row_filter: str) -> bool:
        """Return whether the first message of a claim, which has no place, may be seen."""
        return not row_filter or claim.first in self._matching.matched_offsets(row_filter, claim.topic, claim.partition)

    def visible_among(self, found: Iterator[Queued], claims: Sequence[Claim], row_filter: str) -> Iterator[Queued]:
        """Return those of the named messages that may be seen (X4).

        They were judged before, as `places_not_held` and `offsets_without_place` returned them.
        """
        if not row_filter:
            return found
        visible: set[tuple[str, int, int]] = set()
        for claim in claims:
            source = claim.topic, claim.partition
            for segment, first, stop, offset, _ in self._locator.locate(claim, []):
                slots = self._not_held(segment, first, stop, "")
                matching = slots[self._matching.codes(row_filter, segment.index, slots) == YES]
                visible |= {(*source, each) for each in (matching - first + offset).tolist()}
            visible |= {(*source, each) for each in self._matching.matched_offsets(row_filter, *source)}
        return (one for one in found if (one.topic, one.partition, one.offset) in visible)

    def hide(
        self,
        codes: NDArray[np.uint8],
        segment: Segment,
        first: int,
        offset: int,
        claim: Claim,
        subscription: str,
        row_filter: str,
    ) -> None:
        """Set the result of invisible messages to UNKNOWN, as if they had never been, even if they have left (X4)."""
        stop = first + len(codes)
        visible = self._held_mask(segment, first, stop, subscription)
        slots = self._not_held(segment, first, stop, subscription)
        if len(slots):
            visible[slots - first] = self._matching.codes(row_filter, segment.index, slots) == YES
        for seen in self._matching.matched_offsets(row_filter, claim.topic, claim.partition):
            if offset <= seen < offset + len(codes):
                visible[seen - offset] = True
        codes[~visible] = settlement.UNKNOWN

    def locate(self, claim: Claim, outcomes: list[Outcome], row_filter: str) -> Iterator[Located]:
        """Do what `Locator.locate` does, with UNKNOWN as the outcome of invisible messages without a place (X4)."""
        if not row_filter:
            return self._locator.locate(claim, outcomes)
        return self._locate_visible(claim, outcomes, row_filter)

    def _locate_visible(self, claim: Claim, outcomes: list[Outcome], row_filter: str) -> Iterator[Located]:
        missing: list[Outcome] = []
        for found in self._locator.locate(claim, missing):
            outcomes += self._hide_outcomes(missing, row_filter)
            missing.clear()
            yield found
        outcomes += self._hide_outcomes(missing, row_filter)

    def _hide_outcomes(self, missing: Iterable[Outcome], row_filter: str) -> Iterator[Outcome]:
        """Yield the outcomes of messages without a place, with UNKNOWN for those that may not be seen."""
        for one in missing:
            seen = self._matching.matched_offsets(row_filter, one.topic, one.partition)
            at = one.first
            for offset in sorted(each for each in seen if one.first <= each <= one.last):
                if offset > at:
                    yield one._replace(first=at, last=offset - 1, result=Result.UNKNOWN)
                yield one._replace(first=offset, last=offset)
                at = offset + 1
            if at <= one.last:
                yield one._replace(first=at, result=Result.UNKNOWN)

    def _not_held(self, segment: Segment, first: int, stop: int, subscription: str) -> NDArray[np.intp]:
        """Return the slots of messages that are there and neither leased nor sent to a subscription."""
        there = THERE[segment.state[first:stop]]
        return np.flatnonzero(there & ~self._held_mask(segment, first, stop, subscription)) + first

    def _held_mask(self, segment: Segment, first: int, stop: int, subscription: str) -> NDArray[np.bool_]:
        """Return, for each slot, whether its message is leased or sent to a subscription."""
        state = segment.state[first:stop]
        known = self._state.subscriptions.get(subscription)
        if known is None or segment.holder is None:
            return np.zeros(len(state), bool)
        held: NDArray[np.bool_] = FILLS[state] & (segment.holder[first:stop] == known.number)
        return held
