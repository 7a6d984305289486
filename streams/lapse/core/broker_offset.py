"""Broker offset: the difference between the broker's clock and a monotonic clock, from record timestamps (C3).

Workers and clients measure it in the same way. The caller reads the clock.
"""

from __future__ import annotations

from typing import Final

DRIFT: Final = 1e-4
"""An upper bound for the drift between two clocks, in ms per ms. It makes old measurements uncertain."""

STEP_MS: Final = 1_000
"""A greater correction means that the broker's clock was stepped, ms. It is then followed backwards, too."""

_CUT_MS: Final = 0.5
"""Timestamps are truncated to the millisecond, so half a millisecond is added, with the same uncertainty."""


class BrokerOffset:
    """The offset of the broker's clock, by the most certain recent measurement.

    A record that was sent at `s`, stamped `b` by the broker and acknowledged at `a` shows that the broker's clock
    read `b` at some instant between `s` and `a`. A measurement that contradicts the previous one means that the
    broker's clock was stepped, and replaces it at once.

    Attributes:
        offset_ms: difference to add to the own clock, ms; the initial value before the first measurement.
        uncertainty_ms: greatest error of the offset when it was measured, ms; infinite before the first measurement.
        measured_at_ms: instant of the measurement by the own clock, ms; None before the first.
    """

    __slots__ = ("measured_at_ms", "offset_ms", "uncertainty_ms")

    def __init__(self, offset_ms: float = 0.0) -> None:
        self.offset_ms = offset_ms
        self.uncertainty_ms = float("inf")
        self.measured_at_ms: float | None = None

    def observe(self, sent_ms: float, stamp_ms: int, acknowledged_ms: float) -> None:
        """Measure the offset with one record.

        Args:
            sent_ms: when the record was sent, by the own clock, ms.
            stamp_ms: the broker's timestamp of the record, ms since the epoch.
            acknowledged_ms: when its acknowledgment arrived, by the own clock, ms.
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
