"""The client's transport to a cluster in memory."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from lapse.protocol import topic as names
from lapse.testing.cluster import Cluster
from lapse.testing.memory_clients import MemoryAdmin, MemoryConsumer, MemoryProducer
from lapse.testing.virtual_clock import VirtualClientClock
from lapse_client.kafka.clock import ClientClock
from lapse_client.kafka.transport import Transport


class MemoryTransport(Transport):
    """The transport of a test.

    Args:
        cluster: the cluster.
    """

    settles = True
    lingers = False

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def producer(self, config: dict[str, Any]) -> Any:
        """See `Transport`."""
        return MemoryProducer(self._cluster)

    def consumer(self, config: dict[str, Any]) -> Any:
        """See `Transport`."""
        return MemoryConsumer(self._cluster, bool(config.get("enable.partition.eof")), _is_deliveries)

    def column_consumer(self, topic: str, partition: int, config: dict[str, Any]) -> None:
        """See `Transport`: only librdkafka has such consumers."""

    def admin(self, config: dict[str, Any]) -> Any:
        """See `Transport`."""
        return MemoryAdmin(self._cluster)

    def clock(self) -> ClientClock:
        """See `Transport`."""
        return VirtualClientClock(self._cluster)

    def settle(self) -> None:
        """See `Transport`."""
        self._cluster.settle()

    def finish_deletion(self, entity: str) -> None:
        """See `Transport`."""
        self._cluster.finish_deletion(entity)

    def wake(self) -> None:
        """See `Transport`."""
        self._cluster.tick()

    def patience(self, timeout_s: float, lingering_s: Callable[[], float] = lambda: 0.0) -> float:
        """Wait until nothing more can happen; return how long the client itself may still work, s."""
        self._cluster.settle()
        return min(timeout_s, lingering_s())


def _is_deliveries(topic: str) -> bool:
    return topic.startswith(names.PREFIX) and topic.endswith(_DELIVERIES)


_DELIVERIES: Final = ".deliveries"
