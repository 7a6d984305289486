"""The broker's clock as a worker knows it (L13, C3): monotonic, and never asked before it is measured.

`lapse_client.kafka.clock.ClientClock` is the other clock over the same `BrokerOffset`: it counts the sleep of the
machine, and answers before the first measurement. `tests/unit/core/test_broker_offset.py` holds both to one offset.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from lapse.core.broker_offset import BrokerOffset

logger = logging.getLogger(__name__)

BY_THE_BROKER: Final = 1
"""Kafka's number for timestamps of a `LogAppendTime` topic."""

_STEP_MS: Final = 1_000
"""A correction by more is a step of the broker's clock, which is followed backwards, too."""


class WorkerClock:
    """Monotonic time plus the offset measured against the broker.

    Every record that lapse itself writes to a topic with `LogAppendTime` comes back with the broker's instant, and so
    measures the offset. Before the first one nobody knows what time it is: the wall clock may be wrong by anything, and
    decides nothing. The claim of a shard measures, so the clock is known before any shard can ask.

    Args:
        max_skew_ms: offset between the wall clock and the broker that causes a warning, ms.
        monotonic: seconds that never go back; for tests.
        wall: seconds since the epoch; for tests.
    """

    def __init__(
        self,
        max_skew_ms: int = 1_000,
        monotonic: Callable[[], float] = time.monotonic,
        wall: Callable[[], float] = time.time,
    ) -> None:
        self.max_skew_ms = max_skew_ms
        self._monotonic = monotonic
        self._wall = wall
        self._offset = BrokerOffset()
        self._warned = False
        self._floor_ms = 0
        self.measured_at: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the broker's clock is known."""
        return self.measured_at is not None

    def now_ms(self) -> int:
        """The broker's instant now, ms since the epoch; never goes back.

        Raises:
            RuntimeError: it was never measured.
        """
        if self.measured_at is None:
            raise RuntimeError(
                "the broker's clock was not measured: no record came back with the broker's timestamp. The topics of "
                "lapse need message.timestamp.type=LogAppendTime; `lapse apply` sets it"
            )
        self._floor_ms = max(self._floor_ms, int(self._monotonic() * 1000 + self._offset.offset_ms))
        return self._floor_ms

    def stamp_ms(self) -> int:
        """What to put on a record, ms since the epoch: the broker's instant; the wall clock's while that is unknown."""
        return self.now_ms() if self.is_measured else int(self._wall() * 1000)

    def seen(self, instant_ms: int) -> None:
        """Note that the broker's clock has reached an instant: ours is not behind it from here on."""
        self._floor_ms = max(self._floor_ms, instant_ms)

    def seconds_until(self, instant_ms: int) -> float:
        """How long until the broker's clock reaches an instant; 0 if it has."""
        return max(0.0, (instant_ms - self.now_ms()) / 1000)

    @property
    def skew_ms(self) -> float:
        """How far the broker's clock is ahead of the worker's wall clock, ms; 0 while that is unknown."""
        return self._offset.offset_ms - (self._wall() - self._monotonic()) * 1000 if self.is_measured else 0.0

    def measured(self, sent: float, acknowledged: float, broker_ms: int) -> None:
        """Take in one measurement.

        Args:
            sent: monotonic seconds when the record was sent.
            acknowledged: monotonic seconds when its acknowledgment came.
            broker_ms: the timestamp that the broker gave it, ms since the epoch.
        """
        before_ms = self._offset.offset_ms if self.is_measured else None
        self.measured_at = acknowledged
        self._offset.observe(sent * 1000, broker_ms, acknowledged * 1000)
        if before_ms is not None and abs(self._offset.offset_ms - before_ms) > _STEP_MS:
            self._floor_ms = 0  # the clock was stepped: follow it rather than stand still
        skewed = abs(self.skew_ms) > self.max_skew_ms
        if skewed and not self._warned:
            logger.warning(
                "This machine's clock is %.0f ms %s the broker's. "
                "lapse corrects for it; set the clock (NTP) all the same.",
                abs(self.skew_ms),
                "behind" if self.skew_ms > 0 else "ahead of",
            )
        self._warned = skewed
