"""How far the broker's clock is from a clock that never steps, found from timestamps that the broker gave (C3).

Workers and clients measure alike. The caller has the clock; here are numbers only.
"""

from __future__ import annotations

from typing import Final

DRIFT: Final = 1e-4
"""How far two clocks may part per ms, generously; it makes an old measurement yield to a new one."""

_CUT_MS: Final = 0.5
"""A timestamp is cut to the millisecond: half of one is added, and may be wrong by as much."""


class BrokerOffset:
    """The offset of the broker's clock, from the narrowest measurement that is not outdated.

    A record that was sent at `s`, stamped `b` by the broker and acknowledged at `a` says that the broker's clock
    showed `b` somewhere between `s` and `a`. A measurement that cannot be true together with the one before tells of
    a step of the broker's clock, and is followed at once.

    Attributes:
        offset_ms: what has to be added to the own clock; anything before the first measurement.
        uncertainty_ms: by how much it may have been wrong when it was measured; infinite before the first measurement.
        measured_at_ms: when it was measured, by the own clock; None before.
    """

    __slots__ = ("measured_at_ms", "offset_ms", "uncertainty_ms")

    def __init__(self, offset_ms: float = 0.0) -> None:
        self.offset_ms = offset_ms
        self.uncertainty_ms = float("inf")
        self.measured_at_ms: float | None = None

    def observe(self, sent_ms: float, stamp_ms: int, acknowledged_ms: float) -> None:
        """Learn from one record.

        Args:
            sent_ms: when it was sent, by the own clock.
            stamp_ms: the timestamp that the broker gave it, ms since the epoch.
            acknowledged_ms: when its acknowledgment came, by the own clock.
        """
        uncertainty_ms = (acknowledged_ms - sent_ms) / 2 + _CUT_MS
        offset_ms = stamp_ms + _CUT_MS - (sent_ms + acknowledged_ms) / 2
        if self.measured_at_ms is not None:
            aged_ms = self.uncertainty_ms + (acknowledged_ms - self.measured_at_ms) * DRIFT
            stepped = abs(offset_ms - self.offset_ms) > uncertainty_ms + aged_ms
            if uncertainty_ms > aged_ms and not stepped:
                return
        self.offset_ms = offset_ms
        self.uncertainty_ms = uncertainty_ms
        self.measured_at_ms = acknowledged_ms
