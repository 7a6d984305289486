"""The broker's clock, as the client measures it (C3)."""

from __future__ import annotations

import time
from collections.abc import Callable

from lapse.core.broker_offset import BrokerOffset

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_ms() -> float:
    """Return the milliseconds of a clock that never jumps. On Linux it also runs while the machine sleeps."""
    return time.clock_gettime(_CLOCK) * 1000


class ClientClock:
    """Computes the broker's time from the timestamps that the broker gave to this client's commands. Thread-safe.

    All sessions of a connection share one. Before the first measurement, `now_ms` is the local wall clock, and
    `past_ms` is minus infinity, so that the wall clock decides nothing.

    Args:
        wall: seconds since the epoch; for tests.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._offset = BrokerOffset(wall() * 1000 - elapsed_ms())

    def elapsed_ms(self) -> float:
        """Return the milliseconds of the clock for heartbeats; see the function `elapsed_ms`."""
        return elapsed_ms()

    @property
    def is_measured(self) -> bool:
        """Whether the broker's clock is known."""
        return self._offset.measured_at_ms is not None

    @property
    def uncertainty_ms(self) -> float:
        """The error bound of `now_ms` at the last measurement, in ms; infinite before the first."""
        return self._offset.uncertainty_ms

    def observe(self, sent_ms: float, stamp_ms: int, acknowledged_ms: float) -> None:
        """Take a measurement from one record: two instants of `elapsed_ms`, and the broker's timestamp between."""
        self._offset.observe(sent_ms, stamp_ms, acknowledged_ms)

    def now_ms(self) -> float:
        """Return the broker's time, ms since the epoch."""
        return elapsed_ms() + self._offset.offset_ms

    def past_ms(self) -> float:
        """Return an instant that has certainly passed: the broker's time, or minus infinity while it is unknown."""
        return self.now_ms() if self._offset.measured_at_ms is not None else float("-inf")
