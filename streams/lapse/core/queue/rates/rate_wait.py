"""The text with which a peek explains that a message waits for a rate (Q25, C48)."""

from __future__ import annotations

from lapse.core.expression.civil import format_instant
from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.decision import Decisions
from lapse.core.queue.life.message_state import State
from lapse.core.queue.rates.counted import EVERYTHING, Of
from lapse.core.queue.rates.rate import Rate
from lapse.core.queue.segments.segment import Segment


class RateWait:
    """Explains for which rates available messages wait at an instant.

    Args:
        decisions: the shard's decisions.
        now_ms: the instant, ms since the epoch.
    """

    def __init__(self, decisions: Decisions, now_ms: int) -> None:
        settings = decisions.settings
        self._counted = decisions.state.counted
        self._barriers = frozenset(decisions.state.index.barriers) if settings.traits.barrier is not None else ()
        self._at_ms = max(now_ms, self._counted.newest_ms)
        self._group_rate = None if settings.traits.group is None else settings.group_rate
        self._rate_ms = self._frees_ms(EVERYTHING, settings.rate)
        self._group_ms: dict[Of, int | None] = {}
        self._is_bounded = self._rate_ms is not None or self._group_rate is not None

    def find_waits(self, segment: Segment, slot: int) -> str:
        """Return which rates a message waits for, and its earliest instant of delivery; empty = it waits for none."""
        place = segment.base + slot
        if not self._is_bounded or segment.state[slot] != State.AVAILABLE or place in self._barriers:
            return ""
        group_ms = None if self._group_rate is None else self._find_group_wait(segment, slot)
        if self._rate_ms is None and group_ms is None:
            return ""
        rates = [
            *(["the rate of its queue"] if self._rate_ms is not None else []),
            *(["the rate of its group"] if group_ms is not None else []),
        ]
        until_ms = max(one for one in (self._rate_ms, group_ms) if one is not None)
        until = format_instant(until_ms) if until_ms < NEVER else None
        return f"{' and '.join(rates)}, not before {until or 'deliveries before it are written'}"

    def _find_group_wait(self, segment: Segment, slot: int) -> int | None:
        group = OWN_GROUP if segment.groups is None else int(segment.groups[slot])
        of = (OWN_GROUP, segment.base + slot) if group == OWN_GROUP else (group, -1)
        if of not in self._group_ms:
            self._group_ms[of] = self._frees_ms(of, self._group_rate)
        return self._group_ms[of]

    def _frees_ms(self, of: Of, rate: Rate | None) -> int | None:
        """Return when a rate permits a delivery again, ms since the epoch; None if it permits one now."""
        if rate is None or self._counted.room_for(of, rate, self._at_ms):
            return None
        return self._counted.frees_ms(of, rate)
