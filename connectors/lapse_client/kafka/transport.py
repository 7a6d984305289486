"""How a connection reaches its cluster: through librdkafka, or through a replacement in tests.

A client learns of records, topics and the broker's time only through the transport of its connection. `lapse.testing`
has a transport without a broker. The client's code above it is the same.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, TypeVar

from confluent_kafka import Consumer, KafkaException, Producer
from confluent_kafka.admin import AdminClient

from lapse.controller import admin_client
from lapse_client.error import ConnectionFailed
from lapse_client.kafka.clock import ClientClock
from lapse_client.kafka.column_consumer import ColumnConsumer

_C = TypeVar("_C")


class Transport:
    """Opens librdkafka's clients. Its waits take real time.

    Attributes:
        settles: whether it knows when nothing more can happen, so that waiting longer is pointless.
        lingers: whether acknowledgments wait for others, which costs time and saves commands.
    """

    settles = False
    lingers = True

    def producer(self, config: dict[str, Any]) -> Producer:
        """Open a producer with librdkafka's settings."""
        return _opened(Producer, config)

    def consumer(self, config: dict[str, Any]) -> Consumer:
        """Open a consumer with librdkafka's settings."""
        return _opened(Consumer, config)

    def column_consumer(self, topic: str, partition: int, config: dict[str, Any]) -> ColumnConsumer | None:
        """Open a consumer that reads one partition into columns; None if that is not possible."""
        return ColumnConsumer.open(topic, partition, config)

    def admin(self, config: dict[str, Any]) -> AdminClient:
        """Open a Kafka admin client with librdkafka's settings."""
        return _opened(admin_client, config)

    def clock(self) -> ClientClock:
        """Return a new clock that measures the broker's time; each connection has one."""
        return ClientClock()

    def settle(self) -> None:
        """Wait until nothing more can happen by itself, if the transport knows; else return at once."""

    def finish_deletion(self, entity: str) -> None:
        """Remove the topics of a deleted entity now, if no real time passes until the workers do; else do nothing."""

    def wake(self) -> None:
        """Wake the threads that wait for records, if the transport can do that cheaply."""

    def patience(self, timeout_s: float, lingering_s: Callable[[], float] = lambda: 0.0) -> float:
        """Return how long to wait for something that should come within a timeout, in seconds.

        Args:
            timeout_s: how long the caller would wait for the cluster, in seconds.
            lingering_s: returns how long the client itself may delay its commands, in seconds.
        """
        return timeout_s


def _opened(kind: Callable[[dict[str, Any]], _C], config: dict[str, Any]) -> _C:
    """Open a client of librdkafka.

    Raises:
        ConnectionFailed: an option is wrong, or a file that it names, such as the key of a certificate.
    """
    try:
        return kind(config)
    except KafkaException as error:
        raise ConnectionFailed(str(config["bootstrap.servers"]), error, refused=True) from error


_default = Transport()


def default() -> Transport:
    """Return the transport of connections that name none."""
    return _default


@contextmanager
def defaulting_to(transport: Transport) -> Iterator[None]:
    """Use a transport for every connection that names none, until the block ends."""
    global _default  # noqa: PLW0603  # the default belongs to the process
    before, _default = _default, transport
    try:
        yield
    finally:
        _default = before
