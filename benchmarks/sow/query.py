"""Measures queries of a SOW topic, and how they delay updates to subscribers."""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from itertools import pairwise

from confluent_kafka import Consumer, Producer, TopicPartition

from benchmarks.comparison.contestant import Figures, alone
from benchmarks.comparison.still_broker import still_broker
from benchmarks.instruments.load import create, order, publish
from benchmarks.instruments.log import Ends
from benchmarks.instruments.metronome import Metronome, still_ms
from benchmarks.instruments.worker import Worker
from lapse.protocol import header
from lapse.protocol import topic as topics
from lapse_client import Connection, SowClient

_WARM_UP_S = 20.0
"""Time before the measurement, s, in which a broker just started compiles its code on the same cores."""

_QUIET_S = 4.0
_EVERY_S = 0.005
_QUERIES = 9


def run(
    bootstrap_servers: str, messages: int = 100_000, order_by: str = "", top_n: int = 0, still: bool = False
) -> Figures:
    """Query the records that match a filter while others are updated every 5 ms and a subscription gets these updates.

    The delay of an update is the difference of two timestamps of this machine's clock: the update's own, and that of
    the subscription's record in the deliveries topic. A pause is a time in which an update waited and none was
    delivered. The longest pause is also given without the time for which the machine itself stood still. Both are
    measured without queries, too, after a warm-up of the broker.

    Args:
        bootstrap_servers: the broker, unless `still`.
        messages: the number of records; one in a hundred matches.
        order_by: the order of the query; empty = any.
        top_n: the query's limit of records; 0 = all.
        still: whether to use a new broker without pauses of its own.
    """
    if still:
        with still_broker() as own:
            return run(own, messages, order_by, top_n)
    name = f"sow-query-{time.time_ns()}"
    state, deliveries = topics.sow(name), topics.deliveries(name)
    with (
        Worker(bootstrap_servers, name, f'[sow.{name}]\nexpiration = "enabled"\n') as worker,
        Ends(bootstrap_servers) as ends,
        Metronome() as metronome,
    ):
        create(bootstrap_servers, name)
        worker.apply()
        publish(bootstrap_servers, name, messages, payload=order, keys=messages)
        worker.start()
        worker.until(lambda: ends.of(state) >= messages)
        begin = ends.of(deliveries)
        with (
            _updates(bootstrap_servers, name),
            SowClient(name, connection=Connection(bootstrap_servers), timeout_s=120) as client,
        ):
            ask = partial(client.query, "/price >= 990", order_by=order_by or None, top_n=top_n or None)
            quiet_from_ms, asked_ms = _ask_often(ask, top_n or messages // 100)
        time.sleep(0.5)
        updates = _delivered_updates(bootstrap_servers, deliveries, begin)
        before = _made_between(updates, quiet_from_ms, asked_ms[0][0])
        pauses_ms = [_longest_pause_ms(_made_between(updates, *one)) for one in asked_ms]
        standstills = metronome.standstills()
        return {
            "messages": messages,
            "seconds": statistics.median((end - start) / 1000 for start, end in asked_ms),
            "before_p99_ms": _p99(before),
            "before_pause_ms": _longest_pause_ms(before),
            "during_p99_ms": _p99(_made_between(updates, asked_ms[0][0], asked_ms[-1][1])),
            "pause_ms": statistics.median(pauses_ms),
            "worst_pause_ms": max(pauses_ms),
            "worst_awake_ms": max(_longest_pause_ms(_made_between(updates, *one), standstills) for one in asked_ms),
        }


def _ask_often(ask: Callable[[], Iterable[object]], records: int) -> tuple[float, list[tuple[float, float]]]:
    """Warm up, wait without a query, then query several times.

    Args:
        ask: asks one query.
        records: how many records each answer must have.

    Returns:
        When the time without a query began, and begin and end of each query, ms since the epoch.
    """
    warm = time.monotonic() + _WARM_UP_S
    while time.monotonic() < warm:
        list(ask())
        time.sleep(0.5)
    quiet_from_ms = time.time() * 1000
    time.sleep(_QUIET_S)
    asked_ms = []
    for _ in range(_QUERIES):
        began_ms = time.time() * 1000
        found = list(ask())
        asked_ms.append((began_ms, time.time() * 1000))
        if len(found) != records:
            raise RuntimeError(f"{len(found)} records")
    return quiet_from_ms, asked_ms


@contextmanager
def _updates(bootstrap_servers: str, name: str) -> Iterator[None]:
    """Update some records again and again, with a subscription to them that no client reads."""
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


def _delivered_updates(bootstrap_servers: str, deliveries: str, begin: int) -> list[tuple[int, int]]:
    """Return the times of each update and of its delivery to the subscription, ms since the epoch."""
    consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "benchmark-waits"})
    at = TopicPartition(deliveries, 0, begin)
    end = consumer.get_watermark_offsets(at, timeout=20)[1]
    consumer.assign([at])
    updates = []
    offset = begin
    while offset < end:
        for message in consumer.consume(5_000, 1.0):
            offset = message.offset() + 1
            headers = dict(message.headers() or ())
            if headers.get(header.KIND) == b"publish":
                updates.append((int(headers[header.TIMESTAMP_MS]), message.timestamp()[1]))
    consumer.close()
    return updates


def _made_between(updates: list[tuple[int, int]], from_ms: float, until_ms: float) -> list[tuple[int, int]]:
    """Return the updates that were made within a period."""
    return [one for one in updates if from_ms <= one[0] <= until_ms]


def _p99(updates: list[tuple[int, int]]) -> float:
    """Return the 99th percentile of the updates' delays, ms."""
    waits = sorted(delivered_ms - updated_ms for updated_ms, delivered_ms in updates)
    return float(waits[int(len(waits) * 0.99)])


def _longest_pause_ms(updates: list[tuple[int, int]], still: Sequence[tuple[float, float]] = ()) -> float:
    """Return the longest time in which an update waited and none was delivered, less the cores' standstills, ms."""
    pauses = [(max(before_ms, made_ms), delivered_ms) for (_, before_ms), (made_ms, delivered_ms) in pairwise(updates)]
    return max(until_ms - from_ms - still_ms(still, from_ms, until_ms) for from_ms, until_ms in pauses)


if __name__ == "__main__":
    alone(run)
