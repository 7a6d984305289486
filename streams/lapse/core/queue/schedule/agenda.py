"""Agenda: the order in which scheduled messages become due (L5, C11, C51)."""

from __future__ import annotations

import heapq
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, clear_in_portions, in_lots
from lapse.core.queue.arrival.sources import Sources
from lapse.core.queue.schedule.scheduled_messages import ScheduledMessages

Planned = tuple[int, str, int, int, int]
"""Instant, topic, partition, offset and number of the source."""

_MOST_SEEN: Final = 256


class Agenda:
    """Two heaps: messages that come due, and messages that wait for room. They may contain entries of gone messages.

    Args:
        sources: the shard's sources.

    Attributes:
        to_come: heap of the messages that come due, the next one first.
        ready: heap of the messages that wait for room, the next one first.
    """

    __slots__ = ("_sources", "ready", "to_come")

    def __init__(self, sources: Sources) -> None:
        self._sources: Final = sources
        self.to_come: list[Planned] = []
        self.ready: list[Planned] = []

    def plan(self, due_ms: int, source: int, offset: int, *, ready: bool = False) -> None:
        """Enter a message for an instant, ms since the epoch; `NEVER` = no entry."""
        if due_ms >= NEVER:
            return
        of = self._sources[source]
        heapq.heappush(self.ready if ready else self.to_come, (due_ms, of.topic, of.partition, offset, source))

    def next_ms(self) -> int:
        """Return the instant of the first message in both heaps, ms since the epoch; `NEVER` if there is none."""
        return min((heap[0][0] for heap in (self.to_come, self.ready) if heap), default=NEVER)

    def next_due_heap(self, until_ms: int, room: int) -> list[Planned] | None:
        """Return the heap whose first message is due next; None if none is. `ready` counts only if there is room."""
        due = [heap for heap in (self.to_come, self.ready if room else []) if heap and heap[0][0] <= until_ms]
        return min(due, key=lambda heap: heap[0], default=None)

    def has_due(self, after_ms: int, until_ms: int) -> bool:
        """Return whether a message comes due behind an instant and up to another one, ms since the epoch.

        If very many are due up to the first instant, the result is True without a look at all of them (C60).
        """
        left = _MOST_SEEN
        for heap in (self.to_come, self.ready):
            nodes = [0]
            while nodes:
                at = nodes.pop()
                if at >= len(heap) or heap[at][0] > until_ms:
                    continue
                left -= 1
                if heap[at][0] > after_ms or not left:
                    return True
                nodes += (2 * at + 1, 2 * at + 2)
        return False

    def release_memory(self) -> Portions[None]:
        """Release the memory of both heaps, in portions."""
        yield from clear_in_portions(self.to_come, self.ready)

    def restore_entries(self, scheduled: ScheduledMessages) -> Portions[None]:
        """Enter all messages that the journal held, in portions."""
        for some in in_lots(scheduled.items()):
            for (source, offset), one in some:
                self.plan(one.at_ms if one.ready else one.due_ms, source, offset, ready=one.ready)
            yield
