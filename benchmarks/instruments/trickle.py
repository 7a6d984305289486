"""A steady trickle of messages through one queue, or one plain topic, and when each was delivered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from itertools import pairwise

from confluent_kafka import Consumer, Producer, TopicPartition

from lapse_client import Connection, QueueSubscriber

_MESSAGE = b"t"


def longest_ms(happened_at: Iterable[float], since_s: float, until_s: float) -> float:
    """The longest time without anything, ms, between two instants (s since the epoch)."""
    instants = [since_s, *(at for at in happened_at if since_s <= at <= until_s), until_s]
    return 1000 * max(later - earlier for earlier, later in pairwise(instants))


class Trickle:
    """Publishes steadily to a queue, and consumes from it what it published.

    Args:
        bootstrap_servers: the broker.
        name: the queue's.
        rate: messages a second.
        partition: which they go to; -1 = any.

    Attributes:
        delivered_at: when something was delivered, s since the epoch.
    """

    def __init__(self, bootstrap_servers: str, name: str, rate: int, partition: int = -1) -> None:
        self.delivered_at: list[float] = []
        self._servers = bootstrap_servers
        self._name = name
        self._rate = rate
        self._partition = partition
        self._over = threading.Event()
        self._threads = [threading.Thread(target=one, daemon=True) for one in (self._publish, self._consume)]
        for thread in self._threads:
            thread.start()

    def end(self) -> None:
        """Publish and consume no more."""
        self._over.set()
        for thread in self._threads:
            thread.join(20)

    def longest_ms(self, since_s: float, until_s: float) -> float:
        """The longest time without a delivery, ms, between two instants (s since the epoch)."""
        return longest_ms(self.delivered_at, since_s, until_s)

    def _publish(self) -> None:
        producer = Producer({"bootstrap.servers": self._servers, "linger.ms": 0, "acks": "all"})
        next_at = time.perf_counter()
        while not self._over.is_set():
            producer.produce(self._name, _MESSAGE, partition=self._partition)
            producer.poll(0)
            next_at += 1 / self._rate
            time.sleep(max(0.0, next_at - time.perf_counter()))
        producer.flush(10)

    def _consume(self) -> None:
        with QueueSubscriber(
            self._name, max_backlog=200, connection=Connection(self._servers), timeout_s=90
        ) as subscriber:
            while not self._over.is_set():
                for batch in subscriber.batches(max_size=100, timeout=0.5):
                    self.delivered_at.append(time.time())
                    subscriber.acknowledge(batch)
                    if self._over.is_set():
                        break


class PlainTrickle(Trickle):
    """The same through Kafka alone: what the broker and the machine hold up, with nothing of lapse between."""

    def _consume(self) -> None:
        settings = {"bootstrap.servers": self._servers, "group.id": self._name, "fetch.wait.max.ms": 10}
        consumer = Consumer(settings)
        try:
            consumer.assign([TopicPartition(self._name, max(0, self._partition), 0)])
            while not self._over.is_set():
                if consumer.poll(0.5) is not None:
                    self.delivered_at.append(time.time())
        finally:
            consumer.close()
