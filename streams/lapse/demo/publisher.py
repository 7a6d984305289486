"""The publisher's process: announces flights to the queue, and aircraft to the SOW topic when they leave.

It exchanges lines of JSON with the director: it writes `ready` with the first and the last instant, reads `start_ms`,
and then reports its progress.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import numpy as np
import orjson

from lapse.demo.flights import Flights, load
from lapse.demo.plan import Plan
from lapse.demo.timetable import Timetable
from lapse_client import Connection, Publisher

_STEP_S: Final = 0.01
"""Messages that are due within a step, s, are sent together."""

_REPORT_MS: Final = 250


def main(path: Path) -> None:
    """Publish all flights of the plan at their instants."""
    plan = Plan.read(path)
    flights = load(plan.flights)
    with Publisher(Connection.from_environment(plan.bootstrap_servers)) as publisher:
        print_line(ready=True, first_ms=flights.first_ms, last_ms=flights.last_ms, flights=len(flights))
        plan = plan.with_start(orjson.loads(sys.stdin.readline())["start_ms"])
        timetable = plan.timetable(flights.first_ms, flights.last_ms)
        deadlines_ms = timetable.wall_ms(flights.departed_ms).tolist()
        reported_ms = now_ms = time.time() * 1000
        published = [0, 0]
        for due_ms, number, leaves in agenda(flights, timetable):
            while due_ms > now_ms:
                publisher.poll(0)
                time.sleep(max(_STEP_S, (due_ms - now_ms) / 1000))
                now_ms = time.time() * 1000
                if now_ms - reported_ms > _REPORT_MS:
                    reported_ms = now_ms
                    print_line(published=published[0], aircraft=published[1])
            if leaves:
                publisher.publish(plan.sow, flights.sighting(number), flights.tails[number])
            else:
                value, key = flights.announcement(number), flights.key(number)
                publisher.publish(plan.queue, value, key, expires_at_ms=deadlines_ms[number])
            published[leaves] += 1
        publisher.flush()
    print_line(published=published[0], aircraft=published[1], done=True)


def agenda(flights: Flights, timetable: Timetable) -> Iterator[tuple[int, int, bool]]:
    """Yield what to publish, in the order of wall time.

    Yields:
        The wall instant in ms since the epoch, the index of the flight, and whether its aircraft leaves. If not, the
            flight is announced.
    """
    leaving = np.flatnonzero(~flights.cancelled & np.array([bool(tail) for tail in flights.tails], dtype=np.bool_))
    announced_ms = timetable.announced_ms(flights.scheduled_ms)
    departed_ms = timetable.wall_ms(flights.departed_ms[leaving])
    due_ms = np.concatenate([announced_ms, departed_ms])
    numbers = np.concatenate([np.arange(len(flights)), leaving])
    order = np.argsort(due_ms, kind="stable")
    leaves = order >= len(flights)
    yield from zip(due_ms[order].tolist(), numbers[order].tolist(), leaves.tolist(), strict=True)


def print_line(**what: Any) -> None:
    """Write a line of JSON to the director."""
    sys.stdout.buffer.write(orjson.dumps(what) + b"\n")
    sys.stdout.buffer.flush()


if __name__ == "__main__":
    main(Path(sys.argv[1]))
