"""Interrupted removals: topics of deleted entities that are left because the worker that removed them died (C4)."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.protocol import topic as names
from lapse.runtime.topics.decided_end import is_retirement, retirement_decided
from lapse.runtime.topics.standing import Standing
from lapse.runtime.topics.topic_removal import remove_entity
from lapse.runtime.topics.topology import Topology, TopologyError

_PATIENCE_S: Final = 15.0

_GONE: Final = (
    KafkaError.UNKNOWN_TOPIC_OR_PART,
    KafkaError._UNKNOWN_TOPIC,  # librdkafka's own code, from its metadata
    KafkaError._UNKNOWN_PARTITION,
)


class ChangelogGone(Exception):
    """A changelog was listed, and no longer exists: another process removes topics of the same entity."""


class InterruptedRemovals:
    """Finds deleted entities that still have topics, and removes these.

    Args:
        app_id: name of the deployment.
        settings: librdkafka's settings: brokers and security.
        admin: removes topics.
    """

    def __init__(self, app_id: str, settings: Mapping[str, Any], admin: AdminClient) -> None:
        self._app_id = app_id
        self._settings = settings
        self._admin = admin

    def of(self, found: Topology) -> list[str]:
        """Return the deleted entities that still have topics.

        Raises:
            ChangelogGone: a changelog disappeared before it was read.
            TopologyError: a changelog cannot be read.
        """
        partly = (name for name in found.entities() if found.standing(name) is Standing.PARTLY)
        return [name for name in partly if self._is_retired(name, found.existing)]

    def finish_retired(self, entities: Iterable[str], existing: Collection[str]) -> set[str]:
        """Remove what is left of those of some entities that are deleted according to their changelogs; return those.

        Call it for entities whose topics for clients are gone, so that no worker reads what is left.

        Args:
            entities: the entities.
            existing: the topics on the cluster.

        Raises:
            TopologyError: a changelog cannot be read, or the cluster refused something.
        """
        gone = set[str]()
        for name in entities:
            try:
                retired = self._is_retired(name, existing)
            except ChangelogGone:  # another process has removed it
                gone.add(name)
                continue
            if retired:
                self.finish([name], existing)
                gone.add(name)
        return gone

    def finish(self, deleted: Iterable[str], existing: Collection[str]) -> None:
        """Remove the topics that deleted entities still have.

        Raises:
            TopologyError: the cluster refused one.
        """
        refused = "what is left of a deleted entity could not be removed"
        for name in deleted:
            remove_entity(self._admin, self._app_id, name, existing, refused)

    def _is_retired(self, name: str, existing: Collection[str]) -> bool:
        """Return whether an entity is deleted according to its changelog, which is removed last."""
        changelog = names.changelog(self._app_id, name)
        if changelog not in existing:
            return False
        options = {"group.id": changelog, "enable.auto.commit": False, "isolation.level": "read_uncommitted"}
        consumer = Consumer({**self._settings, **options})
        try:
            return _read_retired(consumer, TopicPartition(changelog, 0, OFFSET_BEGINNING))
        except KafkaException as error:
            if error.args[0].code() in _GONE:
                raise ChangelogGone(changelog) from error
            raise TopologyError(f"{changelog}: cannot be read: {error.args[0].str()}") from error
        finally:
            consumer.close()


def _read_retired(consumer: Consumer, tp: TopicPartition) -> bool:
    """Read a changelog's first partition to its end; return whether its last note on the entity's end says RETIRED."""
    _, end = consumer.get_watermark_offsets(tp, timeout=_PATIENCE_S)
    consumer.assign([tp])
    retired, waited_until = False, time.monotonic() + _PATIENCE_S
    while end and consumer.position([tp])[0].offset < end and time.monotonic() < waited_until:
        for message in consumer.consume(1_000, 0.2):
            if (failure := message.error()) is not None:
                if failure.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                    continue  # librdkafka; no group is needed
                raise KafkaException(failure)
            if is_retirement(message):
                retired = retirement_decided(message) is not None
    return retired
