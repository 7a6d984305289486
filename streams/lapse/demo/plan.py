"""The plan of one run: how large, how fast, with which accidents; written to a file that all processes read."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Final

import orjson

from lapse.demo.timetable import Timetable

_SPARE: Final = 1.2
"""How much more than the average rate all subscribers together can serve: enough on most days, not on the busiest, and
not while one of them is dead."""

_BACKLOG_S: Final = 0.3
_LEAST_BACKLOG: Final = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What a run does; durations in ms of wall time.

    Attributes:
        bootstrap_servers: the broker.
        queue: name of the queue, and of its underlying topic.
        sow: name of the SOW topic.
        flights: how many flights are published.
        duration_ms: how long they take.
        lead_ms: how long before its scheduled departure a flight is announced, and can be served.
        aircraft_ttl_ms: how long an aircraft that has left stays in sight.
        partitions: of the queue.
        workers: processes that run the queue and the SOW topic.
        subscribers: processes that serve departures.
        cancel_share: share of deliveries that a subscriber gives back for no fault of the flight.
        max_cancels: how often a flight may be given back.
        max_deliveries: how often it may be delivered.
        lease_ms: how long a lease lasts.
        heartbeat_ms: silence after which a subscriber is taken for dead.
        session_ms: silence after which a worker is taken for dead.
        seed: of everything that is random.
        start_ms: the instant at which the first flight is announced, ms since the epoch; 0 = not decided yet.
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
        """How long a subscriber takes to serve a flight, in seconds."""
        per_second = self.flights / (self.duration_ms / 1000)
        return self.subscribers / (per_second * _SPARE)

    @property
    def max_backlog(self) -> int:
        """Deliveries that a subscriber may hold: what it serves in 0.3 s."""
        return max(_LEAST_BACKLOG, round(_BACKLOG_S / self.service_s))

    def starting_at(self, start_ms: int) -> Plan:
        """The same plan with its beginning decided."""
        return replace(self, start_ms=start_ms)

    def timetable(self, first_ms: int, last_ms: int) -> Timetable:
        """The timetable of flights between two instants of 2013, ms since the epoch."""
        return Timetable(first_ms, last_ms, self.start_ms, self.duration_ms, self.lead_ms)

    def write(self, path: Path) -> None:
        """Write it for the other processes."""
        path.write_bytes(orjson.dumps(asdict(self)))

    @classmethod
    def read(cls, path: Path) -> Plan:
        """Read what `write` has written."""
        return cls(**orjson.loads(path.read_bytes()))

    def configuration(self) -> str:
        """The `lapse.toml` of the run."""
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
