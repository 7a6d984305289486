"""How a connection reaches its cluster: through librdkafka, or through a replacement in tests.

Everything that a client knows of Kafka's side, records, topics and time, it learns through the transport of its
connection. `lapse.testing` has one without a broker; the client above it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from confluent_kafka import Consumer, Producer
from confluent_kafka.admin import AdminClient

from lapse_client.kafka.clock import ClientClock


class Transport:
    """Opens librdkafka's clients. Its waits take real time.

    Attributes:
        settles: whether it knows when nothing more can happen, so that waiting for longer has no sense.
        lingers: whether acknowledgments wait for others, which costs time and saves commands.
    """

    settles = False
    lingers = True

    def producer(self, config: dict[str, Any]) -> Producer:
        """Open a producer with librdkafka's settings."""
        return Producer(config)

    def consumer(self, config: dict[str, Any]) -> Consumer:
        """Open a consumer with librdkafka's settings."""
        return Consumer(config)

    def admin(self, config: dict[str, Any]) -> AdminClient:
        """Open an administrator's connection with librdkafka's settings."""
        return AdminClient(config)

    def clock(self) -> ClientClock:
        """A clock that learns the broker's time; one for each connection."""
        return ClientClock()

    def settle(self) -> None:
        """Wait until nothing more can happen by itself, where that is known; else do not wait."""

    def wake(self) -> None:
        """Have the threads that wait for records look at what has changed, where that costs nothing."""

    def patience(self, timeout_s: float, lingering_s: Callable[[], float] = lambda: 0.0) -> float:
        """How long to wait for something that should come within a timeout, in seconds.

        Args:
            timeout_s: how long the caller would wait for the cluster, in seconds.
            lingering_s: says how long the client itself may take, with nothing happening at the cluster, in seconds.
        """
        return timeout_s


_default = Transport()


def default() -> Transport:
    """The transport of connections that name none."""
    return _default


@contextmanager
def defaulting_to(transport: Transport) -> Iterator[None]:
    """Make it the transport of every connection that names none, until the block ends."""
    global _default  # noqa: PLW0603  # what is swapped is the process's
    before, _default = _default, transport
    try:
        yield
    finally:
        _default = before
