"""Transient queues, which live as long as their connection, and share one Kafka topic.

Celery's remote control, events and `rpc://` results need no leases: each listener gets a copy, and none is kept. So
each connection reads the topic from its end, beginning when it declares its first transient queue. It takes the
messages that match the bindings of its queues.
"""

from __future__ import annotations

import re
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lapse_client import Connection, LapseError, Publisher
from lapse_client.kafka import plain_topic
from lapse_client.kafka.connection import arrived
from lapse_client.kafka.log_offsets import assign_ends
from lapse_kombu import task_message

_KEPT_MS: Final = 600_000
"""Retention of the topic, in ms. It is short, because only present listeners read."""

_MOST: Final = 10_000
"""The most messages that wait in a queue. Then the oldest one is dropped."""

_TOGETHER: Final = 500


@dataclass(slots=True)
class _Queue:
    """One queue: its bindings and its waiting messages."""

    bindings: list[tuple[str, Callable[[str], bool]]] = field(default_factory=list)
    messages: deque[dict[str, Any]] = field(default_factory=lambda: deque(maxlen=_MOST))

    def is_bound_to(self, exchange: str, routing_key: str) -> bool:
        return any(bound == exchange and matches(routing_key) for bound, matches in self.bindings)


class Transient:
    """The transient queues of one connection of kombu. Every method may be called from any thread.

    Args:
        connection: connection to the cluster.
        deployment: name of the deployment. The topic is `kombu.<deployment>`.
        publisher: returns the publisher of the connection, and opens it if necessary.
        timeout_s: how long Kafka may take to confirm a message, in seconds.
    """

    def __init__(
        self, connection: Connection, deployment: str, publisher: Callable[[], Publisher], timeout_s: float
    ) -> None:
        self.topic = f"kombu.{deployment}"
        self._connection = connection
        self._publisher = publisher
        self._timeout_s = timeout_s
        self._lock = threading.RLock()
        self._queues: dict[str, _Queue] = {}
        self._consumer: Any = None
        self._made = False

    def __contains__(self, queue: object) -> bool:
        return queue in self._queues

    def declare(self, queue: str) -> None:
        """Create a queue that receives from now on.

        Raises:
            ConnectionFailed: no broker says where the topic ends.
            LapseError: the topic cannot be created.
        """
        with self._lock:
            if queue in self._queues:
                return
            if self._consumer is None:
                self._create_topic()
                self._consumer = self._connection.consumer(queued_min_messages=1_000)
            if not self._queues:  # what came since the last queue was deleted is for nobody
                assign_ends(self._consumer, [(self.topic, 0)], self._connection.bootstrap_servers)
            self._queues[queue] = _Queue()

    def bind(self, queue: str, exchange: str, kind: str, routing_key: str, pattern: str | None) -> None:
        """Bind a queue to an exchange.

        Args:
            queue: name of the queue.
            exchange: name of the exchange.
            kind: type of the exchange: `fanout`, `topic` or `direct`.
            routing_key: routing key of the binding.
            pattern: for a `topic` exchange: the routing key as a regular expression.
        """
        with self._lock:
            self._queues[queue].bindings.append((exchange, _matching(kind, routing_key, pattern)))

    def publish(self, message: Mapping[str, Any]) -> None:
        """Send a message to all listeners. Its properties have its exchange and routing key."""
        self._create_topic()
        self._publisher().submit(self.topic, task_message.write(message)).result(self._timeout_s)

    def take(self, queue: str, most: int, timeout_s: float) -> list[dict[str, Any]]:
        """Return up to `most` messages of a queue, waiting for the first one."""
        until_s = time.monotonic() + timeout_s
        while True:
            with self._lock:
                if (found := self._queues.get(queue)) is None or self._consumer is None:
                    return []
                self._read(0.0 if found.messages else max(0.0, until_s - time.monotonic()))
                if found.messages:
                    return [found.messages.popleft() for _ in range(min(most, len(found.messages)))]
            if time.monotonic() >= until_s:
                return []

    def put_back(self, queue: str, messages: Sequence[dict[str, Any]]) -> None:
        """Keep messages of a queue that were taken and not handed out. They are taken first."""
        with self._lock:
            if (found := self._queues.get(queue)) is not None:
                found.messages.extendleft(reversed(messages))

    def size(self, queue: str) -> int:
        """Return the number of messages that wait in a queue."""
        with self._lock:
            self._read(0.0)
            return len(self._queues[queue].messages)

    def purge(self, queue: str) -> int:
        """Drop the messages that wait in a queue, and return their number."""
        with self._lock:
            size = self.size(queue)
            self._queues[queue].messages.clear()
            return size

    def delete(self, queue: str) -> None:
        """Delete a queue."""
        with self._lock:
            self._queues.pop(queue, None)

    def close(self) -> None:
        """Delete all queues, and stop reading."""
        with self._lock:
            self._queues.clear()
            consumer, self._consumer = self._consumer, None
        if consumer is not None:
            consumer.close()

    def _read(self, wait_s: float) -> None:
        for record in arrived(self._consumer, _TOGETHER, wait_s):
            if record.error() is not None:
                continue  # for example while a leader is elected; librdkafka continues by itself
            try:
                message = task_message.read(record.value())
            except ValueError:
                continue  # not written by kombu
            delivery_info = message["properties"].get("delivery_info") or {}
            exchange, routing_key = (
                str(delivery_info.get("exchange") or ""),
                str(delivery_info.get("routing_key") or ""),
            )
            for queue in self._queues.values():
                if queue.is_bound_to(exchange, routing_key):
                    queue.messages.append(message)

    def _create_topic(self) -> None:
        if self._made:
            return
        try:
            plain_topic.make(self._connection, self.topic, {"retention.ms": str(_KEPT_MS)})
        except LapseError as error:
            raise LapseError(
                f"{error}. Celery's remote control, events and `rpc://` results need it: create it with one "
                "partition, or set worker_enable_remote_control = False"
            ) from error
        self._made = True


def _matching(kind: str, routing_key: str, pattern: str | None) -> Callable[[str], bool]:
    """Return a function that tells whether a binding matches a routing key."""
    if kind == "fanout":
        return lambda _: True
    if kind == "topic":
        compiled = re.compile(pattern or "")
        return lambda key: compiled.match(key) is not None
    return routing_key.__eq__
