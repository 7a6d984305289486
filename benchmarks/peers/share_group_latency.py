"""A Kafka share group: the time from publishing to the consumer, ms."""

from __future__ import annotations

import time

from confluent_kafka import ShareConsumer

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments.load import create, publish
from benchmarks.instruments.pace import Pace
from benchmarks.peers.share_group import from_the_beginning

_PATIENCE_S = 20.0


def run(bootstrap_servers: str, rate: int = 200, seconds: float = 6.0, linger_ms: float = 0.0) -> Figures:
    """Publish at a steady rate to a topic with one share consumer, which acknowledges explicitly."""
    topic = group = f"share-latency-{time.time_ns()}"
    create(bootstrap_servers, topic)
    from_the_beginning(bootstrap_servers, group)
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([topic])
    _join(bootstrap_servers, topic, consumer)
    watch = Stopwatch()
    with Pace(bootstrap_servers, topic, rate, seconds, linger_ms) as pace:
        patience = time.monotonic() + seconds + _PATIENCE_S
        more = True
        while more and time.monotonic() < patience:
            batch = [message for message in consumer.poll(0.5) if message.error() is None]
            more = pace.received(message.value() for message in batch)
            for message in batch:
                consumer.acknowledge(message)
            consumer.commit_async()
    figures = {**watch.figures(pace.count), **pace.figures()}
    consumer.close()
    return figures


def _join(bootstrap_servers: str, topic: str, consumer: ShareConsumer) -> None:
    """Wait for a first message, so that joining the group does not count as latency."""
    publish(bootstrap_servers, topic, 1)
    patience = time.monotonic() + _PATIENCE_S * 2
    while time.monotonic() < patience:
        batch = consumer.poll(0.5)
        for message in batch:
            consumer.acknowledge(message)
        if batch:
            consumer.commit_sync()
            return
    raise RuntimeError("the share consumer did not join its group")


if __name__ == "__main__":
    alone(run)
