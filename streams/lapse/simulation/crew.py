"""The crew: the consumers of a simulated queue, their number and their service times."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from lapse.simulation.distribution import Distribution, seeded

_DRAWN: Final = 4
"""How many deliveries of a message have service times of their own. Further ones use them again."""

_AHEAD: Final = 256
"""How many service times are drawn at once, since one by one takes longer."""


@dataclass(frozen=True, slots=True)
class Crew:
    """The consumers.

    Attributes:
        subscribers: the number of consumers.
        backlog: the most unsettled deliveries of each consumer, over all partitions (Q3).
        service: how long a consumer works on a message.
        cancels: the share of deliveries that are cancelled instead of acknowledged, from 0 to 1.
        recorded_ms: by index among the arrivals, how long a consumer worked on the message, ms, where that is known.
    """

    subscribers: int
    backlog: int
    service: Distribution
    cancels: float = 0.0
    recorded_ms: Mapping[int, int] = field(default_factory=dict)


class Handed(NamedTuple):
    """A delivery.

    Attributes:
        shard: the shard's number.
        at: the message's index among the arrivals.
        times: its delivery count.
        until_ms: end of its lease, ms since the epoch; 0 without one.
    """

    shard: int
    at: int
    times: int
    until_ms: int


class Consumer:
    """One consumer, which works on one message at a time, in the order of their deliveries.

    Args:
        number: its number among the consumers.
        name: name of its subscription.

    Attributes:
        number: its number among the consumers.
        name: name of its subscription.
        handed: its waiting deliveries. It works on the first one.
        working: whether it works on the first one now.
    """

    def __init__(self, number: int, name: str) -> None:
        self.number = number
        self.name = name
        self.handed: deque[Handed] = deque()
        self.working = False


class Work:
    """The work on each delivery. It is the same in every run with the same seed, whichever consumer gets the delivery.

    Args:
        crew: the consumers.
        seed: the seed of random values.
    """

    def __init__(self, crew: Crew, seed: int) -> None:
        self._recorded_ms = crew.recorded_ms
        self._seed = seed
        self._cancelled_below = math.ceil(crew.cancels * 2**64)
        """Deliveries for which a lower number of 64 bits is drawn are cancelled."""
        self._times: list[list[float]] = [[] for _ in range(_DRAWN)]
        self._draw = [crew.service.drawing(seeded(f"{seed}:service:{attempt}")) for attempt in range(_DRAWN)]

    def work_ms(self, one: Handed) -> int:
        """Return how long a consumer works on a delivery, ms; at least 1."""
        known_ms = self._recorded_ms.get(one.at)
        return max(1, round(self._drawn_ms(one) if known_ms is None else known_ms))

    def cancels(self, one: Handed) -> bool:
        """Return whether the consumer cancels the delivery."""
        if not self._cancelled_below:
            return False
        drawn = blake2b(b"%d:%d:%d" % (self._seed, one.at, one.times), digest_size=8).digest()
        return int.from_bytes(drawn, "big") < self._cancelled_below

    def _drawn_ms(self, one: Handed) -> float:
        attempt = (one.times - 1) % _DRAWN
        times, draw = self._times[attempt], self._draw[attempt]
        if len(times) <= one.at:
            times += [draw() for _ in range(one.at + _AHEAD - len(times))]
        return times[one.at]
