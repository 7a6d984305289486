"""Gets metadata of many topics. aiokafka asks for one new topic after the other, with pauses in between.

It also asks for all topics that a client knows in one request, and processes the answer in one turn of the loop. For a
thousand topics that takes 50 to 200 ms, in each of a worker's clients: when an entity is created, after some errors,
and every five minutes. Here such a question has several parts (C90).

And a client that needs no topic at all asks for every topic of the cluster. Here it asks for none.
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
import time
from collections.abc import AsyncIterator, Iterable
from collections.abc import Set as AbstractSet
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata

_FRESH_S: Final = 5.0
"""For how long metadata that one client got is shared with others, s."""

_PATIENCE_S: Final = 2.0
"""How long a client waits while another one asks, s. That client's broker may be away."""

_AT_ONCE: Final = 50
"""How many topics one request asks for."""


def client_of(consumer: AIOKafkaConsumer) -> Any:
    """Return the private client with which a consumer sends requests."""
    return consumer._client


class NeededTopics:
    """The topics that a worker's clients will need, and metadata that one of them has just got.

    A worker has five clients. With a thousand queues each would ask for the metadata of some thousand topics.

    Attributes:
        names: the topics of shards that are taken over.
    """

    def __init__(self) -> None:
        self.names: set[str] = set()
        self._later: set[str] = set()
        """Topics of shards that are taken over once the first shards serve, or whose take-over takes long."""
        self._learned: list[tuple[float, ClusterMetadata]] = []
        self._asking = asyncio.Lock()

    @contextlib.asynccontextmanager
    async def asking(self) -> AsyncIterator[None]:
        """Let one client ask at a time, so that the next one need not. No client waits long for another."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._asking.acquire()
        except TimeoutError:
            yield
            return
        try:
            yield
        finally:
            self._asking.release()

    def expect(self, topics: Iterable[str]) -> None:
        """Note topics that are needed once the first shards serve: these should not wait for an answer about all."""
        self._later.update(topics)

    def widen(self) -> None:
        """Ask from now on for all topics at once that are expected."""
        self.names |= self._later
        self._later.clear()

    def keep(self, found: ClusterMetadata) -> None:
        """Keep metadata that a client has just got."""
        self._learned.append((time.monotonic(), found))

    def settle(self) -> None:
        """Note that no shard is taken over any more. Clients ask for what each of them lacks when they need it."""
        self.names.clear()
        self._later.clear()

    def forget(self, topics: Iterable[str]) -> None:
        """Remove topics, and drop kept metadata: other topics may get these names soon."""
        topics = set(topics)
        self.names -= topics
        self._later -= topics
        self._learned.clear()

    def copy_to(self, cluster: ClusterMetadata, topics: set[str]) -> set[str]:
        """Copy recent metadata of topics into a client's cluster; return the topics without any."""
        since = time.monotonic() - _FRESH_S
        self._learned = [(at, found) for at, found in self._learned if at >= since]
        for _, found in self._learned:
            if known := {topic for topic in topics & found._partitions.keys() if _is_led(found, topic)}:
                _add(cluster, found, known)
                topics = topics - known
        return topics

    def copy_for(self, client: Any, topic: str) -> None:
        """Copy recent metadata of a topic into a client that will read it, so that it need not ask."""
        if not self.copy_to(client.cluster, {topic}):
            client._topics = client._topics | {topic}


async def ensure_metadata(client: Any, topics: Iterable[str], needed: NeededTopics | None = None) -> None:
    """Make sure that a client has the metadata of topics. Topics that do not exist are left out.

    Only new topics are asked for. Each of a worker's clients knows the topics of all entities, and aiokafka takes too
    long to process metadata of thousands (C90).

    Args:
        client: an aiokafka client.
        topics: topics that it will need.
        needed: the topics that all clients of its worker need; None for a single client.
    """
    cluster = client.cluster
    unknown = {topic for topic in topics if cluster.partitions_for_topic(topic) is None}
    if not unknown:
        return
    needed = needed or NeededTopics()
    unknown |= {topic for topic in needed.names if cluster.partitions_for_topic(topic) is None}
    client._topics = client._topics | unknown  # included in each further refresh of metadata
    async with needed.asking():
        if unknown := needed.copy_to(cluster, unknown):
            found = ClusterMetadata()
            if await client._metadata_update(found, unknown):
                _add(cluster, found, found._partitions.keys())
                needed.keep(found)


async def ensure_group_metadata(client: Any, topics: AbstractSet[str], new: Iterable[str]) -> None:
    """Make sure that a member of a group has the metadata of its topics. Only those that are new are asked for.

    aiokafka asks for all topics of the member whenever one is added. Each assignment would wait for that.

    Args:
        client: the member's client.
        topics: all topics of the member, or of its group.
        new: the topics that were added. What is known of one may be about a deleted topic of its name.
    """
    asked = {topic for topic in topics if client.cluster.partitions_for_topic(topic) is None}.union(new)
    found = ClusterMetadata()
    if asked and await client._metadata_update(found, asked):
        _add(client.cluster, found, found._partitions.keys())
        client._topics = client._topics.union(found._partitions)
    if topics <= client._topics:
        client._topics = set(topics)  # a member asks for its topics again now and then, and not for deleted ones
    else:  # there is no such topic, or a broker does not know it yet
        await client.set_topics(topics)


def forget(client: Any, topics: Iterable[str]) -> None:
    """Stop a client from asking for deleted topics. Otherwise it would log for ever that they are missing.

    A broker that creates topics automatically would even create them again. If no other topic is left, they stay:
    without topics, aiokafka asks for all topics of the cluster.

    Args:
        client: an aiokafka client.
        topics: the deleted topics.
    """
    if left := client._topics.difference(topics):
        client._topics = left


def _is_led(found: ClusterMetadata, topic: str) -> bool:
    """Return whether each partition of a topic has a leader. A new topic may get one in a moment."""
    return all(partition.leader != -1 for partition in found._partitions[topic].values())


def _add(cluster: ClusterMetadata, found: ClusterMetadata, topics: AbstractSet[str]) -> None:
    """Copy metadata of topics from one cluster object to another."""
    with cluster._lock:
        cluster._brokers.update(found._brokers)
        for topic in topics:
            cluster._partitions[topic] = partitions = found._partitions[topic]
            for number, partition in partitions.items():
                if partition.leader != -1:
                    cluster._broker_partitions[partition.leader].add(TopicPartition(topic, number))
        cluster.unauthorized_topics |= found.unauthorized_topics


class _NoTopics(tuple[str, ...]):
    """No topics, for aiokafka's `_metadata_update`, which asks for all topics if its argument is false."""

    __slots__ = ()

    def __bool__(self) -> bool:
        return True


_NO_TOPICS: Final = _NoTopics()

_whole_update: Final = AIOKafkaClient._metadata_update


@functools.wraps(_whole_update)
async def _update_in_parts(client: Any, cluster: ClusterMetadata, topics: Iterable[str] | None) -> bool:
    """Do the same as aiokafka's `_metadata_update`, with several requests if there are many topics.

    Others have turns in between. What the client knows is replaced after the last answer. A client that needs no topic,
    such as that of a consumer without partitions, does not ask for all topics of the cluster; None means all of them.
    """
    names = list(topics or ())
    if len(names) <= _AT_ONCE:
        asked = _NO_TOPICS if topics is not None and not names else topics
        return bool(await _whole_update(client, cluster, asked))
    whole, before = ClusterMetadata(), set(cluster._partitions)
    for first in range(0, len(names), _AT_ONCE):
        found = ClusterMetadata()
        if not await _whole_update(client, found, names[first : first + _AT_ONCE]):
            return False
        _add(whole, found, found._partitions.keys())
        whole._brokers, whole.controller = found._brokers, found.controller
        whole.internal_topics |= found.internal_topics
        await asyncio.sleep(0)
    brokers = whole._brokers
    _add(whole, cluster, cluster._partitions.keys() - before - set(names))  # `ensure_metadata` got these meanwhile
    whole._brokers = brokers
    _replace(cluster, whole)
    return True


def _replace(cluster: ClusterMetadata, found: ClusterMetadata) -> None:
    """Replace what a cluster object knows, as `ClusterMetadata.update_metadata` does."""
    with cluster._lock:
        cluster._brokers, cluster.controller = found._brokers, found.controller
        cluster._partitions, cluster._broker_partitions = found._partitions, found._broker_partitions
        cluster.unauthorized_topics, cluster.internal_topics = found.unauthorized_topics, found.internal_topics
        cluster._need_update = False
    cluster._last_refresh_ms = cluster._last_successful_refresh_ms = time.time() * 1000
    for listener in list(cluster._listeners):
        listener(cluster)


# This applies to all clients of the process, because the class cannot be injected.
AIOKafkaClient._metadata_update = _update_in_parts
