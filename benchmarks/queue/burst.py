"""Measures many messages due within one second: the time until all dead letters, and publishing meanwhile."""

from __future__ import annotations

import time
from collections.abc import Callable

from confluent_kafka import Producer

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments.load import PAYLOAD_BYTES, Headers, create, publish
from benchmarks.instruments.log import Ends
from benchmarks.instruments.worker import Worker
from lapse.protocol import topic as topics
from lapse_client import Connection, Queue

_BEFORE_S = 5.0
_AT_ONCE = 100
_PATIENCE_S = 180.0


def run(bootstrap_servers: str, messages: int = 1_000_000, lead_s: float = 0.0) -> Figures:
    """Queue messages whose deadlines fall into one future second, and publish others before and during it.

    The publisher writes 100 messages, waits until Kafka has them, and continues at once. It uses its share of the
    processors, too. The time runs from the first deadline to the last dead letter on its topic.

    Args:
        bootstrap_servers: the broker.
        messages: the number of messages that are due.
        lead_s: how long publishing and reading them may take, s; 0 = an estimate.
    """
    name = f"burst-{time.time_ns()}"
    lead_s = lead_s or 20 + messages / 30_000
    entity = f'[queue.{name}]\nexpiration = "enabled"\n'
    with Worker(bootstrap_servers, name, entity) as worker, Ends(bootstrap_servers) as ends:
        create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        due_s = time.time() + lead_s
        first_ms = int(due_s * 1000)
        headers: list[Headers] = [[("lapse-expires-at-ms", b"%d" % (first_ms + ms))] for ms in range(1000)]
        publish(bootstrap_servers, name, messages, headers=headers)
        with Queue(name, connection=Connection(bootstrap_servers)) as queue:
            worker.until(lambda: queue.depth()["depth"] >= messages, every_s=0.5)
        if (late_s := time.time() + _BEFORE_S - due_s) > 0:
            raise RuntimeError(f"taken in {late_s:.0f} s too late; give more lead_s than {lead_s:.0f}")
        time.sleep(due_s - _BEFORE_S - time.time())
        before = _publish(bootstrap_servers, name, lambda: time.time() >= due_s)
        letters = topics.dead_letters(name)
        watch = Stopwatch(worker.process)
        give_up = due_s + _PATIENCE_S
        during = _publish(bootstrap_servers, name, lambda: ends.of(letters) >= messages or time.time() > give_up)
        seconds = time.time() - due_s
        if ends.of(letters) < messages:
            raise RuntimeError(f"{ends.of(letters)} of {messages} letters after {seconds:.0f} s")
        return {
            **watch.figures(messages),
            "seconds": seconds,
            "rate": messages / seconds,
            "publish_before": before,
            "publish_during": during,
            "publish_ratio": during / before,
        }


def _publish(bootstrap_servers: str, topic: str, done: Callable[[], bool]) -> float:
    """Publish in a closed loop until `done` is true. Return the messages a second."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 1, "acks": "all"})
    producer.list_topics(topic, timeout=10)
    payload = b"p" * PAYLOAD_BYTES
    began, count = time.perf_counter(), 0
    looked = began
    while True:
        for _ in range(_AT_ONCE):
            producer.produce(topic, payload)
        producer.flush()
        count += _AT_ONCE
        now = time.perf_counter()
        if now - looked > 0.02:
            looked = now
            if done():
                return count / (now - began)


if __name__ == "__main__":
    alone(run)
