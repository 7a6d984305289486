"""Metadata of many topics at once: aiokafka asks for one new topic after the other, and pauses in between."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Any

from aiokafka import AIOKafkaConsumer
from aiokafka.cluster import ClusterMetadata


def client_of(consumer: AIOKafkaConsumer) -> Any:
    """The client by which a consumer asks; aiokafka does not show it."""
    return consumer._client


async def know(client: Any, topics: Iterable[str], soon: Collection[str] = ()) -> None:
    """Have a client know where topics are; those that do not exist are left to whoever uses them.

    Only what is new is asked for: each of a worker's clients knows the topics of all its entities, and what tells of
    thousands takes aiokafka longer than others are to wait (C90).

    Args:
        client: an aiokafka client.
        topics: any that it will need.
        soon: what it will need after them.
    """
    cluster = client.cluster
    unknown = {topic for topic in topics if cluster.partitions_for_topic(topic) is None}
    if not unknown:
        return
    unknown |= {topic for topic in soon if cluster.partitions_for_topic(topic) is None}
    client._topics = client._topics | unknown  # looked at again from now on, with the others
    found = ClusterMetadata()
    if await client._metadata_update(found, unknown):
        _add(cluster, found)


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


def _add(cluster: ClusterMetadata, found: ClusterMetadata) -> None:
    """Have a cluster know what another one knows."""
    with cluster._lock:
        cluster._brokers.update(found._brokers)
        cluster._partitions.update(found._partitions)
        for broker, partitions in found._broker_partitions.items():
            cluster._broker_partitions[broker] |= partitions
        cluster.unauthorized_topics |= found.unauthorized_topics
