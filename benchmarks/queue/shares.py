"""Measures shares, waiting times and costs in a queue of one tenant with a large backlog and many others."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Sequence

import orjson
from confluent_kafka import Producer

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments.load import create, publish
from benchmarks.instruments.pace import spread
from benchmarks.instruments.worker import Worker
from lapse_client import Connection, QueueSubscriber

_WINDOW_S = 10
_GREAT = "great"
_TIMES = 100
_VISITORS = 20
_BACKLOG = 100
_MARGIN = 1.3
"""The backlog of a small tenant relative to its fair share in the time."""


def run(
    bootstrap_servers: str, fair: bool = True, others: int = 200, rate: int = 1_000, seconds: float = 25.0
) -> Figures:
    """Consume at a limited rate while one tenant has 100 times the backlog of each of the others.

    Meanwhile visitors publish a message each, every second.

    Args:
        bootstrap_servers: the broker.
        fair: whether the queue has groups; else it is a plain one.
        others: the number of small tenants.
        rate: messages a second that the consumer handles.
        seconds: how long it does, s.
    """
    name = f"shares-{time.time_ns()}"
    options = 'group_by = "/tenant"\ngroup_limit = 1000' if fair else ""
    each = int(_MARGIN * rate * seconds / (others + 1))
    tenants = [_GREAT] * (_TIMES * each) + [f"tenant-{number}" for _ in range(each) for number in range(others)]
    with Worker(bootstrap_servers, name, f'[queue.{name}]\nlease_period = "60s"\n{options}\n') as worker:
        create(bootstrap_servers, name)
        worker.apply()
        publish(
            bootstrap_servers, name, len(tenants), headers=[[]], payload=lambda number: encode_message(tenants[number])
        )
        worker.start()
        connection = Connection(bootstrap_servers)
        with QueueSubscriber(name, max_backlog=_BACKLOG, connection=connection, timeout_s=90) as subscriber:
            return _consume(subscriber, worker, Visitors(bootstrap_servers, name), others, rate, seconds)


def encode_message(tenant: str, at: float = 0.0) -> bytes:
    """Return a message of a tenant; `at` is when it was published, on this process's clock, s."""
    return b'{"tenant":"%s","at":%.6f,"note":"%s"}' % (tenant.encode(), at, b"x" * 150)


def _consume(
    subscriber: QueueSubscriber, worker: Worker, visitors: Visitors, others: int, rate: int, seconds: float
) -> Figures:
    """Handle `rate` messages a second, and note their tenants."""
    served: list[tuple[float, str]] = []
    waits_s: dict[float, float] = {}
    watch: Stopwatch | None = None
    began = 0.0
    for batch in subscriber.batches(max_size=20, timeout=60):
        now = time.perf_counter()
        if watch is None:
            watch, began = Stopwatch(worker.process), now
            visitors.begin()
        for one in batch:
            message = orjson.loads(one.value or b"")
            served.append((now - began, message["tenant"]))
            if message["at"]:
                waits_s[message["at"]] = now - message["at"]
        subscriber.acknowledge(batch)
        if now - began >= seconds:
            break
        time.sleep(max(0.0, began + len(served) / rate - time.perf_counter()))
    visitors.end()
    figures = watch.figures(len(served)) if watch is not None else {}
    now = time.perf_counter()
    of_visitors = [waits_s.get(at, now - at) for at in visitors.published]  # undelivered messages have waited until now
    return {**figures, "jain": _least_jain(served, others, seconds), **spread(of_visitors, 1e3)}


def _least_jain(served: Sequence[tuple[float, str]], others: int, seconds: float) -> float:
    """Return Jain's index of the shares of tenants with a backlog, the lowest of any ten seconds."""
    tenants = [_GREAT, *(f"tenant-{number}" for number in range(others))]
    found = []
    for begin in range(max(1, int(seconds) - _WINDOW_S)):
        got = Counter(tenant for at, tenant in served if begin <= at < begin + _WINDOW_S)
        counts = [got[tenant] for tenant in tenants]
        found.append(sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts)))
    return min(found)


class Visitors:
    """Tenants without a backlog, each of which publishes a message every second.

    Args:
        bootstrap_servers: the broker.
        topic: the topic to publish to.
    """

    def __init__(self, bootstrap_servers: str, topic: str) -> None:
        self.published: list[float] = []
        self._topic = topic
        self._producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "acks": "all"})
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._publish, daemon=True)

    def begin(self) -> None:
        """Start publishing."""
        self._thread.start()

    def end(self) -> None:
        """Stop publishing."""
        self._over.set()
        self._thread.join()
        self._producer.flush(10)

    def _publish(self) -> None:
        number = 0
        while not self._over.wait(1 / _VISITORS):
            at = round(time.perf_counter(), 6)
            self._producer.produce(self._topic, encode_message(f"visitor-{number % _VISITORS}", at))
            self._producer.poll(0)
            self.published.append(at)
            number += 1


if __name__ == "__main__":
    alone(run)
