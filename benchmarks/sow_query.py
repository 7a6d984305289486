"""Queries of a SOW topic, and what they do to the updates that subscribers wait for meanwhile."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from itertools import pairwise

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.contestant import Figures, alone
from benchmarks.load import create, order, publish
from benchmarks.log import Ends
from benchmarks.worker import Worker
from lapse.protocol import header
from lapse.protocol import topic as topics
from lapse_client import Connection, SowClient

_WARM_UP_S = 20.0
"""A broker that has just been started compiles its code meanwhile, on the same cores."""

_QUIET_S = 4.0
_EVERY_S = 0.005
_QUERIES = 3


def run(bootstrap_servers: str, messages: int = 100_000, order_by: str = "", top_n: int = 0) -> Figures:
    """Ask for the records that match a filter, while other records are updated every 5 ms and a subscription is told.

    How long an update took is what the broker's clock says: from the update in its topic to the subscription's record
    in the deliveries; so is the longest time in which none was delivered. The same is measured before, with nobody
    asking; before that the broker warms up.

    Args:
        bootstrap_servers: the broker.
        messages: how many records the topic has; one in a hundred matches.
        order_by: in which order they are asked for; empty = in any.
        top_n: at most so many; 0 = all.
    """
    name = f"sow-query-{time.time_ns()}"
    state, told = topics.sow(name), topics.deliveries(name)
    with (
        Worker(bootstrap_servers, name, f'[sow.{name}]\nexpiration = "enabled"\n') as worker,
        Ends(bootstrap_servers) as ends,
    ):
        create(bootstrap_servers, name)
        worker.apply()
        publish(bootstrap_servers, name, messages, payload=order, keys=messages)
        worker.start()
        worker.until(lambda: ends.of(state) >= messages)
        begin = ends.of(told)
        seconds: list[float] = []
        with (
            _updates(bootstrap_servers, name),
            SowClient(name, connection=Connection(bootstrap_servers), timeout_s=120) as client,
        ):
            warm = time.monotonic() + _WARM_UP_S
            while time.monotonic() < warm:
                list(client.query("/price >= 990", order_by=order_by or None, top_n=top_n or None))
                time.sleep(0.5)
            quiet_from_ms = time.time() * 1000
            time.sleep(_QUIET_S)
            asked = [time.time()]
            for _ in range(_QUERIES):
                began = time.perf_counter()
                found = list(client.query("/price >= 990", order_by=order_by or None, top_n=top_n or None))
                seconds.append(time.perf_counter() - began)
                if len(found) != (top_n or messages // 100):
                    raise RuntimeError(f"{len(found)} records")
            asked.append(time.time())
        time.sleep(0.5)
        before, during, pause_ms = _waits(
            bootstrap_servers, told, begin, quiet_from_ms, asked[0] * 1000, asked[1] * 1000
        )
        return {
            "messages": messages,
            "seconds": statistics.median(seconds),
            "before_p99_ms": _p99(before),
            "before_max_ms": max(before),
            "during_p99_ms": _p99(during),
            "during_max_ms": max(during),
            "pause_ms": pause_ms,
        }


@contextmanager
def _updates(bootstrap_servers: str, name: str) -> Iterator[None]:
    """Update some records, again and again, and have a subscription to them that nobody listens to."""
    producer = Producer({"bootstrap.servers": bootstrap_servers, "linger.ms": 0, "acks": "all"})
    command = {"command": "subscribe", "id": "1", "subscription": "some", "filter": "/updated = 1"}
    command["heartbeat_timeout_ms"] = 3_600_000  # type: ignore[assignment]
    producer.produce(topics.commands(name), json.dumps(command).encode(), partition=0)
    producer.flush()
    ended = threading.Event()

    def update() -> None:
        number = 0
        while not ended.wait(_EVERY_S):
            producer.produce(name, b'{"updated":1,"price":0}', key=b"u%d" % (number % 100))
            producer.poll(0)
            number += 1
        producer.flush()

    thread = threading.Thread(target=update)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _waits(
    bootstrap_servers: str, told: str, begin: int, quiet_from_ms: float, from_ms: float, until_ms: float
) -> tuple[list[int], list[int], int]:
    """How long updates waited, ms: those before the queries, and those during them; the longest time without any."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "benchmark-waits"})
    at = TopicPartition(told, 0, begin)
    end = consumer.get_watermark_offsets(at, timeout=20)[1]
    consumer.assign([at])
    before: list[int] = []
    during: list[int] = []
    told_ms: list[int] = []
    offset = begin
    while offset < end:
        for message in consumer.consume(5_000, 1.0):
            offset = message.offset() + 1
            headers = dict(message.headers() or ())
            if headers.get(header.KIND) == b"publish":
                updated_ms = int(headers[header.TIMESTAMP_MS])
                waited = message.timestamp()[1] - updated_ms
                if from_ms <= updated_ms <= until_ms:
                    during.append(waited)
                    told_ms.append(message.timestamp()[1])
                elif quiet_from_ms <= updated_ms < from_ms:
                    before.append(waited)
    consumer.close()
    return before, during, max(later - earlier for earlier, later in pairwise(told_ms))


def _p99(values: list[int]) -> float:
    return float(sorted(values)[int(len(values) * 0.99)])


if __name__ == "__main__":
    alone(run)
