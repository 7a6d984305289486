"""The crew: the consumers of a simulated queue, how many they are and how long each takes over a message."""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Final, NamedTuple

from lapse.simulation.distribution import Distribution, seeded

_DRAWN: Final = 4
"""How many deliveries of a message have times of their own; further ones use them again."""


@dataclass(frozen=True, slots=True)
class Crew:
    """Consumers.

    Attributes:
        subscribers: how many there are.
        backlog: most unsettled deliveries that each has at once, over all partitions (Q3).
        service: how long each takes over a message.
        cancels: which share of the deliveries is cancelled instead of acknowledged, from 0 to 1.
        recorded_ms: how long the consumer took over a message, by its place among the arrivals, where that is known.
    """

    subscribers: int
    backlog: int
    service: Distribution
    cancels: float = 0.0
    recorded_ms: Mapping[int, int] = field(default_factory=dict)


class Handed(NamedTuple):
    """A delivery.

    Attributes:
        shard: of which shard.
        at: which message, by its place among the arrivals.
        times: its delivery count.
        until_ms: end of its lease, ms since the epoch; 0 = none.
    """

    shard: int
    at: int
    times: int
    until_ms: int


class Consumer:
    """One consumer, which works on one message at a time, in the order in which it got them.

    Args:
        name: of its subscription.

    Attributes:
        name: the same.
        handed: what waits at it; the first is the one that it works on.
        working: whether it works on the first of them.
    """

    def __init__(self, name: str) -> None:
        self.name = name
        self.handed: deque[Handed] = deque()
        self.working = False


class Work:
    """What the consumers do with each delivery: the same in every run with the same seed, whoever gets it.

    Args:
        crew: the consumers.
        seed: of the draws.
    """

    def __init__(self, crew: Crew, seed: int) -> None:
        self._crew = crew
        self._seed = seed
        self._times: list[list[float]] = [[] for _ in range(_DRAWN)]
        self._chances = [seeded(f"{seed}:service:{attempt}") for attempt in range(_DRAWN)]

    def takes_ms(self, one: Handed) -> int:
        """How long a consumer takes over a delivery, ms; 1 or more."""
        known_ms = self._crew.recorded_ms.get(one.at)
        return max(1, round(self._drawn_ms(one) if known_ms is None else known_ms))

    def cancels(self, one: Handed) -> bool:
        """Whether the consumer gives it back."""
        share = self._crew.cancels
        if not share:
            return False
        drawn = blake2b(b"%d:%d:%d" % (self._seed, one.at, one.times), digest_size=8).digest()
        return int.from_bytes(drawn, "big") < share * 2**64

    def _drawn_ms(self, one: Handed) -> float:
        attempt = (one.times - 1) % _DRAWN
        times, chance = self._times[attempt], self._chances[attempt]
        while len(times) <= one.at:
            times.append(self._crew.service.draw(chance))
        return times[one.at]
