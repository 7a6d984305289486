"""Spare messages: those that no subscription takes now, and how many more could be taken (Q26, C73, C74)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.expression.syntax import Attribute
from lapse.core.lifetime import NAMES
from lapse.core.queue.arrival.trait import Flag
from lapse.core.queue.decision import Decisions
from lapse.core.queue.delivery.choice import Chooser
from lapse.core.queue.delivery.fairness import Turns
from lapse.core.queue.inquiry.matching import NO, UNKNOWN, YES
from lapse.core.queue.segments.segment import Segment, State
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.queue.subscriptions.subscription import Subscription

_MOST_CHARACTERS: Final = 100_000
"""The greatest total length of filters in an answer, so that it fits into one record."""


@dataclass(frozen=True, slots=True)
class Demand:
    """The demand of the subscriptions with one filter.

    Attributes:
        filter: the filter.
        wanted: how many more messages they would take; negative = more wait than they would take.
    """

    filter: str
    wanted: int


class Spare:
    """Finds messages that a deployment with idle consumers may take over, and changes nothing."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._settings = decisions.settings
        self._matching = decisions.matching

    def unfiltered_demand(self) -> int:
        """Return how many more messages the subscriptions without a filter would take.

        A negative number means that more messages wait than they would take. A paused queue takes none.
        """
        space = sum(one.space for one in self._open_subscriptions() if not one.filter)
        waiting = sum(self._state.outline(index).available for index in self._state.segments)
        return space - waiting - self._incoming_count

    def demands(self) -> list[Demand]:
        """Return the demand of each subscribed filter.

        A waiting message counts against every filter that it matches, or that was not tried on it yet. Filters whose
        result may differ elsewhere, such as filters on the offset, have no demand.
        """
        space: Counter[str] = Counter()
        for one in self._open_subscriptions():
            space[one.filter] += one.space
        demands, characters = [], 0
        for text, most in space.items():
            if not text or not _survives_hand_over(self._matching.predicate(text)):
                continue
            characters += len(text)
            if characters > _MOST_CHARACTERS:
                break
            demands.append(Demand(text, most - self._incoming_count - self._count_waiting(text)))
        return demands

    def places_to_judge(
        self, most: int, least_life_ms: int, now_ms: int, handed_over: bool, text: str, limit: int
    ) -> list[int]:
        """Return at most `limit` places that must be judged before `claims` can return `most` messages."""
        return self._search(most, least_life_ms, now_ms, handed_over, text, limit)[1] if most else []

    def claims(
        self, most: int, least_life_ms: int, now_ms: int, handed_over: bool = False, text: str = ""
    ) -> tuple[list[Claim], bool]:
        """Return available messages, in the order of delivery, for which no subscription here has room.

        Barriers, and messages after them, are left out.

        Args:
            most: the greatest number of messages.
            least_life_ms: messages with at most this remaining lifetime are left out, ms.
            now_ms: the instant, ms since the epoch.
            handed_over: whether to return only messages that came by a transfer, and only those that match no
                subscription here, with room or without. Otherwise these are left out.
            text: a filter under selection that messages must match, up to the first message that is not judged yet;
                empty = all.

        Returns:
            The messages, and whether others must be judged before more can be found.
        """
        found, unknown = self._search(most, least_life_ms, now_ms, handed_over, text, 1)
        return found, bool(unknown)

    # Helpers

    def _open_subscriptions(self) -> Iterable[Subscription]:
        return () if self._state.paused else self._state.subscriptions.values()

    @property
    def _incoming_count(self) -> int:
        return self._state.scheduled.unconfirmed + self._state.scheduled.held

    def _count_waiting(self, text: str) -> int:
        """Return how many waiting messages a filter may match."""
        waiting = 0
        for index in self._state.segments:
            outline = self._state.outline(index)
            if not outline.available or self._matching.matches_none((text,), index, outline.used):
                continue
            if self._matching.is_untried(text, index):
                waiting += outline.available
                continue
            slots = self._decisions.slots_in(self._state.segments.look(index), (State.AVAILABLE,))
            waiting += int(np.count_nonzero(self._matching.codes(text, index, slots) != NO))
        return waiting

    def _search(
        self, most: int, least_life_ms: int, now_ms: int, handed_over: bool, text: str, limit: int
    ) -> tuple[list[Claim], list[int]]:
        """Return claims on spare messages and, with a filter, at most `limit` places that must be judged."""
        filters = {one.filter for one in self._state.subscriptions.values() if one.space or handed_over}
        found: list[Claim] = []
        unknown: list[int] = []
        if self._state.paused or "" in filters:
            return found, unknown
        due_ms = self._decisions.deadlines_count_ms(now_ms)
        if due_ms >= 0:
            due_ms += least_life_ms
        turns = Turns(self._settings.fairness)
        chooser = Chooser(self._state, self._matching, self._settings, turns, due_ms, {text})
        for segment, slots in chooser.in_order():
            slots = self._slots_by_origin(segment, slots, handed_over)
            if text:
                matches, unjudged = self._matched(segment, slots, text, filters)
                first = 0 if unknown else int(np.flatnonzero(unjudged)[0]) if unjudged.any() else len(slots)
                spare = slots[:first][matches[:first]][:most]
                unknown += (slots[unjudged][: limit - len(unknown)] + segment.base).tolist()
            else:
                spare = self._slots_without_match(segment, slots, filters)[:most]
            most -= len(spare)
            for messages in self._state.sources.messages(segment, np.sort(spare)):
                found += [Claim(messages.topic, messages.partition, *both) for both in messages.ranges()]
            if not most or len(unknown) >= limit:
                break
        return found, unknown

    def _slots_by_origin(self, segment: Segment, slots: NDArray[np.intp], handed_over: bool) -> NDArray[np.intp]:
        """Return the slots of messages that came by a transfer, or of those that did not."""
        if segment.flags is None:
            return slots[:0] if handed_over else slots
        came: NDArray[np.bool_] = (segment.flags[slots] & Flag.HANDED_OVER) != 0
        found: NDArray[np.intp] = slots[came == handed_over]
        return found

    def _slots_without_match(self, segment: Segment, slots: NDArray[np.intp], filters: set[str]) -> NDArray[np.intp]:
        for text in filters:
            slots = slots[self._matching.codes(text, segment.index, slots) == NO]
        return slots

    def _matched(
        self, segment: Segment, slots: NDArray[np.intp], text: str, filters: set[str]
    ) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return, for each slot, whether it matches a filter and no other, and whether that is not known yet."""
        codes = self._matching.codes(text, segment.index, slots)
        spare, unjudged = codes == YES, codes == UNKNOWN
        ruled_out = codes == NO
        for other in filters:
            codes = self._matching.codes(other, segment.index, slots)
            spare &= codes == NO
            unjudged |= codes == UNKNOWN
            ruled_out |= codes == YES
        return spare, unjudged & ~ruled_out


def _survives_hand_over(predicate: object) -> bool:
    """Return whether a filter has the same result for a message after it was handed over."""
    attributes: Iterable[Attribute] = getattr(predicate, "attributes", ())
    return all(
        one.name == "KEY" or (one.name == "HEADER" and _is_kept_header(one.argument or "")) for one in attributes
    )


def _is_kept_header(header: str) -> bool:
    """Return whether a header stays unchanged when a message is handed over."""
    return header not in NAMES and not header.startswith("lapse-")
