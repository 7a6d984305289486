"""Compacted topics of one partition, on which a tool records its requests and results."""

from __future__ import annotations

from typing import Final

from lapse_client.kafka import plain_topic
from lapse_client.kafka.connection import Connection

_CONFIG: Final = {"cleanup.policy": "compact"}


def make(connection: Connection, name: str) -> None:
    """Create a compacted topic of one partition if it is missing.

    Args:
        connection: connection to the cluster.
        name: name of the topic.

    Raises:
        KafkaException: the broker refuses.
    """
    plain_topic.create(connection, name, _CONFIG)
