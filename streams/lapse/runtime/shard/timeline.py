"""Where the time of messages goes, stage by stage, from their record in the log to their delivery in it."""

from __future__ import annotations

import time
from enum import StrEnum

from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.timers.clock import WorkerClock


class Stage(StrEnum):
    """A stage of a message's way through a worker; it waits in each of them."""

    READ = "read"
    """From the record's timestamp to the shard's inbox: the fetch, and the way from its thread."""

    WAIT = "wait"
    """In the inbox, for the step before to end."""

    DECIDE = "decide"
    """In a step that hands something out: taken in, dealt out, encoded; dead letters of the step are written, too."""

    JOURNAL = "journal"
    """Until the step is durable."""

    DELIVER = "deliver"
    """Until Kafka has the deliveries."""


class Timeline:
    """Measures the first stages of one shard; who writes measures the others.

    Args:
        clock: the broker's clock.
        figures: gets what is measured, a value for each batch or step.
    """

    def __init__(self, clock: WorkerClock, figures: ShardFigures) -> None:
        self._clock = clock
        self._stages = figures.stages
        self._came_at: float | None = None

    def came(self, timestamp_ms: int) -> None:
        """A batch of messages is in the inbox; the last of them has this timestamp."""
        self._stages[Stage.READ].add(max(0, self._clock.now_ms() - timestamp_ms) / 1000)
        if self._came_at is None:
            self._came_at = time.monotonic()

    def taken(self, *, more: bool) -> None:
        """A step has taken messages out of the inbox; whether more are left there."""
        now_s = time.monotonic()
        if self._came_at is not None:
            self._stages[Stage.WAIT].add(now_s - self._came_at)
        self._came_at = now_s if more else None

    def decided(self, began_s: float) -> None:
        """A step that hands messages out is done but for its writes; it began at this monotonic instant, s."""
        self._stages[Stage.DECIDE].add(time.monotonic() - began_s)
