"""lapse: upserts of a SOW topic, durable in the journal and written to the compacted topic."""

from __future__ import annotations

import time

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments.load import KEYS, create, publish
from benchmarks.instruments.log import Ends
from benchmarks.instruments.worker import Worker
from lapse.protocol import topic as topics
from lapse_client import Connection, SowClient


def run(bootstrap_servers: str, messages: int = 200_000) -> Figures:
    """Publish, start a worker, and query the last record: the answer waits for all records before it.

    The time runs from the first record on the compacted topic. Records that are already there do not count.
    """
    name = f"sow-{time.time_ns()}"
    with (
        Worker(bootstrap_servers, name, f'[sow.{name}]\nexpiration = "enabled"\n') as worker,
        Ends(bootstrap_servers) as ends,
    ):
        create(bootstrap_servers, name)
        worker.apply()
        publish(bootstrap_servers, name, messages)
        state = topics.sow(name)
        worker.start()
        worker.until(lambda: ends.of(state), every_s=0.005)
        watch = Stopwatch(worker.process)
        there = min(ends.of(state), messages // 2)
        with SowClient(name, connection=Connection(bootstrap_servers), timeout_s=120) as client:
            found = list(client.query(keys=[b"k%d" % ((messages - 1) % KEYS)]))
        figures = watch.figures(messages - there)
        if not found:
            raise RuntimeError("the last record is not there")
        return figures


if __name__ == "__main__":
    alone(run)
