"""The broker's clock as a worker knows it (L13, C3): monotonic, and unknown until the first measurement.

`lapse_client.kafka.clock.ClientClock` is the other clock with a `BrokerOffset`. That one includes the time in which the
machine sleeps, and answers before the first measurement. `tests/unit/core/test_broker_offset.py` compares both.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Final

from lapse.core.broker_offset import STEP_MS, BrokerOffset
from lapse.core.skew_warning import SkewWarning

logger = logging.getLogger(__name__)

BY_THE_BROKER: Final = 1
"""Kafka's number for the timestamp type of a `LogAppendTime` topic."""

_MEASURE_EVERY_S: Final = 0.9
"""After how long a measurement is due again, s. It takes a moment, so this is less than a second (C3)."""


class WorkerClock:
    """Monotonic time plus the measured offset of the broker's clock.

    Each write of lapse to a topic with `LogAppendTime` returns the broker's timestamp, and so measures the offset.
    Before the first one the time is unknown, because the machine's wall clock may be wrong by any amount. The claim of
    a shard is such a write, so the clock is known before a shard needs it.

    Args:
        max_skew_ms: offset between the wall clock and the broker from which on a warning is logged, ms.
        monotonic: returns seconds that never decrease; for tests.
        wall: returns seconds since the epoch; for tests.
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
        self._warning = SkewWarning(max_skew_ms)
        self._floor_ms = 0
        self._begun_at = float("-inf")
        self.measured_at: float | None = None

    @property
    def is_measured(self) -> bool:
        """Whether the broker's clock was measured."""
        return self.measured_at is not None

    def now_ms(self) -> int:
        """Return the broker's instant now, ms since the epoch. It decreases only after a step of the broker's clock.

        Raises:
            RuntimeError: the clock was never measured.
        """
        if self.measured_at is None:
            raise RuntimeError(
                "the broker's clock was not measured: no record came back with the broker's timestamp. The topics of "
                "lapse need message.timestamp.type=LogAppendTime; `lapse apply` sets it"
            )
        self._floor_ms = max(self._floor_ms, int(self._monotonic() * 1000 + self._offset.offset_ms))
        return self._floor_ms

    def stamp_ms(self) -> int:
        """Return a timestamp for a record, ms since the epoch, by the broker's clock, else by the wall clock."""
        return self.now_ms() if self.is_measured else int(self._wall() * 1000)

    def note_instant(self, instant_ms: int) -> None:
        """Note that the broker's clock has reached an instant. `now_ms` is not behind it from now on.

        An instant that is far ahead of the measured clock is from before that clock was set back.
        """
        if not self.is_measured or instant_ms - self.now_ms() <= STEP_MS:
            self._floor_ms = max(self._floor_ms, instant_ms)

    def seconds_until(self, instant_ms: int) -> float:
        """Return the seconds until the broker's clock reaches an instant; 0 if it has."""
        return max(0.0, (instant_ms - self.now_ms()) / 1000)

    def seconds_until_measurement(self) -> float:
        """Return the seconds until a shard with timers must measure the clock again; 0 if it must at once (C3).

        A measurement that another shard has begun counts, so that only one of many shards measures.
        """
        latest = self._begun_at if self.measured_at is None else max(self._begun_at, self.measured_at)
        return max(0.0, latest + _MEASURE_EVERY_S - self._monotonic())

    def begin_measurement(self) -> None:
        """Note that a record is about to be sent whose timestamp measures the clock."""
        self._begun_at = self._monotonic()

    @property
    def skew_ms(self) -> float:
        """How far the broker's clock is ahead of the machine's wall clock, ms; 0 while that is unknown."""
        return self._offset.offset_ms - (self._wall() - self._monotonic()) * 1000 if self.is_measured else 0.0

    def measured(self, sent: float, acknowledged: float, broker_ms: int) -> None:
        """Process one measurement.

        Args:
            sent: when the record was sent, on the monotonic clock, s.
            acknowledged: when its acknowledgment arrived, on the monotonic clock, s.
            broker_ms: the timestamp that the broker gave it, ms since the epoch.
        """
        before_ms = self._offset.offset_ms if self.is_measured else None
        self.measured_at = acknowledged
        self._offset.observe(sent * 1000, broker_ms, acknowledged * 1000)
        if before_ms is not None and abs(self._offset.offset_ms - before_ms) > STEP_MS:
            self._floor_ms = 0  # stepped: follow the broker's clock, also backwards
        if self._warning.is_due(self.skew_ms, acknowledged):
            logger.warning(
                "This machine's clock is %.0f ms %s the broker's. "
                "lapse corrects for it; set the clock (NTP) all the same.",
                abs(self.skew_ms),
                "behind" if self.skew_ms > 0 else "ahead of",
            )
