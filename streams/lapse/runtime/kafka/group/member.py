"""Kafka's description of a member of a consumer group, in the form that its client wrote."""

from __future__ import annotations

from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata


def subscribed_topics(metadata: bytes) -> list[str]:
    """Return the topics to which a member of a group subscribes.

    Args:
        metadata: the member's metadata, as Kafka describes the group.

    Raises:
        ValueError, TypeError, struct.error: it is not a member of a consumer group.
    """
    topics: list[str] = ConsumerProtocolMemberMetadata.decode(metadata).subscription
    return topics
