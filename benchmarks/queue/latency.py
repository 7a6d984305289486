"""lapse: the time from publishing to the consumer, ms. Deliveries wait for the journal."""

from __future__ import annotations

import time

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments.load import create
from benchmarks.instruments.pace import Pace
from benchmarks.instruments.stages import Stages
from benchmarks.instruments.worker import Worker
from lapse_client import Connection, QueueSubscriber

_QUIET_S = 1.0


def run(bootstrap_servers: str, rate: int = 200, seconds: float = 6.0, linger_ms: float = 0.0) -> Figures:
    """Publish at a steady rate to a queue with a worker and one subscriber."""
    name, stages = f"latency-{time.time_ns()}", Stages()
    entity = f'[queue.{name}]\nexpiration = "enabled"\n'
    with Worker(bootstrap_servers, name, entity, options=stages.options) as worker:
        create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        connection = Connection(bootstrap_servers)
        with QueueSubscriber(name, max_backlog=max(2_000, rate), connection=connection, timeout_s=90) as subscriber:
            time.sleep(_QUIET_S)
            stages.begin()
            watch = Stopwatch(worker.process)
            with Pace(bootstrap_servers, name, rate, seconds, linger_ms) as pace:
                for batch in subscriber.batches(max_size=500, timeout=20):
                    more = pace.received(delivery.value for delivery in batch)
                    subscriber.acknowledge(batch)
                    if not more:
                        break
            return {**watch.figures(pace.count), **pace.figures(), **stages.figures()}


if __name__ == "__main__":
    alone(run)
