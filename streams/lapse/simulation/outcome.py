"""The outcome of a simulation: what became of each message, and how long it waited."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

LEFT: Final = "left"
SERVED: Final = frozenset({"acknowledged", "delivered_at_most_once", "barrier_released"})
"""Fates of messages that a consumer had."""

_MOST_POINTS: Final = 120
"""The greatest number of points in a course over time."""


@dataclass(slots=True)
class Waits:
    """How long messages waited, ms.

    Attributes:
        mean: the mean.
        median: the median.
        p90: the 90th percentile.
        p99: the 99th percentile.
        most: the longest time.
    """

    mean: float
    median: float
    p90: float
    p99: float
    most: float

    @classmethod
    def of(cls, some_ms: NDArray[np.int64]) -> Waits | None:
        """Compute the waits of messages; return None if there are none."""
        if not len(some_ms):
            return None
        median, p90, p99 = np.percentile(some_ms, [50, 90, 99])
        return cls(float(some_ms.mean()), float(median), float(p90), float(p99), float(some_ms.max()))

    def facts(self) -> dict[str, float]:
        """Return the facts for JSON."""
        return {f"{name}_ms": round(getattr(self, name), 1) for name in ("mean", "median", "p90", "p99", "most")}


@dataclass(slots=True)
class Course:
    """The course of a queue, in equal steps of time.

    Attributes:
        at_ms: the beginning of each step, ms since the epoch.
        depth: messages in the queue at the end of each step.
        fates: by fate, how many messages left in each step.
    """

    at_ms: list[int]
    depth: list[int]
    fates: dict[str, list[int]]


class Outcome:
    """What became of the messages of one run.

    Args:
        came_ms: instant of each message's arrival, or the instant for which it is scheduled, ms since the epoch.
        began_ms: see below.

    Attributes:
        came_ms: instant of each message's arrival, or the instant for which it is scheduled, ms since the epoch.
        first_ms: when each was first handed out, ms since the epoch; -1 if never.
        begun_ms: when a consumer first began to work on each, ms since the epoch; -1 if never.
        ended_ms: when each left, ms since the epoch; -1 if it is still in the queue.
        fates: what became of each, as an index of `names`; 0 if it is still in the queue.
        names: the names of the fates.
        deliveries: the number of deliveries.
        lapsed: leases that ended unsettled.
        cancelled: deliveries that consumers cancelled.
        in_vain: deliveries whose consumer settled too late, or whose message had left.
        dropped: deliveries that waited at a consumer until their leases were over, without any work on them.
        busy_ms: for how long consumers worked, all together, ms.
        began_ms: when the first message arrived, ms since the epoch. It may have been scheduled for later.
        ended_at_ms: the last instant at which something happened, ms since the epoch.
        endless: whether it was stopped because the same messages were delivered again and again.
    """

    def __init__(self, came_ms: NDArray[np.int64], began_ms: int) -> None:
        self.came_ms = came_ms
        self.first_ms: NDArray[np.int64] = np.full(len(came_ms), -1, np.int64)
        self.begun_ms: NDArray[np.int64] = np.full(len(came_ms), -1, np.int64)
        self.ended_ms: NDArray[np.int64] = np.full(len(came_ms), -1, np.int64)
        self.fates: NDArray[np.uint8] = np.zeros(len(came_ms), np.uint8)
        self.names = [LEFT]
        self.deliveries = self.lapsed = self.cancelled = self.in_vain = self.dropped = self.busy_ms = 0
        self.began_ms = self.ended_at_ms = began_ms
        self.endless = False
        self._numbers = {LEFT: 0}

    def end(self, which: list[int], fate: str, at_ms: int) -> None:
        """Note that messages left, by their indexes among the arrivals."""
        number = self._numbers.get(fate)
        if number is None:
            number = self._numbers[fate] = len(self.names)
            self.names.append(fate)
        places = which[0] if len(which) == 1 else which  # mostly one, for which a list is slow
        self.fates[places] = number
        self.ended_ms[places] = at_ms

    # Results

    def __len__(self) -> int:
        return len(self.came_ms)

    @property
    def counts(self) -> dict[str, int]:
        """The number of messages by fate; the most frequent first."""
        found = np.bincount(self.fates, minlength=len(self.names))
        pairs = [(name, int(found[at])) for at, name in enumerate(self.names) if found[at]]
        return dict(sorted(pairs, key=lambda pair: (-pair[1], pair[0])))

    @property
    def served(self) -> int:
        """The number of messages that a consumer finished."""
        return sum(count for name, count in self.counts.items() if name in SERVED)

    @property
    def served_share(self) -> float:
        """The share of finished messages, from 0 to 1; 1 without any message."""
        return self.served / len(self) if len(self) else 1.0

    @property
    def handed_out(self) -> int:
        """The number of messages that were handed out at least once."""
        return int((self.first_ms >= 0).sum())

    @property
    def deepest(self) -> int:
        """The most messages that were in the queue at once, without scheduled ones."""
        over = self.ended_ms >= 0
        counted = ~over | (self.ended_ms >= self.came_ms)  # others left while they were scheduled
        left_ms = self.ended_ms[over & counted]
        instants = np.concatenate([self.came_ms[counted], left_ms])
        changes = np.concatenate([np.ones(int(counted.sum()), np.int64), np.full(len(left_ms), -1, np.int64)])
        _, places = np.unique(instants, return_inverse=True)
        depths = np.cumsum(np.bincount(places, changes)) if len(instants) else np.zeros(1)
        return int(depths.max())

    @property
    def waits(self) -> Waits | None:
        """Times from arrival until a consumer first began to work."""
        begun = self.begun_ms >= 0
        return Waits.of(self.begun_ms[begun] - self.came_ms[begun])

    @property
    def stays(self) -> Waits | None:
        """Times from arrival to the end, of served messages."""
        served = self._has_fate(SERVED)
        return Waits.of(self.ended_ms[served] - self.came_ms[served])

    def busy_share(self, subscribers: int) -> float:
        """Return the share of the time in which the consumers worked, from 0 to 1."""
        passed_ms = self.ended_at_ms - self.began_ms
        return min(1.0, self.busy_ms / (subscribers * passed_ms)) if subscribers and passed_ms else 0.0

    def course(self, points: int = _MOST_POINTS, end_ms: int = 0) -> Course:
        """Return the course over time.

        Args:
            points: the number of steps.
            end_ms: the least end of the course, ms since the epoch.
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
        """Return the facts for JSON."""
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

    def _has_fate(self, fates: frozenset[str]) -> NDArray[np.bool_]:
        wanted = [number for name, number in self._numbers.items() if name in fates]
        found: NDArray[np.bool_] = np.isin(self.fates, wanted)
        return found
