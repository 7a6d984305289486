"""The definitions topic: the definitions of a deployment's entities, the same for all workers (Q23, C64).

A change is one Kafka transaction. Its beginning aborts open transactions of others. So a definition that is based on
what was read before another change cannot be written after it.
"""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic  # type: ignore[attr-defined]  # not in its __all__

from lapse.config import Config
from lapse.config.definition import Definition
from lapse.protocol import topic as names
from lapse.runtime.kafka import security
from lapse.runtime.topics.patience import Patience
from lapse.runtime.topics.topology import TopologyError

T = TypeVar("T")

_FETCH_WAIT_MS: Final = 20
"""How long a broker may wait before it answers that a topic has no more records, ms; the default is half a second."""

_PATIENCE_S: Final = 15.0
_KNOWN_S: Final = 120.0
"""How long to wait for a created topic, s, while the brokers learn of no further topic."""
_LOOK_S: Final = 0.1
_COUNTED_EACH: Final = 20
"""One look in this number counts all topics, because a list of thousands is expensive."""
_WRITES_S: Final = 60.0
"""How long a transaction may take, s. For the first one of a cluster, brokers create a topic of fifty partitions."""
_SETTINGS: Final = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


class _Withdrawal(NamedTuple):
    """The removal of a definition."""

    name: str
    offset: int


class Unreadable(NamedTuple):
    """A record in the place of a definition that cannot be read.

    Attributes:
        version: its offset, which is at least as high as any earlier version, since each version took a record.
        why: what is wrong with it.
    """

    version: int
    why: str


class DefinitionsAway(TopologyError):
    """No broker that leads the topic answers. That may be temporary."""


class OutdatedChange(Exception):
    """A change is based on an older version of a definition (C64)."""


_ABSENT: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_TOPIC})
"""Errors that mean that a topic does not exist."""

_AWAY: Final = frozenset(
    {
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.BROKER_NOT_AVAILABLE,
        KafkaError.REQUEST_TIMED_OUT,
        KafkaError._TIMED_OUT,
        KafkaError._TRANSPORT,
        KafkaError._ALL_BROKERS_DOWN,
    }
)
"""Errors that mean that no leader of the topic answers for now."""

_LACKED: Final = {
    KafkaError.TOPIC_AUTHORIZATION_FAILED: "Create on it, or Write",
    KafkaError.CLUSTER_AUTHORIZATION_FAILED: "Create on it",
    KafkaError.TRANSACTIONAL_ID_AUTHORIZATION_FAILED: "Write on the transactional id of that name",
}
"""The right that is lacking to change definitions, by the broker's error."""

_TRIES: Final = 10
_AGAIN_S: Final = 0.1


class DefinitionsTopic:
    """The definitions topic of a deployment.

    Args:
        config: configuration of the cluster and the deployment.

    Attributes:
        unreadable: what the last `defined` or `read_to_change` could not read, by entity.
    """

    def __init__(self, config: Config) -> None:
        self.unreadable: Mapping[str, Unreadable] = {}
        self._config = config
        self.name = names.definitions(config.lapse.app_id)
        self._settings: dict[str, Any] = {
            "bootstrap.servers": config.lapse.brokers,
            "log_level": 0,  # the exceptions below report each error once
            **security.for_librdkafka(config.security),
        }

    def read(self) -> dict[str, bytes]:
        """Return the encoded definitions, by entity; empty if the topic does not exist yet.

        Raises:
            TopologyError: it cannot be read.
        """
        return self.read_if_there() or {}

    def read_if_there(self) -> dict[str, bytes] | None:
        """Return the encoded definitions, by entity; None if nothing was ever defined, so that there is no topic.

        Raises:
            TopologyError: it cannot be read.
        """
        there = self._read()
        return None if there is None else there[0]

    def read_with_offsets(self) -> tuple[dict[str, bytes], dict[str, int]]:
        """Return the encoded definitions, and the offset of each, by entity.

        Raises:
            TopologyError: it cannot be read.
        """
        return self._read() or ({}, {})

    def read_to_change(self) -> dict[str, Definition]:
        """Return the definitions, before an entity is created or changed.

        Raises:
            TopologyError: the topic cannot be read; or nothing is defined yet, and `lapse.toml` has entities. These
                must be defined first, since workers serve only defined entities once there is a definition.
        """
        there = self._read()
        if there is None and (self._config.queue or self._config.sow):
            raise TopologyError(
                f"{self.name} is not there: nobody has defined yet what lapse.toml has. Run `lapse apply` first"
            )
        return self._defined(there)

    def defined(self) -> dict[str, Definition]:
        """Return the definitions that can be read.

        Raises:
            TopologyError: the topic cannot be read.
        """
        return self._defined(self._read())

    def _defined(self, there: tuple[dict[str, bytes], dict[str, int]] | None) -> dict[str, Definition]:
        found, offsets = there or ({}, {})
        self.unreadable = _unreadable(found, offsets)
        return understood(found)

    def _read(self) -> tuple[dict[str, bytes], dict[str, int]] | None:
        """Return the encoded definitions, and the offset of each; None if there is no topic."""
        consumer = Consumer(
            {
                **self._settings,
                "group.id": self.name,
                "enable.auto.commit": False,
                "isolation.level": "read_committed",
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
            }
        )
        found: dict[str, bytes] = {}
        offsets: dict[str, int] = {}
        try:
            place = TopicPartition(self.name, 0, OFFSET_BEGINNING)
            # Ask for it by name: a list of all topics leaves out those that we may not see.
            absence = consumer.list_topics(self.name, timeout=_PATIENCE_S).topics[self.name].error
            if absence is not None and absence.code() in _ABSENT:
                return None
            if absence is not None:
                raise KafkaException(absence)
            consumer.assign([place])
            give_up = time.monotonic() + _PATIENCE_S
            while time.monotonic() < give_up:
                message = consumer.poll(0.2)
                if message is None:
                    continue
                if (failure := message.error()) is None:
                    name = note(found, message.key(), message.value())
                    offsets[name or ""] = message.offset() or 0
                elif failure.code() == KafkaError._PARTITION_EOF:
                    return found, offsets
                elif failure.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # librdkafka; no group is needed
                    raise KafkaException(failure)
            raise DefinitionsAway(f"{self.name}: could not be read to its end within {_PATIENCE_S:g} s")
        except KafkaException as error:
            if error.args[0].code() in _AWAY:
                raise DefinitionsAway(f"{self.name}: cannot be read now: {error.args[0].str()}") from error
            if error.args[0].code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                # An assignment shows that we have the right Describe.
                lacked = "Read" if consumer.assignment() else "Describe"
                raise TopologyError(f"{self.name}: we lack the right {lacked} on it: have it granted") from error
            raise TopologyError(f"{self.name}: cannot be read: {error.args[0].str()}") from error
        finally:
            consumer.close()

    def publish(self, definitions: Iterable[Definition]) -> None:
        """Write definitions, each the next version of the current one; all of them or none.

        Raises:
            OutdatedChange: the current version of one is not the version on which the change is based.
            TopologyError: the cluster refuses.
        """
        changed = list(definitions)
        if not changed:
            return
        self._change(changed)

    def withdraw(self, served: Mapping[str, int]) -> None:
        """Remove the definitions of deleted entities, but not of those that were defined anew since.

        Args:
            served: by entity, the offset of the last definition by which it was served. A definition behind it is of a
                new entity with that name.

        Raises:
            OutdatedChange: somebody else changes definitions at this moment.
            TopologyError: the cluster refuses.
        """
        self._change([_Withdrawal(*one) for one in served.items()])

    async def retry_if_outdated(self, work: Callable[[], Awaitable[T]]) -> T:
        """Call `work`, which changes definitions. Call it again if somebody else changed definitions meanwhile.

        Raises:
            OutdatedChange: somebody else did so each time.
        """
        for _ in range(_TRIES - 1):
            try:
                return await work()
            except OutdatedChange:
                await asyncio.sleep(_AGAIN_S * random.uniform(1, 5))  # noqa: S311  # not to collide again
        return await work()

    def _change(self, changed: Iterable[Definition | _Withdrawal]) -> None:
        """Write and remove definitions in one transaction."""
        try:
            self._create()
            producer = Producer({**self._settings, "transactional.id": self.name, "acks": "all"})
            producer.init_transactions(_WRITES_S)
            found, offsets = self.read_with_offsets()
            versions = {name: decoded.version for name, decoded in understood(found).items()}
            versions |= {name: one.version for name, one in _unreadable(found, offsets).items()}
            wanted: list[Definition | _Withdrawal] = []
            for one in changed:
                there = versions.get(one.name, 0)
                if isinstance(one, _Withdrawal):
                    if one.name not in found or offsets[one.name] > one.offset:
                        continue
                elif one.version != there + 1:
                    raise OutdatedChange(
                        f"{one.name}: the change is based on version {one.version - 1}, and version {there} is there: "
                        "somebody changed it meanwhile. Look at the difference again"
                    )
                wanted.append(one)
            if not wanted:
                return
            producer.begin_transaction()
            for one in wanted:
                if isinstance(one, _Withdrawal):
                    producer.produce(self.name, None, one.name.encode(), partition=0)
                else:
                    producer.produce(self.name, one.encode(), one.name.encode(), partition=0)
            producer.commit_transaction(_WRITES_S)
        except KafkaException as error:
            failure = error.args[0]
            if lacked := _LACKED.get(failure.code()):  # before fatal errors, of which it is one
                raise TopologyError(f"{self.name}: we lack the right {lacked}: have it granted") from error
            if failure.fatal() or failure.code() == KafkaError._FENCED:
                raise OutdatedChange("somebody changes definitions at this moment; look again") from error
            raise TopologyError(f"{self.name}: could not be written: {failure.str()}. Run it again") from error

    def _create(self) -> None:
        admin = AdminClient(self._settings)
        new = NewTopic(self.name, 1, self._config.lapse.replication_factor, config=_SETTINGS)
        try:
            admin.create_topics([new], operation_timeout=_PATIENCE_S)[self.name].result()
        except KafkaException as error:
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            # We may lack the right to create topics, which does not matter if the topic exists.
            if admin.list_topics(self.name, timeout=_PATIENCE_S).topics[self.name].error is not None:
                raise
        self._await(admin)

    def _await(self, admin: AdminClient) -> None:
        """Wait until the brokers know the topic, as long as they learn of further topics.

        A broker that creates thousands of topics learns of the last one long after the controller has created it.
        """
        patience, looks = Patience(_KNOWN_S), 0
        while not self._is_known(admin):
            looks += 1
            if not looks % _COUNTED_EACH and patience.is_over(len(admin.list_topics(timeout=_PATIENCE_S).topics)):
                raise TopologyError(
                    f"{self.name}: the brokers do not know it, and have learned of no topic for {_KNOWN_S:g} s; run it "
                    "again"
                )
            time.sleep(_LOOK_S)

    def _is_known(self, admin: AdminClient) -> bool:
        return admin.list_topics(self.name, timeout=_PATIENCE_S).topics[self.name].error is None


def note(found: dict[str, bytes], key: object, value: object) -> str | None:
    """Put a record into `found`, in place of an earlier one of its entity.

    Returns:
        The entity; None if the record names none.
    """
    if not isinstance(key, bytes):
        return None
    name = key.decode("utf-8", "replace")
    if isinstance(value, bytes):
        found[name] = value
    else:
        found.pop(name, None)
    return name


def understood(found: Mapping[str, bytes]) -> dict[str, Definition]:
    """Decode the definitions that can be read. A worker reports the others."""
    decoded: dict[str, Definition] = {}
    for name, value in found.items():
        try:
            decoded[name] = Definition.decode(name, value)
        except ValueError:
            continue
    return decoded


def _unreadable(found: Mapping[str, bytes], offsets: Mapping[str, int]) -> dict[str, Unreadable]:
    """Return the definitions that cannot be read."""
    spoiled: dict[str, Unreadable] = {}
    for name, value in found.items():
        try:
            Definition.decode(name, value)
        except ValueError as error:
            spoiled[name] = Unreadable(offsets[name], str(error))
    return spoiled
