"""The agenda: the order in which scheduled messages become due (L5, C11, C51)."""

from __future__ import annotations

import heapq
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, emptying, in_lots
from lapse.core.queue.arrival.sources import Sources
from lapse.core.queue.schedule.scheduled_messages import ScheduledMessages

Planned = tuple[int, str, int, int, int]
"""Instant, topic, partition, offset and number of the source."""


class Agenda:
    """Two orders: of what comes due, and of what waits for room. Entries of messages that are gone may be in them.

    Args:
        sources: the shard's.

    Attributes:
        to_come: what comes due, the next one first (a heap).
        ready: what waits for room, likewise.
    """

    __slots__ = ("_sources", "ready", "to_come")

    def __init__(self, sources: Sources) -> None:
        self._sources: Final = sources
        self.to_come: list[Planned] = []
        self.ready: list[Planned] = []

    def plan(self, due_ms: int, source: int, offset: int, *, ready: bool = False) -> None:
        """Put a message down for an instant, ms since the epoch; `NEVER` = nothing happens to it by itself."""
        if due_ms >= NEVER:
            return
        of = self._sources[source]
        heapq.heappush(self.ready if ready else self.to_come, (due_ms, of.topic, of.partition, offset, source))

    def next_ms(self) -> int:
        """The instant of the first one, those that wait for room included; `NEVER` if there is none."""
        return min((heap[0][0] for heap in (self.to_come, self.ready) if heap), default=NEVER)

    def due(self, until_ms: int, room: int) -> list[Planned] | None:
        """Which of the two orders the next one is in that is due; those that wait come only if there is room."""
        due = [heap for heap in (self.to_come, self.ready if room else []) if heap and heap[0][0] <= until_ms]
        return min(due, key=lambda heap: heap[0], default=None)

    def emptying(self) -> Portions[None]:
        """Let go of all of it."""
        yield from emptying(self.to_come, self.ready)

    def taking_over(self, scheduled: ScheduledMessages) -> Portions[None]:
        """Put all down that a journal held."""
        for some in in_lots(scheduled.items()):
            for (source, offset), one in some:
                self.plan(one.at_ms if one.ready else one.due_ms, source, offset, ready=one.ready)
            yield
