"""Removes topics, and all topics of an entity, through Kafka's admin client."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Final

from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lapse.protocol import topic as names
from lapse.runtime.topics.topology import TopologyError

_PATIENCE_S: Final = 15.0


def remove_topics(admin: AdminClient, topics: Iterable[str], refused: str = "could not be removed") -> None:
    """Delete topics; those that do not exist are passed over.

    Args:
        admin: asks the cluster.
        topics: names of the topics.
        refused: what the error says of a topic that the cluster does not delete.

    Raises:
        TopologyError: the cluster refused one.
    """
    going = [*topics]
    if not going:
        return
    for name, future in admin.delete_topics(going, operation_timeout=_PATIENCE_S).items():
        try:
            future.result()
        except KafkaException as error:
            if error.args[0].name() != "UNKNOWN_TOPIC_OR_PART":
                raise TopologyError(f"{name}: {refused}: {error.args[0].str()}") from error


def remove_entity(
    admin: AdminClient, app_id: str, entity: str, existing: Collection[str], refused: str = "could not be removed"
) -> None:
    """Delete the existing topics of an entity, the changelog last.

    The changelog tells others who look meanwhile what becomes of the rest. As long as it exists, the name is not free.

    Args:
        admin: asks the cluster.
        app_id: name of the deployment.
        entity: name of the entity.
        existing: the topics on the cluster.
        refused: what the error says of a topic that the cluster does not delete.

    Raises:
        TopologyError: the cluster refused one.
    """
    *own, changelog = names.entity_topics(app_id, entity)
    first = (*names.private_deliveries(entity, existing), *own)
    for topics in (first, (changelog,)):
        remove_topics(admin, [one for one in topics if one in existing], refused)
