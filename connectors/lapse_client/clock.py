"""The broker's clock, as far as it can be known from here (C3)."""

from __future__ import annotations

import time

_DRIFT = 1e-4
"""How far two clocks may part per ms, generously; it makes an old measurement yield to a new one."""


_CLOCK = getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC)


def elapsed_ms() -> float:
    """Milliseconds of a clock that never steps, and on Linux goes on while the machine sleeps."""
    return time.clock_gettime(_CLOCK) * 1000


class BrokerClock:
    """Tells the broker's time from the timestamps that it gave to our own commands.

    A record that was sent at `s`, stamped `b` by the broker and acknowledged at `a` says that the broker's clock
    showed `b` somewhere between `s` and `a`. The narrowest such window that is not outdated wins. Until there is
    one, `now_ms` is the local wall clock's, which decides nothing: see `past_ms`.
    """

    def __init__(self) -> None:
        self._offset_ms = time.time() * 1000 - elapsed_ms()
        self._uncertainty_ms = float("inf")
        self._measured_at_ms = 0.0

    @property
    def uncertainty_ms(self) -> float:
        """By how much `now_ms` may be wrong at the time of the last measurement; infinite before the first."""
        return self._uncertainty_ms

    def observe(self, sent_ms: float, stamp_ms: int, acknowledged_ms: float) -> None:
        """Learn from one record; the two local instants are `elapsed_ms`, the stamp is the broker's."""
        uncertainty_ms = (acknowledged_ms - sent_ms) / 2
        aged_ms = self._uncertainty_ms + (acknowledged_ms - self._measured_at_ms) * _DRIFT
        offset_ms = stamp_ms - (sent_ms + acknowledged_ms) / 2
        stepped = abs(offset_ms - self._offset_ms) > uncertainty_ms + aged_ms
        if uncertainty_ms <= aged_ms or stepped:
            self._offset_ms = offset_ms
            self._uncertainty_ms = uncertainty_ms
            self._measured_at_ms = acknowledged_ms

    def now_ms(self) -> float:
        """The broker's time, ms since the epoch."""
        return elapsed_ms() + self._offset_ms

    def past_ms(self) -> float:
        """Everything up to this instant is over for certain: the broker's time; minus infinity while it is unknown."""
        return self.now_ms() if self._measured_at_ms else float("-inf")
