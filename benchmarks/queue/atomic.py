"""Compares atomic work, with outputs and acknowledgments in transactions, with plain work.

Plain work publishes an output, waits until Kafka has it, and acknowledges: at least once. Both are measured with one
message at a time, and with many.
"""

from __future__ import annotations

import time

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.instruments.load import create, publish
from benchmarks.instruments.worker import Worker
from lapse_client import Connection, Delivery, Publisher, QueueSubscriber

_BACKLOG = 5_000


def run(bootstrap_servers: str, messages: int = 20_000) -> Figures:
    """Process messages in each way, and return the messages a second.

    Args:
        bootstrap_servers: the broker.
        messages: the number of messages for a hundred at a time; a tenth of it for one at a time.
    """
    figures: Figures = {}
    for at_once, count in ((1, messages // 10), (100, messages)):
        for way in ("plain", "atomic"):
            figures[f"{way}_{at_once}"] = _rate(bootstrap_servers, way, at_once, count)
    for at_once in (1, 100):
        figures[f"plain_to_atomic_{at_once}"] = figures[f"plain_{at_once}"] / figures[f"atomic_{at_once}"]
    return figures


def _rate(bootstrap_servers: str, way: str, at_once: int, messages: int) -> float:
    name = f"bench-{time.time_ns()}"
    entity = f'[queue.{name}]\nlease_period = "60s"\n'
    connection = Connection(bootstrap_servers)
    with Worker(bootstrap_servers, name, entity) as worker:
        create(bootstrap_servers, name)
        create(bootstrap_servers, f"{name}-out")
        worker.apply()
        publish(bootstrap_servers, name, messages)
        worker.start()
        with (
            QueueSubscriber(name, _BACKLOG, connection=connection, timeout_s=60) as subscriber,
            Publisher(connection) as publisher,
        ):

            def plain(batch: list[Delivery]) -> None:
                for one in batch:
                    publisher.publish(f"{name}-out", one.value, one.key)
                publisher.flush()
                subscriber.acknowledge(batch)

            def atomic(batch: list[Delivery]) -> None:
                with subscriber.transaction(batch) as tx:
                    for one in batch:
                        tx.produce(f"{name}-out", one.value, one.key)

            work = {"plain": plain, "atomic": atomic}[way]
            done, began = 0, 0.0
            for batch in subscriber.batches(max_size=at_once, timeout=60):
                work(batch)
                began = began or time.perf_counter()  # after the first batch, which had to connect
                done += len(batch)
                if done >= messages:
                    break
            return (messages - at_once) / (time.perf_counter() - began)


if __name__ == "__main__":
    alone(run)
