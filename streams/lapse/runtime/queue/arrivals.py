"""The arrivals of a queue shard: records of its underlying topics, as they enter its steps (C51, Q18)."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from lapse.core.queue.shard import QueueShard
from lapse.runtime.queue.crowd import Crowd
from lapse.runtime.queue.in_flight import QueueStepInFlight
from lapse.runtime.queue.sweep_horizon import SweepHorizon
from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.shard.payload import PayloadWindow


class Arrivals:
    """Takes records into the steps of one shard.

    Args:
        shard: the shard.
        payloads: keeps the records behind the messages.
        horizon: knows where the messages begin that are younger than a command.
        crowd: counts what was let in beside a crowd that is due.
        figures: counts what has arrived.
        clock_ms: returns the time of the broker's clock, ms since the epoch.
    """

    def __init__(
        self,
        shard: QueueShard,
        payloads: PayloadWindow,
        horizon: SweepHorizon,
        crowd: Crowd,
        figures: ShardFigures,
        clock_ms: Callable[[], int],
    ) -> None:
        self._shard = shard
        self._payloads = payloads
        self._horizon = horizon
        self._crowd = crowd
        self._figures = figures
        self._clock_ms = clock_ms

    def take_in(
        self, topic: str, partition: int, records: Sequence[Any], flight: QueueStepInFlight, now_ms: int
    ) -> int:
        """Take in records of an underlying topic; return how many there was room for (C51)."""
        self._payloads.keep(topic, partition, records)
        now_ms, clock_ms = flight.came_at(records, now_ms, self._clock_ms)
        placed = self._shard.placed
        before = flight.outcomes
        taken = self._shard.arrive(topic, partition, records, flight.core, now_ms, self._crowd.room)
        in_part = taken < len(records) and (taken > 0 or self._shard.placed > placed)
        flight.note_batch(topic, partition, records, -1 if in_part else before, clock_ms)
        self._horizon.note_batch(topic, partition, records, taken, clock_ms)
        self._crowd.let_in(self._shard.placed - placed)
        flight.has_arrivals |= bool(taken)
        self._figures.counts["arrived"] += taken
        return taken

    def note_received(self, topic: str, partition: int, flight: QueueStepInFlight, *, has_room: bool) -> None:
        """Note records that have come, and may have to wait."""
        self._shard.state.sources.number(topic, partition)  # also without room, acknowledgments may name them (Q13)
        flight.has_arrivals |= not has_room

    def note_use(self, flight: QueueStepInFlight, now_ms: int) -> None:
        """Count arrivals as use of the queue at the current instant, since producers may set any timestamp."""
        if flight.has_arrivals:
            flight.has_arrivals = False
            self._shard.note_use(now_ms, flight.core)
