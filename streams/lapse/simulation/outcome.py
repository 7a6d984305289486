"""The outcome of a simulation: what became of each message, and how long it waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LEFT: Final = "left"
SERVED: Final = frozenset({"acknowledged", "delivered_at_most_once", "barrier_released"})
"""Fates of messages that somebody had."""

_MOST_POINTS: Final = 120
"""The greatest number of points in a course over time."""


@dataclass(slots=True)
class Waits:
    """How long messages waited, ms.

    Attributes:
        mean: on average.
        median: half of them no longer.
        p90: 90 % of them no longer.
        p99: 99 % of them no longer.
        most: the longest.
    """

    mean: float
    median: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, some_ms: NDArray[np.int64]) -> Waits | None:
        """Of messages; None if there are none."""
        if not len(some_ms):
            return None
        median, p90, p99 = np.percentile(some_ms, [50, 90, 99])
        return cls(float(some_ms.mean()), float(median), float(p90), float(p99), float(some_ms.max()))

    def facts(self) -> dict[str, float]:
        """For JSON."""
        return {f"{name}_ms": round(getattr(self, name), 1) for name in ("mean", "median", "p90", "p99", "most")}


@dataclass(slots=True)
class Course:
    """How a queue went, in equal steps of time.

    Attributes:
        at_ms: the beginning of each step, ms since the epoch.
        depth: messages in the queue at the end of each step.
        fates: how many messages came to each end in each step.
    """

    at_ms: list[int]
    depth: list[int]
    fates: dict[str, list[int]]


class Outcome:
    """What became of the messages of one run.

    Args:
        came_ms: instant of each message's arrival, or the instant for which it is scheduled, ms since the epoch.

    Attributes:
        came_ms: the same.
        first_ms: when each was first handed out, ms since the epoch; -1 = never.
        begun_ms: when a consumer first began with each, ms since the epoch; -1 = never.
        ended_ms: when each left, ms since the epoch; -1 = it is still there.
        fates: what became of each, by number of `names`; 0 = it is still there.
        names: of the fates.
        deliveries: how many there were.
        lapsed: leases that ended unsettled.
        cancelled: deliveries that consumers gave back.
        in_vain: deliveries whose consumer was too late with its settlement, or whose message had left.
        dropped: deliveries that waited at a consumer until their leases were over, and nobody worked on.
        deepest: most messages that were in the queue at once.
        busy_ms: for how long consumers worked, all together.
        began_ms: when it began, ms since the epoch.
        ended_at_ms: the last instant at which something happened, ms since the epoch.
        endless: whether it was stopped because the same messages went round and round.
    """

    def __init__(self, came_ms: NDArray[np.int64]) -> None:
        self.came_ms = came_ms
        self.first_ms: NDArray[np.int64] = np.full(len(came_ms), -1, np.int64)
        self.begun_ms: NDArray[np.int64] = np.full(len(came_ms), -1, np.int64)
        self.ended_ms: NDArray[np.int64] = np.full(len(came_ms), -1, np.int64)
        self.fates: NDArray[np.uint8] = np.zeros(len(came_ms), np.uint8)
        self.names = [LEFT]
        self.deliveries = self.lapsed = self.cancelled = self.in_vain = self.dropped = self.deepest = self.busy_ms = 0
        self.began_ms = int(came_ms[0]) if len(came_ms) else 0
        self.ended_at_ms = self.began_ms
        self.endless = False
        self._numbers = {LEFT: 0}

    def end(self, which: list[int], fate: str, at_ms: int) -> None:
        """Know that messages left, by their places among the arrivals."""
        number = self._numbers.get(fate)
        if number is None:
            number = self._numbers[fate] = len(self.names)
            self.names.append(fate)
        self.fates[which] = number
        self.ended_ms[which] = at_ms

    # What is told

    def __len__(self) -> int:
        return len(self.came_ms)

    @property
    def counts(self) -> dict[str, int]:
        """How many messages came to each end; the most frequent first."""
        found = np.bincount(self.fates, minlength=len(self.names))
        pairs = [(name, int(found[at])) for at, name in enumerate(self.names) if found[at]]
        return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))

    @property
    def served(self) -> int:
        """How many messages a consumer was done with."""
        return sum(count for name, count in self.counts.items() if name in SERVED)

    @property
    def served_share(self) -> float:
        """The same of all that came, from 0 to 1; 1 where none came."""
        return self.served / len(self) if len(self) else 1.0

    @property
    def handed_out(self) -> int:
        """How many messages were handed out at least once."""
        return int((self.first_ms >= 0).sum())

    @property
    def waits(self) -> Waits | None:
        """From arrival until a consumer first began with it."""
        some = self.begun_ms >= 0
        return Waits.of(self.begun_ms[some] - self.came_ms[some])

    @property
    def stays(self) -> Waits | None:
        """From arrival to the end, of served messages."""
        some = self._of(SERVED)
        return Waits.of(self.ended_ms[some] - self.came_ms[some])

    def busy_share(self, subscribers: int) -> float:
        """Which share of the time the consumers worked, from 0 to 1."""
        passed_ms = self.ended_at_ms - self.began_ms
        return min(1.0, self.busy_ms / (subscribers * passed_ms)) if subscribers and passed_ms else 0.0

    def course(self, points: int = _MOST_POINTS, end_ms: int = 0) -> Course:
        """How it went over time.

        Args:
            points: in so many steps.
            end_ms: to this instant at least, ms since the epoch.
        """
        end_ms = max(self.ended_at_ms, end_ms, self.began_ms + points)
        edges = np.linspace(self.began_ms, end_ms + 1, points + 1)
        came, _ = np.histogram(self.came_ms, edges)
        left, _ = np.histogram(self.ended_ms[self.ended_ms >= 0], edges)
        fates = {
            name: np.histogram(self.ended_ms[self.fates == at], edges)[0].tolist()
            for at, name in enumerate(self.names)
            if at and bool((self.fates == at).any())
        }
        return Course([int(one) for one in edges[:-1]], np.cumsum(came - left).tolist(), fates)

    def facts(self, subscribers: int) -> dict[str, Any]:
        """For JSON."""
        waits, stays = self.waits, self.stays
        return {
            "messages": len(self),
            "served": self.served,
            "served_share": round(self.served_share, 6),
            "handed_out": self.handed_out,
            "deliveries": self.deliveries,
            "fates": self.counts,
            "leases_lapsed": self.lapsed,
            "cancelled": self.cancelled,
            "in_vain": self.in_vain,
            "dropped": self.dropped,
            "wait": None if waits is None else waits.facts(),
            "stay": None if stays is None else stays.facts(),
            "deepest": self.deepest,
            "busy_share": round(self.busy_share(subscribers), 4),
            "took_ms": self.ended_at_ms - self.began_ms,
            "endless": self.endless,
        }

    def _of(self, fates: frozenset[str]) -> NDArray[np.bool_]:
        wanted = [number for name, number in self._numbers.items() if name in fates]
        found: NDArray[np.bool_] = np.isin(self.fates, wanted)
        return found
