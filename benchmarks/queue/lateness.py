"""Measures how late messages expire while a worker is under half load."""

from __future__ import annotations

import time

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.comparison.contestant import Figures, alone, cpu_s
from benchmarks.instruments.load import Headers, create, publish
from benchmarks.instruments.log import Ends
from benchmarks.instruments.pace import spread
from benchmarks.instruments.worker import Worker
from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import header
from lapse.protocol import topic as topics

_LIFETIMES: list[Headers] = [[("lapse-ttl-ms", b"%d" % ms)] for ms in range(1000, 3000, 7)]
_AT_ONCE_S = 0.01


def run(bootstrap_servers: str, seconds: float = 8.0, rate: int = 0, calibration: int = 60_000) -> Figures:
    """Publish messages that live one to three seconds, at half of the rate that the worker could handle.

    Args:
        bootstrap_servers: the broker.
        seconds: how long to publish, s.
        rate: messages a second; 0 = half of the rate that takes one core, which is measured first.
        calibration: the number of messages of that measurement.
    """
    name = f"late-{time.time_ns()}"
    letters = topics.dead_letters(name)
    entity = f'[queue.{name}]\nexpiration = "enabled"\n'
    with Worker(bootstrap_servers, name, entity) as worker, Ends(bootstrap_servers) as ends:
        create(bootstrap_servers, name)
        worker.apply()
        worker.start()
        publish(bootstrap_servers, name, 1, headers=_LIFETIMES)
        worker.until(lambda: ends.of(letters) >= 1)
        before = cpu_s(worker.process)
        publish(bootstrap_servers, name, calibration, headers=_LIFETIMES)
        worker.until(lambda: ends.of(letters) >= calibration + 1)
        cost_s = (cpu_s(worker.process) - before) / calibration
        rate = rate or int(0.5 / cost_s)
        began = cpu_s(worker.process), time.perf_counter()
        count = _publish(bootstrap_servers, name, rate, seconds)
        load = (cpu_s(worker.process) - began[0]) / (time.perf_counter() - began[1])
        expected = count + calibration + 1
        worker.until(lambda: ends.of(letters) >= expected)
        decided, written = _lateness(bootstrap_servers, letters, calibration + 1, expected)
    return {
        "messages": count,
        "rate": rate,
        "worker_us": cost_s * 1e6,
        "load": load,
        **{f"decided_{key}": value for key, value in spread(decided).items()},
        **{f"written_{key}": value for key, value in spread(written).items()},
    }


def _publish(bootstrap_servers: str, topic: str, rate: int, seconds: float) -> int:
    """Publish at a steady rate, the messages of 10 ms at once. Return the number of messages."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 5, "acks": "all"})
    producer.list_topics(topic, timeout=10)
    began = time.perf_counter()
    count, total = 0, int(rate * seconds)
    while count < total:
        due = min(total, int((time.perf_counter() - began) * rate) + 1)
        for number in range(count, due):
            producer.produce(topic, b"x" * 200, headers=_LIFETIMES[number * 131 % len(_LIFETIMES)])
        count = max(count, due)
        producer.poll(_AT_ONCE_S)
    producer.flush()
    return count


def _lateness(bootstrap_servers: str, letters: str, first: int, stop: int) -> tuple[list[int], list[int]]:
    """Return the delays after the deadline, ms: of the decisions, and of the letters' timestamps by the broker."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "late", "enable.auto.commit": False})
    consumer.assign([TopicPartition(letters, 0, first)])
    decided: list[int] = []
    written: list[int] = []
    while len(decided) < stop - first:
        batch = consumer.consume(5_000, 5)
        if not batch:
            raise RuntimeError(f"{len(decided)} of {stop - first} letters read")
        for message in batch:
            if message.error() is None:
                stated = dict(message.headers() or ())
                deadline_ms = int(stated[EXPIRES_AT_MS] or 0)
                decided.append(int(stated[header.EXPIRED_AT_MS] or 0) - deadline_ms)
                written.append(message.timestamp()[1] - deadline_ms)
    consumer.close()
    return decided, written


if __name__ == "__main__":
    alone(run)
