"""Measures where the time of messages goes, stage by stage, from their record in the log to their delivery."""

from __future__ import annotations

import time
from enum import StrEnum

from lapse.runtime.shard.figures import ShardFigures
from lapse.runtime.timers.clock import WorkerClock


class Stage(StrEnum):
    """A stage of a message's way through a worker."""

    READ = "read"
    """From the record's timestamp to the shard's inbox: the fetch, and the way from the fetching thread."""

    WAIT = "wait"
    """In the inbox, until the step before ends."""

    DECIDE = "decide"
    """In a step that hands something out: taken in, handed out, encoded. Dead letters of the step are written, too."""

    JOURNAL = "journal"
    """Until the step is durable."""

    DELIVER = "deliver"
    """Until Kafka has the deliveries."""


class Timeline:
    """Measures the first stages of one shard. The writers of journal and deliveries measure the others.

    Args:
        clock: the broker's clock.
        figures: gets the measurements, one for each batch or step.
    """

    def __init__(self, clock: WorkerClock, figures: ShardFigures) -> None:
        self._clock = clock
        self._stages = figures.stages
        self._came_at: float | None = None

    def note_arrival(self, timestamp_ms: int) -> None:
        """Note that a batch of messages is in the inbox. Its last record has this timestamp, ms since the epoch."""
        self._stages[Stage.READ].add(max(0, self._clock.now_ms() - timestamp_ms) / 1000)
        if self._came_at is None:
            self._came_at = time.monotonic()

    def note_take(self, *, more: bool) -> None:
        """Note that a step has taken messages out of the inbox; `more` says whether others are left there."""
        now_s = time.monotonic()
        if self._came_at is not None:
            self._stages[Stage.WAIT].add(now_s - self._came_at)
        self._came_at = now_s if more else None

    def decided(self, began_s: float) -> None:
        """Note that a delivering step is ended, and about to be written. It began at `began_s`, monotonic, s."""
        self._stages[Stage.DECIDE].add(time.monotonic() - began_s)
