"""Simulates a queue with every departure from New York in 2013, in virtual time (X10).

Each flight is announced two hours ahead, and its lifetime ends at departure. Four consumers are enough for the average
day, but not for the busiest. `lapse demo --keep` and `lapse simulate NAME --replay` process a recorded year instead.
"""

from __future__ import annotations

import time
from functools import cache

import psutil

from benchmarks.comparison.contestant import Figures, alone, cpu_s
from lapse.config import QueueConfig
from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.core.sow.keys.home import murmur2
from lapse.demo import flights
from lapse.simulation.arrival import Arrival, Arrivals, Record
from lapse.simulation.crew import Crew
from lapse.simulation.distribution import distribution
from lapse.simulation.scenario import Scenario, simulate
from lapse.uncollected import uncollected

_LEAD_MS = 2 * 3_600_000
_PARTITIONS = 4
_CONSUMERS = 4
_SERVICE = "exponential:5m"
"""Time to serve a flight. The consumers serve 48 flights an hour; 38 depart in an average hour."""


def run(most: int = flights.IN_ALL, seed: int = 2013) -> Figures:
    """Simulate the year, and measure the simulation.

    Args:
        most: how many flights to take, from the first on.
        seed: the seed of the consumers' service times.
    """
    process = psutil.Process()
    began, before = time.perf_counter(), cpu_s(process)
    arrivals = _arrivals(most)
    config = QueueConfig(
        partitions=_PARTITIONS, expiration="enabled", lease_period="1h", max_deliveries=5, max_cancels=2
    )
    crew = Crew(_CONSUMERS, 8, distribution(_SERVICE), 0.04)
    done = simulate("flights", Scenario({}, config, crew), arrivals, seed).facts()
    return {
        "flights": float(done["messages"]),
        "served": float(done["served"]),
        "too_late": float(done["fates"].get("time_limit", 0)),
        "days": done["took_ms"] / 86_400_000,
        "cpu_s": cpu_s(process) - before,
        "seconds": time.perf_counter() - began,
    }


@uncollected()
def _arrivals(most: int) -> Arrivals:
    year = flights.load(most)
    offsets = [0] * _PARTITIONS
    some: list[Arrival] = []
    departures = zip(year.scheduled_ms.tolist(), year.departed_ms.tolist(), strict=True)
    for place, (scheduled_ms, departed_ms) in enumerate(departures):
        at_ms, key = scheduled_ms - _LEAD_MS, year.key(place).encode()
        partition = _partition_of(key)
        deadline = max(departed_ms, at_ms)
        record = Record(offsets[partition], at_ms, key, b"{}", ((EXPIRES_AT_MS, b"%d" % deadline),))
        offsets[partition] += 1
        some.append(Arrival(at_ms, "flights", partition, record))
    return Arrivals(some, _PARTITIONS)


@cache
def _partition_of(key: bytes) -> int:
    """Return the partition of a flight by its key, which most flights share with those of other days."""
    return (murmur2(key) & 0x7FFFFFFF) % _PARTITIONS


if __name__ == "__main__":
    alone(run)
