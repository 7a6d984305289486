"""The plan of one run: size, speed and accidents. It is written to a file that all processes read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from lapse.demo.timetable import Timetable

_SPARE: Final = 1.2
"""The capacity of all subscribers together, relative to the average rate: enough on most days, but not on the
busiest, and not while one of them is dead."""

_BACKLOG_S: Final = 0.3
_LEAST_BACKLOG: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The plan of a run; durations are in ms of wall time.

    Attributes:
        bootstrap_servers: addresses of the broker.
        queue: name of the queue, and of its underlying topic.
        sow: name of the SOW topic.
        flights: how many flights are published.
        duration_ms: how long they take.
        lead_ms: how long before its scheduled departure a flight is announced, and can be served.
        aircraft_ttl_ms: how long an aircraft that has left stays in sight.
        partitions: the queue's number of partitions.
        workers: the number of worker processes.
        subscribers: the number of subscriber processes.
        cancel_share: share of deliveries that a subscriber cancels at random.
        max_cancels: how often a flight may be cancelled.
        max_deliveries: how often a flight may be delivered.
        lease_ms: the length of a lease.
        heartbeat_ms: silence after which a subscriber counts as lost.
        session_ms: silence after which a worker counts as dead.
        seed: the seed of everything random.
        start_ms: the instant at which the first flight is announced, ms since the epoch; 0 if not set yet.
    """

    bootstrap_servers: str
    queue: str
    sow: str
    flights: int
    duration_ms: int
    lead_ms: int = 2_000
    aircraft_ttl_ms: int = 2_500
    partitions: int = 4
    workers: int = 2
    subscribers: int = 4
    cancel_share: float = 0.04
    max_cancels: int = 2
    max_deliveries: int = 5
    lease_ms: int = 3_000
    heartbeat_ms: int = 1_500
    session_ms: int = 6_000
    seed: int = 2013
    start_ms: int = 0

    @property
    def service_s(self) -> float:
        """How long a subscriber takes to serve a flight, s."""
        per_second = self.flights / (self.duration_ms / 1000)
        return self.subscribers / (per_second * _SPARE)

    @property
    def max_backlog(self) -> int:
        """The most unsettled deliveries of a subscriber: what it serves in 0.3 s."""
        return max(_LEAST_BACKLOG, round(_BACKLOG_S / self.service_s))

    def with_start(self, start_ms: int) -> Plan:
        """Return the plan with its beginning set."""
        return replace(self, start_ms=start_ms)

    def timetable(self, first_ms: int, last_ms: int) -> Timetable:
        """Return the timetable of flights between two instants of 2013, ms since the epoch."""
        return Timetable(first_ms, last_ms, self.start_ms, self.duration_ms, self.lead_ms)

    def write(self, path: Path) -> None:
        """Write the plan for the other processes."""
        path.write_bytes(orjson.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read a plan that `write` has written."""
        return cls(**orjson.loads(path.read_bytes()))

    def configuration(self) -> str:
        """Return the `lapse.toml` of the run."""
        return f"""\
# A queue of departures: a flight's lifetime ends when it leaves, and a SOW topic of aircraft that left lately.

[lapse]
app_id = "{self.queue}-demo"
bootstrap_servers = "{self.bootstrap_servers}"
session_timeout = "{self.session_ms}ms"
definitions = "file"

[queue.{self.queue}]
partitions = {self.partitions}
expiration = "enabled"
lease_period = "{self.lease_ms}ms"
max_deliveries = {self.max_deliveries}
max_cancels = {self.max_cancels}

[sow.{self.sow}]
partitions = {max(1, self.partitions // 2)}
expiration = "{self.aircraft_ttl_ms}ms"
"""
