"""Measures many records of a SOW topic due within one second: the time until all are gone and subscribers know."""

from __future__ import annotations

import json
import time

from confluent_kafka import Producer

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments.load import Headers, create, publish
from benchmarks.instruments.log import Ends
from benchmarks.instruments.worker import Worker
from lapse.protocol import topic as topics
from lapse_client import Connection, SowClient

_BEFORE_S = 3.0
_PATIENCE_S = 180.0


def run(
    bootstrap_servers: str,
    messages: int = 1_000_000,
    lead_s: float = 0.0,
    store: str = "memory",
    subscribed: bool = True,
) -> Figures:
    """Store records whose deadlines fall into one future second.

    The time runs from the first deadline until the compacted topic has a tombstone of each record, and a subscription
    to all of them has an out-of-focus notice of each. No client reads these notices.

    Args:
        bootstrap_servers: the broker.
        messages: the number of records that are due.
        lead_s: how long publishing and reading them may take, s; 0 = an estimate.
        store: `memory` or `rocksdb`.
        subscribed: whether there is a subscription.
    """
    name = f"sow-expiry-{time.time_ns()}"
    lead_s = lead_s or 30 + messages / 15_000
    state, deliveries = topics.sow(name), topics.deliveries(name)
    entity = f'[sow.{name}]\nexpiration = "enabled"\n'
    with Worker(bootstrap_servers, name, entity, store) as worker, Ends(bootstrap_servers) as ends:
        create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        if subscribed:
            _subscribe(bootstrap_servers, name)
        worker.until(lambda: ends.of(deliveries) >= (2 if subscribed else 1), timeout_s=60)  # the epoch and the answer
        due_s = time.time() + lead_s
        first_ms = int(due_s * 1000)
        headers: list[Headers] = [[("lapse-expires-at-ms", b"%d" % (first_ms + ms))] for ms in range(1000)]
        publish(bootstrap_servers, name, messages, headers=headers, keys=messages)
        worker.until(lambda: ends.of(state) >= messages, timeout_s=lead_s, every_s=0.2)
        if (late_s := time.time() + _BEFORE_S - due_s) > 0:
            raise RuntimeError(f"taken in {late_s:.0f} s too late; give more lead_s than {lead_s:.0f}")
        before = ends.of(deliveries)
        time.sleep(due_s - time.time())
        watch = Stopwatch(worker.process)
        worker.until(
            lambda: ends.of(state) >= 2 * messages and ends.of(deliveries) >= before + subscribed * messages,
            timeout_s=_PATIENCE_S,
            every_s=0.02,
        )
        seconds = time.time() - due_s
        figures = watch.figures(messages)
        with SowClient(name, connection=Connection(bootstrap_servers), timeout_s=60) as client:
            left = sum(1 for _ in client.query())
        if left:
            raise RuntimeError(f"{left} records are left")
        return {**figures, "seconds": seconds, "rate": messages / seconds}


def _subscribe(bootstrap_servers: str, name: str) -> None:
    """Subscribe to all records, without a client that reads the subscription."""
    command = {"command": "subscribe", "id": "1", "subscription": "all", "heartbeat_timeout_ms": 3_600_000}
    producer = Producer({"bootstrap.servers": bootstrap_servers, "acks": "all"})
    producer.produce(topics.commands(name), json.dumps(command).encode(), partition=0)
    producer.flush()


if __name__ == "__main__":
    alone(run)
