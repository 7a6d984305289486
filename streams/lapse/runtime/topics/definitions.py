"""The definitions topic: the definitions of a deployment's entities, the same for all workers (Q23, C64).

A change is one Kafka transaction. Its beginning aborts open transactions of others. So a definition that is based on
what was read before another change cannot be written after it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from confluent_kafka import KafkaError, KafkaException, Message, Producer
from confluent_kafka.admin import AdminClient

from lapse import topic_creation
from lapse.config import Config
from lapse.config.definition import Definition, conflicts
from lapse.controller import admin_client
from lapse.protocol import topic as names
from lapse.runtime.kafka import security
from lapse.runtime.topics.definitions_reader import Contents, DefinitionsAway, DefinitionsReader
from lapse.runtime.topics.patience import Patience
from lapse.runtime.topics.replication import settings_of_new
from lapse.runtime.topics.topology import TopologyError
from lapse.topic_creation import NewTopic

T = TypeVar("T")

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 15.0
_KNOWN_S: Final = 120.0
"""How long to wait for a created topic, s, while the brokers learn of no further topic."""
_LOOK_S: Final = 0.1
_COUNTED_EACH: Final = 20
"""One look in this number counts all topics, because a list of thousands is expensive."""
_WRITES_S: Final = 60.0
"""How long a transaction may take, s. For the first one of a cluster, brokers create a topic of fifty partitions."""
_OPEN_S: Final = 5.0
"""How long a change that is under way may take before it counts as one that Kafka does not finish, s."""
_SETTINGS: Final = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}


class _Withdrawal(NamedTuple):
    """The removal of a definition."""

    name: str
    offset: int


class OutdatedChange(Exception):
    """A change is based on an older version of a definition (C64)."""


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
        unreadable: what is wrong with definitions that the last `defined` or `read_to_change` could not read.
        versions: the version on which the next definition of each entity is based, at that reading.
        open_from: where a change begins that Kafka had neither committed nor aborted at the last reading; None if there
            was none. Nothing behind it can be read.
    """

    def __init__(self, config: Config) -> None:
        self.unreadable: Mapping[str, str] = {}
        self.versions: Mapping[str, int] = {}
        self.open_from: int | None = None
        self._offsets: Mapping[str, int] = {}
        """The offsets of the definitions that the last `defined` or `read_to_change` returned."""
        self._kept: DefinitionsReader | None = None
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
        there = self.read_if_there()
        return {} if there is None else there.found

    def read_if_there(self) -> Contents | None:
        """Return the committed records; None if nothing was ever defined, so that there is no topic.

        Raises:
            TopologyError: it cannot be read.
        """
        self.open_from = None
        with self._reader() as reader:
            if not reader.is_there():
                return None
            there = reader.read()
        self.open_from = there.open_from
        return there

    def read_to_change(self) -> dict[str, Definition]:
        """Return the definitions, before an entity is created or changed.

        Raises:
            TopologyError: the topic cannot be read; or nothing is defined yet, and `lapse.toml` has entities. These
                must be defined first, since workers serve only defined entities once there is a definition.
        """
        there = self.read_if_there()
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
        return self._defined(self.read_if_there())

    def _defined(self, there: Contents | None) -> dict[str, Definition]:
        if there is None:
            self.unreadable, self.versions, self._offsets = {}, {}, {}
            return {}
        definitions = understood(there.found)
        self._offsets, self.versions = there.offsets, _versions(there.offsets, definitions)
        self.unreadable = _unreadable(there.found)
        return definitions

    @contextlib.asynccontextmanager
    async def one_reader(self) -> AsyncIterator[None]:
        """Read and change with one connection until the end of the block: a new one takes longer than the reading."""
        self._kept = kept = await asyncio.to_thread(DefinitionsReader, self.name, self._settings)
        try:
            yield
        finally:
            self._kept = None
            await asyncio.to_thread(kept.close)

    def _reader(self) -> contextlib.AbstractContextManager[DefinitionsReader]:
        kept = self._kept
        return DefinitionsReader(self.name, self._settings) if kept is None else contextlib.nullcontext(kept)

    def publish(self, definitions: Iterable[Definition], beside: Path | None = None) -> None:
        """Write definitions, each the next version of the current one; all of them or none.

        Args:
            definitions: the definitions. They fit beside those that were read last.
            beside: directory of the files that they name; None = do not check whether they fit beside those that
                others have defined since.

        Raises:
            OutdatedChange: the current version of one is not the version on which the change is based, or one does not
                fit beside what others have defined since.
            TopologyError: the cluster refuses.
        """
        changed = list(definitions)
        if not changed:
            return
        self._change(changed, beside)

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

    def open_change(self) -> str:
        """Return a text about the change that was not finished at the last reading; empty if there was none."""
        if self.open_from is None:
            return ""
        return (
            f"{self.name}: a change that begins at offset {self.open_from} is neither committed nor aborted, and hides "
            "what is behind it. Kafka usually ends it within a minute. If it does not, run `lapse apply` again"
        )

    def end_open_change(self) -> None:
        """Abort the change that Kafka does not finish, if there is one still.

        `publish` reports success only when a change can be read, so nobody was told that this one counts.

        Raises:
            OutdatedChange: somebody else changes definitions at this moment.
            TopologyError: the cluster refuses, or the transaction is of another program.
        """
        give_up = time.monotonic() + _OPEN_S
        while self.read_if_there() is not None and self.open_from is not None:
            if time.monotonic() >= give_up:
                self._change(())
                return
            time.sleep(_LOOK_S)

    def _change(self, changed: Iterable[Definition | _Withdrawal], beside: Path | None = None) -> None:
        """Write and remove definitions in one transaction, and wait until they can be read."""
        try:
            producer = Producer({**self._settings, "transactional.id": self.name, "acks": "all"})
            with self._reader() as reader:
                if not reader.is_there():
                    self._create()
                # Without a connection librdkafka looks for the coordinator of transactions half a second later.
                producer.list_topics(self.name, timeout=_PATIENCE_S)
                producer.init_transactions(_WRITES_S)
                there = reader.read()
                if there.open_from is not None:
                    there = self._abort_hanging(producer, reader, there.open_from)
                if wanted := _wanted(there, changed):
                    if beside is not None:
                        self._check_beside(there, wanted, beside)
                    self._commit(producer, reader, wanted)
        except KafkaException as error:
            failure = error.args[0]
            if lacked := _LACKED.get(failure.code()):  # before fatal errors, of which it is one
                raise TopologyError(f"{self.name}: we lack the right {lacked}: have it granted") from error
            if failure.fatal() or failure.code() == KafkaError._FENCED:
                raise OutdatedChange("somebody changes definitions at this moment; look again") from error
            raise TopologyError(f"{self.name}: could not be written: {failure.str()}. Run it again") from error

    def _check_beside(self, there: Contents, wanted: Iterable[Definition | _Withdrawal], beside: Path) -> None:
        """Check that definitions fit beside others, if these are not what was read before (C38).

        Raises:
            OutdatedChange: they do not.
        """
        new = [one for one in wanted if isinstance(one, Definition)]
        others = there.found.keys() - {one.name for one in new}
        if all(there.offsets[name] == self._offsets.get(name) for name in others):
            return
        for name, fault in conflicts(self._config, understood(there.found).values(), new, beside).items():
            raise OutdatedChange(f"{name} does not fit beside what somebody has defined meanwhile: {fault}")

    def _commit(
        self, producer: Producer, reader: DefinitionsReader, wanted: Iterable[Definition | _Withdrawal]
    ) -> None:
        """Write a change, and wait until it can be read.

        Kafka answers before the end of the transaction is in the topic. If the topic's last replica dies in between,
        Kafka 4.3 forgets to write it, and no worker would ever see the change.
        """
        written = _Written()
        producer.begin_transaction()
        for one in wanted:
            value = None if isinstance(one, _Withdrawal) else one.encode()
            producer.produce(self.name, value, one.name.encode(), partition=0, on_delivery=written.note)
        producer.commit_transaction(_WRITES_S)
        try:
            reader.read(beyond=written.last)
        except DefinitionsAway as error:
            raise TopologyError(
                f"{error}. So it is not certain that the change will ever count, although Kafka took it. Run it again"
            ) from error

    def _abort_hanging(self, producer: Producer, reader: DefinitionsReader, open_from: int) -> Contents:
        """Abort a transaction that Kafka calls finished, but of which it never wrote the end to the topic.

        The next transaction of the same producer includes it.
        """
        from lapse_client.kafka.fault import flushed  # the whole client, which workers need for nothing else

        written = _Written()
        producer.begin_transaction()
        producer.produce(self.name, None, b"", partition=0, on_delivery=written.note)
        flushed(producer, _PATIENCE_S)
        producer.abort_transaction(_WRITES_S)
        if written.last < 0:  # so it includes nothing; the end of the next transaction could commit the open one
            raise TopologyError(f"{self.name}: a change that Kafka has not finished could not be aborted. Run it again")
        try:
            there = reader.read(beyond=written.last)
        except DefinitionsAway as error:
            raise TopologyError(
                f"{self.name}: the transaction that begins at offset {open_from} is of another program, and open: "
                "nothing behind it can be read. End that program, or find and abort it with kafka-transactions.sh"
            ) from error
        logger.warning("%s: aborted a change of which Kafka had lost the end, from offset %d on", self.name, open_from)
        return there

    def _create(self) -> None:
        admin = admin_client(self._settings)
        copies = self._config.lapse.replication_factor
        new = NewTopic(self.name, 1, copies, config={**_SETTINGS, **settings_of_new(copies)})
        for error in topic_creation.create(admin.create_topics, [new], _PATIENCE_S).values():
            if error.args[0].code() == KafkaError.TOPIC_ALREADY_EXISTS:
                return
            # We may lack the right to create topics, which does not matter if the topic exists.
            if admin.list_topics(self.name, timeout=_PATIENCE_S).topics[self.name].error is not None:
                raise error
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


def understood(found: Mapping[str, bytes]) -> dict[str, Definition]:
    """Decode the definitions that can be read. A worker reports the others."""
    decoded: dict[str, Definition] = {}
    for name, value in found.items():
        try:
            decoded[name] = Definition.decode(name, value)
        except ValueError:
            continue
    return decoded


class _Written:
    """The offset of the last record that a producer has written."""

    def __init__(self) -> None:
        self.last = -1

    def note(self, error: KafkaError | None, message: Message) -> None:
        """Note the fate of a record."""
        if error is None:
            self.last = max(self.last, message.offset() or 0)


def _wanted(there: Contents, changed: Iterable[Definition | _Withdrawal]) -> list[Definition | _Withdrawal]:
    """Return the changes that still have to be written.

    Raises:
        OutdatedChange: the current version of a definition is not the version on which its change is based.
    """
    found, offsets = there.found, there.offsets
    versions = _versions(offsets, understood(found))
    wanted: list[Definition | _Withdrawal] = []
    for one in changed:
        version = versions.get(one.name, 0)
        if isinstance(one, _Withdrawal):
            if one.name not in found or offsets[one.name] > one.offset:
                continue
        elif one.version != version + 1:
            raise OutdatedChange(
                f"{one.name}: the change is based on version {one.version - 1}, and version {version} is there: "
                "somebody changed it meanwhile. Look at the difference again"
            )
        wanted.append(one)
    return wanted


def _unreadable(found: Mapping[str, bytes]) -> dict[str, str]:
    """Return what is wrong with the definitions that cannot be read, by entity."""
    spoiled: dict[str, str] = {}
    for name, value in found.items():
        try:
            Definition.decode(name, value)
        except ValueError as error:
            spoiled[name] = str(error)
    return spoiled


def _versions(offsets: Mapping[str, int], definitions: Mapping[str, Definition]) -> dict[str, int]:
    """Return the version on which the next definition of each entity is based (C64).

    It is that of its definition. Of a deleted entity, or one whose definition cannot be read, it is the offset of the
    last record, as long as Kafka keeps that. It is at least as high as any earlier version, since each version took a
    record. So no change that is based on a deleted entity fits the new one.
    """
    return {**offsets, **{name: one.version for name, one in definitions.items()}}
