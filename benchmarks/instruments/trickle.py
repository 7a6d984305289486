"""Sends a steady trickle of messages through a queue or a plain topic, and notes when each was delivered."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable
from itertools import pairwise

from confluent_kafka import Consumer, Producer, TopicPartition

from lapse_client import Connection, QueueSubscriber

_MESSAGE = b"t"


def longest_ms(happened_at: Iterable[float], since_s: float, until_s: float) -> float:
    """Return the longest gap in a list of instants (s since the epoch) within a period, ms."""
    instants = [since_s, *(at for at in happened_at if since_s <= at <= until_s), until_s]
    return 1000 * max(later - earlier for earlier, later in pairwise(instants))


class Trickle:
    """Publishes steadily to a queue, and consumes its messages.

    Args:
        bootstrap_servers: the broker.
        name: the queue's name.
        rate: messages a second.
        partition: the partition to write to; -1 = any.

    Attributes:
        delivered_at: when messages were delivered, s since the epoch.
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
        """Stop publishing and consuming."""
        self._over.set()
        for thread in self._threads:
            thread.join(20)

    def longest_ms(self, since_s: float, until_s: float) -> float:
        """Return the longest time without a delivery between two instants (s since the epoch), ms."""
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
    """A trickle through a plain topic, to measure the delays of broker and machine without lapse."""

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
