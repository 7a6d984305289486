"""Topics of one partition that a tool makes for itself."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.cimpl import NewTopic

from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection

_PATIENCE_S: Final = 30.0
_FROM_BROKER: Final = -1


def make(connection: Connection, name: str, config: Mapping[str, str]) -> None:
    """Create such a topic where it is missing.

    Args:
        connection: the cluster.
        name: the topic.
        config: its settings.

    Raises:
        LapseError: the broker refuses.
    """
    try:
        create(connection, name, config)
    except KafkaException as error:
        raise LapseError(f"the topic {name} cannot be created: {error.args[0].str()}") from error


def create(connection: Connection, name: str, config: Mapping[str, str]) -> None:
    """Do the same.

    Raises:
        KafkaException: the broker refuses.
    """
    new = NewTopic(name, 1, _FROM_BROKER, config=dict(config))
    admin = connection.admin()  # it has to live until the answer
    try:
        admin.create_topics([new], operation_timeout=_PATIENCE_S)[name].result()
    except KafkaException as error:
        if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
            raise
