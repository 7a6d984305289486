"""The broker's clock, as the client measures it (C3)."""

from __future__ import annotations

import time
from collections.abc import Callable

from lapse.core.broker_offset import BrokerOffset

_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_ms() -> float:
    """Milliseconds of a clock that never jumps. On Linux it also runs while the machine sleeps."""
    return time.clock_gettime(_CLOCK) * 1000


class ClientClock:
    """Tells the broker's time from the timestamps that it gave to our own commands; for any thread.

    All sessions of a connection share one. Until there is a measurement, `now_ms` is the local wall clock's, which
    decides nothing: see `past_ms`.

    Args:
        wall: seconds since the epoch; for tests.
    """

    def __init__(self, wall: Callable[[], float] = time.time) -> None:
        self._offset = BrokerOffset(wall() * 1000 - elapsed_ms())

    def elapsed_ms(self) -> float:
        """Milliseconds on the clock by which heartbeats are sent; see `elapsed_ms`."""
        return elapsed_ms()

    @property
    def is_measured(self) -> bool:
        """Whether the broker's clock is known."""
        return self._offset.measured_at_ms is not None

    @property
    def uncertainty_ms(self) -> float:
        """By how much `now_ms` may be wrong at the time of the last measurement; infinite before the first."""
        return self._offset.uncertainty_ms

    def observe(self, sent_ms: float, stamp_ms: int, acknowledged_ms: float) -> None:
        """Learn from one record; the two local instants are `elapsed_ms`, the stamp is the broker's."""
        self._offset.observe(sent_ms, stamp_ms, acknowledged_ms)

    def now_ms(self) -> float:
        """The broker's time, ms since the epoch."""
        return elapsed_ms() + self._offset.offset_ms

    def past_ms(self) -> float:
        """Everything up to this instant is over for certain: the broker's time; minus infinity while it is unknown."""
        return self.now_ms() if self._offset.measured_at_ms is not None else float("-inf")
