"""Selection: the messages that a filter under selection selects, for settlements and transfers by filter (Q8, C12)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from lapse.core.queue.decision import Decisions
from lapse.core.queue.inquiry.inquiry import Inquiry
from lapse.core.queue.inquiry.matching import UNKNOWN
from lapse.core.queue.life.message_state import LIVE, State
from lapse.core.queue.segments.segment import NOBODY
from lapse.core.queue.settlement.settlement import Claim

_SETTLED_BY_FILTER: Final = (*LIVE, State.SENT)
"""States of messages with a place that a settlement by filter can name."""

_ALL: Final = 1 << 62

JUDGED_AT_ONCE: Final = 1_000
"""The greatest number of messages that are read back and judged under the filters at a time."""


class Selection:
    """Selects messages by what is known of which messages match a filter, and changes nothing."""

    def __init__(self, decisions: Decisions, inquiry: Inquiry) -> None:
        self._decisions = decisions
        self._inquiry = inquiry
        self._state = decisions.state

    def selected(self, text: str, sent_to: int | None = None) -> list[Claim]:
        """Return messages in the horizon that match a filter; all once `places_to_judge` returns none (Q8).

        `sent_to` adds those sent to the subscription of this number; `NOBODY` = to any, None = none (C18).
        """
        return self.selected_part(text, -1, _ALL, sent_to)[0]

    def selected_part(self, text: str, behind: int, most: int, sent_to: int | None) -> tuple[list[Claim], int | None]:
        """Do as `selected` for the segments after `behind`, up to about `most` messages or `most / 8` ranges (C60).

        Returns:
            The claims, and the `behind` of the next part; None = there is none.
        """
        claims: list[Claim] = []
        count = 0
        for index in sorted(index for index in self._state.segments if index > behind):
            segment = self._state.segments.look(index)
            slots = self._decisions.slots_in(segment, LIVE if sent_to is None else _SETTLED_BY_FILTER, text)
            if sent_to not in (None, NOBODY) and segment.holder is not None:
                slots = slots[(segment.state[slots] != State.SENT) | (segment.holder[slots] == sent_to)]
            slots = self._decisions.horizon.slots_within(segment, slots)
            for messages in self._decisions.messages([(segment, slots)]):
                count += len(messages)
                claims += [Claim(messages.topic, messages.partition, *ends, found=True) for ends in messages.ranges()]
            if count >= most or len(claims) >= most // 8:
                return claims, index
        return claims, None

    def selected_scheduled(self, text: str) -> list[Claim]:
        """Do the same for messages without a place, except unconfirmed ones, complete after `scheduled_to_judge`."""
        claims: list[Claim] = []
        for (number, offset), scheduled in self._inquiry.scheduled(text):
            within = self._decisions.horizon.contains(number, offset)
            if within and (scheduled.in_transfer or not scheduled.transfer):
                source = self._state.sources[number]
                claims.append(Claim(source.topic, source.partition, offset, offset, found=True))
        return claims

    def places_to_judge(self, text: str, limit: int = JUDGED_AT_ONCE) -> list[int]:
        """Return places that must be judged under a filter under selection."""
        places: list[int] = []
        for index in sorted(self._state.segments):
            if index < self._decisions.matching.first_unjudged_segment(text):
                continue
            segment = self._state.segments.look(index)
            slots = self._decisions.slots_in(segment, _SETTLED_BY_FILTER, text, UNKNOWN)
            places += (slots[: limit - len(places)] + segment.base).tolist()
            if len(places) >= limit:
                self._decisions.matching.note_judged(text, index)
                break
        return places

    def scheduled_to_judge(self, text: str) -> Iterator[tuple[str, int, list[int]]]:
        """Yield topic, partition, offsets of messages without a place that no filter under selection judged (C82)."""
        by_source: dict[int, list[int]] = {}
        for number, offset in self._state.scheduled.source_offsets():
            by_source.setdefault(number, []).append(offset)
        for number, offsets in by_source.items():
            source = self._state.sources[number]
            offsets.sort()
            offsets = self._decisions.matching.untried_offsets(text, source.topic, source.partition, offsets)
            for first in range(0, len(offsets), JUDGED_AT_ONCE):
                yield source.topic, source.partition, offsets[first : first + JUDGED_AT_ONCE]
