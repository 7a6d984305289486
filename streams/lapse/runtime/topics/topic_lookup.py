"""Looks topics up by their names. A list of all topics takes brokers and workers longer, if there are a thousand."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient, ClusterMetadata  # type: ignore[attr-defined]  # not in its __all__

_UNSEEN = (KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED)
"""Errors of topics that a list would leave out."""

_NOBODY = -1
"""The number of the leader of a partition without one, in a list of all topics."""


class Found(NamedTuple):
    """Topics on the cluster.

    Attributes:
        replicas: by topic, the number of replicas of each partition.
        brokers: the cluster's number of brokers.
        leaderless: the partitions that no broker leads, of topics that have such.
    """

    replicas: dict[str, list[int]]
    brokers: int
    leaderless: dict[str, tuple[int, ...]]

    @classmethod
    def in_list(cls, metadata: ClusterMetadata) -> Found:
        """Make it from a list of all topics."""
        each = metadata.topics.items()
        replicas = {name: [len(one.replicas) for one in topic.partitions.values()] for name, topic in each}
        leaders = {name: {one.id: one.leader for one in topic.partitions.values()} for name, topic in each}
        return cls(replicas, len(metadata.brokers), _without_leaders(leaders, _NOBODY))


def by_name(admin: AdminClient, topics: Collection[str], within_s: float) -> Found:
    """Look topics up; those that do not exist, or may not be seen, are left out.

    Args:
        admin: asks the cluster.
        topics: their names.
        within_s: how long to wait for the answers, s.

    Raises:
        KafkaException: no answer in time, or a refusal.
    """
    described = admin.describe_cluster(request_timeout=within_s)
    replicas: dict[str, list[int]] = {}
    leaders: dict[str, dict[int, Any]] = {}
    for name, topic in described_topics(admin, topics, within_s).items():
        replicas[name] = [len(one.replicas) for one in topic.partitions]
        leaders[name] = {one.id: one.leader for one in topic.partitions}
    return Found(replicas, len(described.result().nodes), _without_leaders(leaders, None))


def _without_leaders(leaders: dict[str, dict[int, Any]], nobody: int | None) -> dict[str, tuple[int, ...]]:
    """Return the partitions whose leader is `nobody`, by topic."""
    found = {
        name: tuple(sorted(number for number, leader in each.items() if leader == nobody))
        for name, each in leaders.items()
    }
    return {name: partitions for name, partitions in found.items() if partitions}


def described_topics(admin: AdminClient, topics: Collection[str], within_s: float) -> dict[str, Any]:
    """Return librdkafka's descriptions of topics, without those that do not exist or may not be seen.

    Raises:
        KafkaException: no answer in time, or a refusal.
    """
    found: dict[str, Any] = {}
    for name, answer in admin.describe_topics(TopicCollection([*topics]), request_timeout=within_s).items():
        try:
            found[name] = answer.result()
        except KafkaException as error:
            if error.args[0].code() not in _UNSEEN:
                raise
    return found
