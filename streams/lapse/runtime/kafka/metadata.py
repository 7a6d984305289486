"""Metadata of many topics at once: aiokafka asks for one new topic after the other, and pauses in between."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.cluster import ClusterMetadata

_FRESH_S: Final = 5.0
"""How long what one client has learned is told to others, s."""

_PATIENCE_S: Final = 2.0
"""How long a client waits for what another one is asking, s; its broker may be away."""


def client_of(consumer: AIOKafkaConsumer) -> Any:
    """The client by which a consumer asks; aiokafka does not show it."""
    return consumer._client


class NeededTopics:
    """The topics that a worker's clients will need, and where they are, as far as one of them has just learned it.

    A worker has five clients. With a thousand queues each would take in the places of some thousand topics.

    Attributes:
        names: the topics.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._learned: list[tuple[float, ClusterMetadata]] = []
        self._asking = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Let one client ask at a time, so that the next one need not; none waits long for another."""
        try:
            await asyncio.wait_for(self._asking.acquire(), _PATIENCE_S)
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            self._asking.release()

    def learn(self, found: ClusterMetadata) -> None:
        """Know what a client has just learned."""
        self._learned.append((time.monotonic(), found))

    def forget(self, topics: Iterable[str]) -> None:
        """Need these topics no more: there may be others of their names soon."""
        self.names -= set(topics)
        self._learned.clear()

    def tell(self, cluster: ClusterMetadata, topics: set[str]) -> set[str]:
        """Have a client know what others have just learned of these topics; returns those of which it is nothing."""
        since = time.monotonic() - _FRESH_S
        self._learned = [(at, found) for at, found in self._learned if at >= since]
        for _, found in self._learned:
            if known := {topic for topic in topics & found._partitions.keys() if _is_led(found, topic)}:
                _add(cluster, found, known)
                topics = topics - known
        return topics


async def know(client: Any, topics: Iterable[str], needed: NeededTopics | None = None) -> None:
    """Have a client know where topics are; those that do not exist are left to whoever uses them.

    Only what is new is asked for: each of a worker's clients knows the topics of all its entities, and what tells of
    thousands takes aiokafka longer than others are to wait (C90).

    Args:
        client: an aiokafka client.
        topics: any that it will need.
        needed: what the clients of its worker will need as well; None = it is alone.
    """
    cluster = client.cluster
    unknown = {topic for topic in topics if cluster.partitions_for_topic(topic) is None}
    if not unknown:
        return
    needed = needed or NeededTopics()
    unknown |= {topic for topic in needed.names if cluster.partitions_for_topic(topic) is None}
    client._topics = client._topics | unknown  # looked at again from now on, with the others
    async with needed.asking():
        if unknown := needed.tell(cluster, unknown):
            found = ClusterMetadata()
            if await client._metadata_update(found, unknown):
                _add(cluster, found, found._partitions.keys())
                needed.learn(found)


def forget(client: Any, topics: Iterable[str]) -> None:
    """Have a client ask for topics no more that were deleted: it would log for ever that they are missing.

    A broker that creates topics by itself would even make them again. Where nothing else is left, they stay: without
    any topic aiokafka asks for all of the cluster.

    Args:
        client: an aiokafka client.
        topics: the topics.
    """
    if left := client._topics.difference(topics):
        client._topics = left


def _is_led(found: ClusterMetadata, topic: str) -> bool:
    """Whether each partition of a topic has a leader; that of a new topic may get one in a moment."""
    return all(partition.leader != -1 for partition in found._partitions[topic].values())


def _add(cluster: ClusterMetadata, found: ClusterMetadata, topics: AbstractSet[str]) -> None:
    """Have a cluster know what another one knows of these topics."""
    with cluster._lock:
        cluster._brokers.update(found._brokers)
        cluster._partitions.update({topic: found._partitions[topic] for topic in topics})
        for broker, partitions in found._broker_partitions.items():
            cluster._broker_partitions[broker] |= {one for one in partitions if one.topic in topics}
        cluster.unauthorized_topics |= found.unauthorized_topics
