"""The timetable: converts instants of 2013 to instants of the demo."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

import numpy as np
from numpy.typing import NDArray

Instants = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Timetable:
    """A linear map from the flights' time to wall time; all instants in ms since the epoch.

    Attributes:
        first_ms: the first scheduled departure.
        last_ms: the last departure.
        start_ms: the wall instant at which the first flight is announced.
        duration_ms: how long the flights take from first to last, by the wall clock.
        lead_ms: how long before its scheduled departure a flight is announced, by the wall clock.
    """

    first_ms: int
    last_ms: int
    start_ms: int
    duration_ms: int
    lead_ms: int

    @property
    def speed(self) -> float:
        """How many times faster than 2013 the demo runs."""
        return max(1, self.last_ms - self.first_ms) / self.duration_ms

    @property
    def end_ms(self) -> int:
        """The wall instant of the last departure."""
        return self.start_ms + self.lead_ms + self.duration_ms

    def wall_ms(self, flight_ms: Instants) -> Instants:
        """Return the wall instants of instants of 2013."""
        return (self.start_ms + self.lead_ms + (flight_ms - self.first_ms) / self.speed).astype(np.int64)

    def announced_ms(self, scheduled_ms: Instants) -> Instants:
        """Return the wall instants at which flights are announced, by their scheduled departures."""
        return self.wall_ms(scheduled_ms) - self.lead_ms

    def flight_time(self, wall_ms: float) -> datetime:
        """Return the instant of 2013 that belongs to a wall instant, UTC, limited to the flights' time."""
        passed_ms = (wall_ms - self.start_ms - self.lead_ms) * self.speed
        shown_ms = min(self.last_ms, max(self.first_ms, self.first_ms + passed_ms))
        return datetime.fromtimestamp(shown_ms / 1000, UTC)

    def progress(self, wall_ms: float) -> float:
        """Return how much of the time is over, from 0 to 1."""
        return min(1.0, max(0.0, (wall_ms - self.start_ms) / (self.end_ms - self.start_ms)))
