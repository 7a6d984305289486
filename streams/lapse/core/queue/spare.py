"""Spare messages: those that nobody here takes now, and how many more the subscriptions would take (Q26, C73, C74)."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.choice import Chooser
from lapse.core.queue.decision import Decisions
from lapse.core.queue.fairness import Turns
from lapse.core.queue.matching import NO
from lapse.core.queue.segment import Segment
from lapse.core.queue.settlement import Claim
from lapse.core.queue.trait import Flag


class Spare:
    """Looks for messages that a deployment with idle consumers may have, and changes nothing."""

    def __init__(self, decisions: Decisions) -> None:
        self._decisions = decisions
        self._state = decisions.state
        self._settings = decisions.settings

    def wanted(self) -> int:
        """How many messages more the shard's subscriptions would take; negative = so many wait that none would.

        A subscription with a filter asks for none: what it is sent may be nothing for it. Nor does a paused queue.
        """
        asking = () if self._state.paused else self._state.subscriptions.values()
        space = sum(one.space for one in asking if not one.filter)
        waiting = sum(self._state.outline(index).available for index in self._state.segments)
        return space - waiting - self._state.scheduled.unconfirmed - self._state.scheduled.ready

    def claims(self, most: int, least_life_ms: int, now_ms: int, handed_over: bool = False) -> list[Claim]:
        """At most so many available messages, in the order of delivery, that no subscription here has room for.

        No barrier is among them, nor what stands behind one.

        Args:
            most: so many at most.
            least_life_ms: what has no more than this left of its life, ms, is left out.
            now_ms: the instant, ms since the epoch.
            handed_over: whether only those that came by a transfer are meant, and only where no subscription here may
                have them, with room or without; else they are left out.
        """
        filters = {one.filter for one in self._state.subscriptions.values() if one.space or handed_over}
        if self._state.paused or "" in filters:
            return []
        due_ms = self._decisions.deadlines_count_ms(now_ms)
        if due_ms >= 0:
            due_ms += least_life_ms
        chooser = Chooser(self._state, self._decisions.matching, self._settings, Turns(self._settings.fairness), due_ms)
        found: list[Claim] = []
        for segment, slots in chooser.in_order():
            spare = self._spare(segment, slots, filters, handed_over)[:most]
            most -= len(spare)
            for messages in self._state.sources.messages(segment, np.sort(spare)):
                found += [Claim(messages.topic, messages.partition, *both) for both in messages.ranges()]
            if not most:
                break
        return found

    def _spare(
        self, segment: Segment, slots: NDArray[np.intp], filters: set[str], handed_over: bool
    ) -> NDArray[np.intp]:
        for text in filters:
            slots = slots[self._decisions.matching.codes(text, segment.index, slots) == NO]
        if segment.flags is None:
            return slots[:0] if handed_over else slots
        came: NDArray[np.bool_] = (segment.flags[slots] & Flag.HANDED_OVER) != 0
        wanted: NDArray[np.intp] = slots[came == handed_over]
        return wanted
