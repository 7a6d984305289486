"""Measures a queue over two clusters: the time from publishing at one to the consumer at the other, ms (Q26).

It starts a second broker for the other side, and runs `lapse transfer --follow` as a user would.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments.load import create
from benchmarks.instruments.pace import Pace
from benchmarks.instruments.worker import Worker
from lapse.embedded import EmbeddedKafka
from lapse_client import Connection, Publisher, QueueSubscriber

_START_S = 60.0


def run(
    bootstrap_servers: str, rate: int = 200, seconds: float = 20.0, backlog: int = 500, expression: str = ""
) -> Figures:
    """Publish at a steady rate to a queue whose only consumer is at the other cluster.

    Args:
        bootstrap_servers: the broker of this side.
        rate: messages a second.
        seconds: how long to publish, s.
        backlog: the consumer's limit of unsettled deliveries; messages are only transferred up to this limit.
        expression: the consumer's filter, such as `/x IS NULL`, which all messages match; empty = none.
    """
    name = f"follow-{time.time_ns()}"
    with ExitStack() as stack:
        other = stack.enter_context(EmbeddedKafka(heap_mb=512, quick_start=False)).bootstrap_servers
        for servers in (bootstrap_servers, other):
            worker = stack.enter_context(Worker(servers, name, f'[queue.{name}]\nexpiration = "enabled"\n'))
            create(servers, name)
            worker.apply()
            worker.start()
        there = Connection(other)
        subscriber = stack.enter_context(
            QueueSubscriber(name, max_backlog=backlog, filter=expression or None, connection=there, timeout_s=90)
        )
        stack.enter_context(_following(bootstrap_servers, other, name))
        _warm(bootstrap_servers, name, subscriber)
        with Pace(bootstrap_servers, name, rate, seconds, warm_s=0) as pace:
            for batch in subscriber.batches(max_size=backlog, timeout=30):
                more = pace.received(delivery.value for delivery in batch)
                subscriber.acknowledge(batch)
                if not more:
                    break
        return pace.figures()


@contextmanager
def _following(here: str, there: str, queue: str) -> Iterator[None]:
    command = [sys.executable, "-m", "lapse", "transfer", queue, "-b", here, "--to", there, "--follow"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        yield
    finally:
        process.terminate()
        process.wait(30)


def _warm(here: str, queue: str, subscriber: QueueSubscriber) -> None:
    """Send first messages through, so that starting does not count.

    Raises:
        RuntimeError: They did not all arrive.
    """
    with Publisher(Connection(here)) as publisher:
        for number in range(100):
            publisher.publish(queue, b"%d" % number)
    came = 0
    while came < 100:
        delivery = subscriber.receive(_START_S)
        if delivery is None:
            raise RuntimeError(f"{came} of 100 messages were handed over within {_START_S:g} s")
        delivery.acknowledge()
        came += 1


if __name__ == "__main__":
    alone(run)
