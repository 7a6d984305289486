"""Agenda: the order in which scheduled messages become due (L5, C11, C51)."""

from __future__ import annotations

from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, in_lots
from lapse.core.queue.arrival.sources import Sources
from lapse.core.queue.schedule.scheduled_messages import ScheduledMessages
from lapse.core.swept_heap import SweptHeap

Planned = tuple[int, str, int, int, int]
"""Instant, topic, partition, offset and number of the source."""

_MOST_SEEN: Final = 256


class Agenda:
    """Two heaps: messages that come due, and messages that wait for room. They may contain entries of gone messages.

    Args:
        sources: the shard's sources.
        scheduled: the shard's scheduled messages.

    Attributes:
        to_come: heap of the messages that come due, the next one first.
        held: heap of the messages that wait for room, the next one first.
    """

    __slots__ = ("_scheduled", "_sources", "held", "to_come")

    def __init__(self, sources: Sources, scheduled: ScheduledMessages) -> None:
        self._sources: Final = sources
        self._scheduled: Final = scheduled
        self.to_come = SweptHeap[Planned](self._is_there)
        self.held = SweptHeap[Planned](self._is_there)

    def _is_there(self, planned: Planned) -> bool:
        return (planned[4], planned[3]) in self._scheduled

    def sweep(self) -> None:
        """Free some entries of gone messages; called whenever a message comes or leaves."""
        self.to_come.sweep(len(self._scheduled))
        self.held.sweep(self._scheduled.held)

    def plan(self, due_ms: int, source: int, offset: int, *, held: bool = False) -> None:
        """Enter a message for an instant, ms since the epoch; `NEVER` = no entry."""
        if due_ms >= NEVER:
            return
        of = self._sources[source]
        (self.held if held else self.to_come).push((due_ms, of.topic, of.partition, offset, source))

    def next_to_come_ms(self) -> int:
        """Return the instant of the first message that comes due, ms since the epoch; `NEVER` if there is none."""
        first = self.to_come.first
        return NEVER if first is None else first[0]

    def next_ms(self) -> int:
        """Return the instant of the first message in both heaps, ms since the epoch; `NEVER` if there is none."""
        held, to_come = self.held.first, self.to_come.first
        if held is None:
            return NEVER if to_come is None else to_come[0]
        return held[0] if to_come is None else min(to_come[0], held[0])

    def next_due_heap(self, until_ms: int, room: int) -> SweptHeap[Planned] | None:
        """Return the heap whose first message is due next; None if none is. `held` counts only if there is room."""
        found, least = None, None
        for heap in (self.to_come, self.held) if room else (self.to_come,):
            first = heap.first
            if first is not None and first[0] <= until_ms and (least is None or first < least):
                found, least = heap, first
        return found

    def has_due(self, after_ms: int, until_ms: int) -> bool:
        """Return whether a message comes due behind an instant and up to another one, ms since the epoch.

        If very many are due up to the first instant, the result is True without a look at all of them (C60).
        """
        left = _MOST_SEEN
        for heap in (*self.to_come.heaps, *self.held.heaps):
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
        yield from self.to_come.release_memory()
        yield from self.held.release_memory()

    def restore_entries(self) -> Portions[None]:
        """Enter all messages that the journal held, in portions."""
        for some in in_lots(self._scheduled.items()):
            for (source, offset), one in some:
                self.plan(one.at_ms if one.held else one.due_ms, source, offset, held=one.held)
            yield
