"""Compacted topics of one partition, on which a tool records its requests and results."""

from __future__ import annotations

from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from lapse_client.connection import Connection

_CONFIG: Final = {"cleanup.policy": "compact"}
_PATIENCE_S: Final = 30.0
_FROM_BROKER: Final = -1


def make(connection: Connection, name: str) -> None:
    """Create such a topic where it is missing.

    Args:
        connection: the cluster.
        name: the topic.

    Raises:
        KafkaException: the broker refuses.
    """
    new = NewTopic(name, 1, _FROM_BROKER, config=_CONFIG)
    admin = connection.admin()  # it has to live until the answer
    try:
        admin.create_topics([new], operation_timeout=_PATIENCE_S)[name].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
