"""Topics of one partition that a tool creates for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException

from lapse import topic_creation
from lapse.topic_creation import NewTopic
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection

_PATIENCE_S: Final = 30.0
_FROM_BROKER: Final = -1


def make(connection: Connection, name: str, config: Mapping[str, str]) -> None:
    """Create a topic of one partition if it is missing.

    Args:
        connection: connection to the cluster.
        name: name of the topic.
        config: Kafka's settings of the topic.

    Raises:
        LapseError: the broker refuses.
    """
    try:
        create(connection, name, config)
    except KafkaException as error:
        raise LapseError(f"the topic {name} cannot be created: {error.args[0].str()}") from error


def create(connection: Connection, name: str, config: Mapping[str, str]) -> None:
    """Create a topic of one partition if it is missing, like `make`, with Kafka's own error.

    Raises:
        KafkaException: the broker refuses.
    """
    new = NewTopic(name, 1, _FROM_BROKER, config=dict(config))
    admin = connection.admin()  # must stay referenced until the answer
    for error in topic_creation.create(admin.create_topics, [new], _PATIENCE_S).values():
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise error
