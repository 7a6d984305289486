"""How to reach the cluster: servers, librdkafka options, and what exists there."""

from __future__ import annotations

import functools
import os
import socket
import time
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any, Final, Literal
from uuid import uuid4

from confluent_kafka import Consumer, Message, Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AclOperation,
    AdminClient,
)

from lapse.protocol import broker_address, signature, topic
from lapse_client.error import LapseError, UnknownEntity
from lapse_client.kafka import client_properties
from lapse_client.kafka.clock import ClientClock
from lapse_client.kafka.column_consumer import ColumnConsumer
from lapse_client.kafka.log import log
from lapse_client.kafka.metadata import Metadata
from lapse_client.kafka.transport import Transport, default

DEFAULT_SERVERS: Final = "localhost:9092"
COMMANDS: Final = ".commands"

_SILENT_POLLS: Final = 60
"""How many polls of half a second may bring nothing, although the log has more."""

_RETRY_S: Final = 0.1
_PROPAGATION_S: Final = 2.0
"""How long to look for a topic that a broker does not list, in seconds: it may not have learnt of a new one yet."""

_ALONE_S: Final = 0.3
"""The same for a single broker, which learns of new topics sooner."""

_READING: Final[Mapping[str, Any]] = {
    "enable.auto.commit": False,
    "enable.auto.offset.store": False,
    "auto.offset.reset": "earliest",
    "isolation.level": "read_committed",
    "fetch.queue.backoff.ms": 5,
    "queued.min.messages": 50_000,
}
"""Settings of consumers that commit nothing."""

Options = Mapping[str, str | int | float | bool]


def _no_group() -> str:
    """Return the name of a group that nobody joins. librdkafka asks for one."""
    return f"lapse-client-{uuid4().hex}"


def _servers() -> str:
    return os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or DEFAULT_SERVERS


def _name() -> str:
    return f"{socket.gethostname()}:{os.getpid()}"


@dataclass(frozen=True)
class Connection:
    """The address of a cluster, and who the client is there. It opens nothing, and any number of clients may share it.

    Attributes:
        bootstrap_servers: `host:port[,host:port]`; the environment variable KAFKA_BOOTSTRAP_SERVERS by default.
        options: further librdkafka options for every producer and consumer, such as `security.protocol`.
        client: a readable name of this client, shown by peeks and refusals; host and process id by default.
        user: name of the lapse user, if users are configured (X4).
        secret: the key that signs the user's commands; the first line if there are several.
        transport: how the cluster is reached; through librdkafka by default.
        tracer_provider: OpenTelemetry's tracer provider for clients' spans; None = the program's global one, if set.
        insists: whether calls wait until their timeout even if no worker runs, because one may be about to start. A
            warning is logged within 5 s. If False, calls fail then instead. They do so in any case if a topic is
            missing without which no worker can serve the entity.
        app_id: the application id of the workers, by which a missing changelog is noticed; empty if it is unknown.
    """

    bootstrap_servers: str = field(default_factory=_servers)
    options: Options = field(default_factory=dict, repr=False, hash=False)
    client: str = field(default_factory=_name)
    user: str = ""
    secret: str = field(default="", repr=False)
    transport: Transport = field(default_factory=default, repr=False, hash=False, compare=False)
    tracer_provider: Any = field(default=None, repr=False, hash=False, compare=False)
    insists: bool = True
    app_id: str = ""

    @classmethod
    def from_environment(cls, bootstrap_servers: str | None = None, properties: Path | None = None) -> Connection:
        """Read KAFKA_BOOTSTRAP_SERVERS, LAPSE_KAFKA_CONFIG, LAPSE_USER and LAPSE_SECRET.

        LAPSE_KAFKA_CONFIG names a file of client properties, with Java's or librdkafka's option names.
        LAPSE_SECRET_FILE names a file with the secret, and replaces LAPSE_SECRET.

        Args:
            bootstrap_servers: servers to use instead of the environment's.
            properties: file of client properties to use instead of LAPSE_KAFKA_CONFIG.

        Raises:
            LapseError: a file cannot be read, or a property is unknown or has no counterpart in librdkafka.
        """
        path = str(properties or os.environ.get("LAPSE_KAFKA_CONFIG") or "")
        named = "--kafka-config" if properties else "LAPSE_KAFKA_CONFIG"
        options = client_properties.options(Path(path), named) if path else {}
        listed = options.pop("bootstrap.servers", "")
        given = bootstrap_servers or os.environ.get("KAFKA_BOOTSTRAP_SERVERS")
        user, secret = identity()
        return cls(given or listed or DEFAULT_SERVERS, options, user=user, secret=secret)

    def __post_init__(self) -> None:
        given: object = self.bootstrap_servers
        if not isinstance(given, str):
            raise TypeError(f"bootstrap_servers = {given!r}: expected a text, such as 'localhost:9092'")
        if why := broker_address.address_fault(self.bootstrap_servers):
            raise LapseError(why)
        if not self.user:
            return
        if not topic.USER_NAME.match(self.user):
            raise LapseError(f"{self.user!r} cannot be a user: letters, digits, '_' and '-' only, at most 64")
        try:
            signature.keys_in(self.secret)
        except ValueError as error:
            raise LapseError(f"secret of user {self.user} {error}. Set LAPSE_SECRET or LAPSE_SECRET_FILE") from error

    def __getstate__(self) -> dict[str, Any]:
        """Pickle the attributes only, so that a process that is spawned gets a connection of its own."""
        return {one.name: getattr(self, one.name) for one in fields(self)}

    def deliveries(self, entity: str) -> str:
        """Return the name of the topic with an entity's deliveries and answers for this user."""
        return topic.deliveries(entity, self.user)

    def signed(self, name: str, partition: int, at_ms: int, value: bytes) -> list[tuple[str, str | bytes | None]]:
        """Return the headers that authenticate a command (X4); none without a user.

        Args:
            name: name of the commands topic.
            partition: partition of the commands topic.
            at_ms: the present time by the broker's clock, ms since the epoch.
            value: the encoded command.
        """
        if not self.user:
            return []
        key = signature.keys_in(self.secret)[0]
        return [*signature.headers(key, self.user, name, partition, at_ms, value)]

    def producer(self, **options: Any) -> Producer:
        """Open an idempotent producer with `acks=all` that partitions as Kafka's Java clients do."""
        durable = {"enable.idempotence": True, "acks": "all", "partitioner": "murmur2_random"}
        return self.transport.producer(self._config(durable, options))

    def consumer(self, **options: Any) -> Consumer:
        """Open a consumer that commits nothing. It is meant for `assign`, not for consumer groups."""
        return self.transport.consumer(self._config(_READING, {"group.id": _no_group(), **options}))

    def column_consumer(self, topic: str, partition: int, **options: Any) -> ColumnConsumer | None:
        """Open a consumer of one partition that makes no object for each record; None if that is not possible here."""
        config = self._config(_READING, {"group.id": _no_group(), **options})
        return self.transport.column_consumer(topic, partition, config)

    def admin(self) -> AdminClient:
        """Open a Kafka admin client."""
        return self.transport.admin(self._config({}, {}))

    def partitions(self, *expected: str) -> dict[str, int]:
        """Return every topic of the cluster and its number of partitions.

        Args:
            expected: names of topics. If none of them exists, wait a moment: brokers learn of a new topic one by one.

        Raises:
            ConnectionFailed: no broker answered.
        """
        began = time.monotonic()
        while True:
            metadata = self._metadata.ask()
            topics = {name: len(found.partitions) for name, found in metadata.topics.items() if found.error is None}
            known = not expected or not topics.keys().isdisjoint(expected)
            patience_s = _PROPAGATION_S if len(metadata.brokers) > 1 else _ALONE_S
            if known or self.transport.settles or time.monotonic() - began >= patience_s:
                return topics
            time.sleep(_RETRY_S)

    def existing(self, topics: Iterable[str]) -> list[str]:
        """Return those of some topics that exist, as far as this user may see them.

        Raises:
            ConnectionFailed: no broker answered.
        """
        if self.transport.settles:
            return [*self.partitions().keys() & {*topics}]
        return self._metadata.existing(topics)

    def unknown(self, what: str, name: str, known: Iterable[str], *topics: str) -> UnknownEntity:
        """Return the error for a name without an entity or topic: none exists, or the brokers hide it from this user.

        Args:
            what: the kind, such as `queue` or `SOW topic`, for the error's text.
            name: the name that was asked for.
            known: the existing names of that kind.
            topics: topics that would exist if the name did.
        """
        return UnknownEntity(what, name, known, () if self.transport.settles else self._metadata.hidden(topics))

    def hidden(self, name: str) -> UnknownEntity | None:
        """Return an error if the brokers hide a topic from this user, else None."""
        found = self._metadata.hidden([name])
        return UnknownEntity("topic", name, (), found) if found else None

    def unseen(self, topics: Iterable[str]) -> list[str]:
        """Return those of some topics that the brokers hide from this user."""
        return [] if self.transport.settles else self._metadata.hidden(topics)

    def blind(self, what: str, prefix: str) -> LapseError | None:
        """Return an error if the brokers hide topics with a prefix from this user, so that a list of them is useless.

        Args:
            what: the kind of the topics, for the error's text.
            prefix: prefix of the topics' names.
        """
        if self.transport.settles or not self._metadata.hidden([f"{prefix}{uuid4().hex}"]):
            return None
        return LapseError(
            f"{what}: the brokers do not let this user see topics {prefix}*, if there are any. Have Describe on them "
            "granted (docs/operations.md, Rights), or connect as another user"
        )

    def check_allowed(self, topics: Iterable[str], operation: Literal["Read", "Write"]) -> None:
        """Check that this user may read existing topics, or write to them.

        Raises:
            LapseError: the brokers do not allow it.
        """
        if lacking := self._metadata.forbidden(topics, AclOperation[operation.upper()]):
            raise LapseError(
                f"{', '.join(lacking)}: the brokers do not let this user {operation.lower()} it. Have {operation} on "
                "it granted (docs/operations.md, Rights), or connect as another user"
            )

    def no_partition(self, place: str, topics: Mapping[str, int]) -> UnknownEntity:
        """Return the error for a bookmark whose topic does not exist, or has fewer partitions.

        Args:
            place: the partition, `topic:number`.
            topics: the topics of the cluster with their partitions.
        """
        name = place.rpartition(":")[0]
        if name in topics:
            return UnknownEntity("partition", place, (f"{name}:{number}" for number in range(topics[name])))
        return self.unknown("topic", name, filter(is_for_people, topics), name)

    def await_broker(self, timeout_s: float) -> None:
        """Wait until a broker answers.

        Args:
            timeout_s: how long, in seconds.

        Raises:
            ConnectionFailed: no broker answered in time, or they refuse us.
        """
        self._metadata.ask(timeout_s)

    def queues(self) -> list[str]:
        """Return the names of all queues on which this user has any right.

        Raises:
            ConnectionFailed: no broker answered.
        """
        topics = self.partitions()
        return [name for name in entities(topics, sow=False) if not self.user or self.deliveries(name) in topics]

    def shards(self, what: str, name: str, known: Mapping[str, int] | None = None) -> int:
        """Return the number of shards of an entity.

        Args:
            what: `queue`, `SOW topic` or `queue or SOW topic`.
            name: the entity.
            known: the topics of the cluster with their partitions, if the caller has them already.

        Raises:
            UnknownEntity: no entity of this kind has this name.
            ConnectionFailed: no broker answered.
        """
        given: object = name
        if not isinstance(given, str):
            raise TypeError(f"{what} = {given!r}: expected its name, as a text")
        commands, deliveries = topic.commands(name), self.deliveries(name)
        topics = self.partitions(commands) if known is None else known
        if known is None and deliveries not in topics and commands in topics:
            topics = self.partitions(deliveries)
        found = topics.get(deliveries)
        if found is None or commands not in topics:
            if self.user and commands in topics:
                raise LapseError(
                    f"{what} {name}: there is no topic {deliveries}, or it may not be seen. User {self.user} has no "
                    "entitlement there (users in lapse.toml), or `lapse apply` was not run since"
                )
            one = commands if commands not in topics else deliveries
            if (commands in topics or found is not None) and not (
                self.transport.settles or self._metadata.hidden([one])
            ):
                raise LapseError(f"{what} {name}: its topic {one} is missing. `lapse apply` creates it")
            raise self.unknown(what, name, _entities_of_kind(what, topics), one)
        if what == "queue" and topic.sow(name) in topics:
            raise UnknownEntity(what, name, _entities_of_kind(what, topics), other="SOW topic")
        if what == "SOW topic" and topic.sow(name) not in topics and self._is_queue(name):
            rather = "queue" if self.transport.settles else f"queue, or its topic {topic.sow(name)} is missing"
            raise UnknownEntity(what, name, _entities_of_kind(what, topics), other=rather)
        return found

    def lacking(self, entity: str, known: Collection[str] | None = None) -> list[str]:
        """Return those topics of an entity that are missing, and without which no worker can serve it (C52).

        The definitions have neither events nor a changelog, so they lack nothing (Q23).

        Args:
            entity: the entity, or the name that replaces it for definitions.
            known: the topics of the cluster, if the caller has them already.
        """
        if entity.startswith(topic.DEFINITIONS_PREFIX):
            return []
        return self._metadata.absent(topic.events(entity), topic.changelog(self.app_id, entity), self.app_id, known)

    def is_removed(self, entity: str) -> bool:
        """Return whether the topics are gone over which this client talks to an entity: it was deleted (C4)."""
        own = (topic.commands(entity), self.deliveries(entity))
        if self.transport.settles:
            return not self.partitions().keys() & {*own}
        return self._metadata.are_removed(own)

    def _is_queue(self, name: str) -> bool:
        """Return whether an entity is a queue: it has no compacted topic, not even a hidden one."""
        state = topic.sow(name)
        return state not in self.partitions(state) and (self.transport.settles or not self._metadata.hidden([state]))

    @functools.cached_property
    def clock(self) -> ClientClock:
        """The broker's clock, as all sessions of this connection measure it."""
        return self.transport.clock()

    @functools.cached_property
    def _metadata(self) -> Metadata:
        """The source of metadata about brokers and topics."""
        return Metadata(self.bootstrap_servers, self._config({}, {}), self.transport.admin, log)

    def _config(self, defaults: Mapping[str, Any], more: Mapping[str, Any]) -> dict[str, Any]:
        own = {"bootstrap.servers": self.bootstrap_servers, "client.id": self.client}
        named = {name.replace("_", "."): value for name, value in more.items()}
        return {"logger": log, **own, **defaults, **named, **self.options}


def arrived(consumer: Consumer, most: int, wait_s: float) -> list[Message]:
    """Return up to `most` records that have arrived; wait up to `wait_s` seconds for the first one.

    librdkafka's `consume` alone would wait the whole time unless `most` records had arrived.
    """
    first = consumer.poll(wait_s)
    return [] if first is None else [first, *consumer.consume(most - 1, 0)]


class Silence:
    """Counts polls without a record, so that nobody waits without end for a broker that does not answer.

    Args:
        name: the topic, for the error's text.
    """

    def __init__(self, name: str) -> None:
        self._name = name
        self._polls = 0

    def note(self, heard: object) -> None:
        """Note what a poll of half a second has brought: nothing if it is empty or None.

        Raises:
            LapseError: nothing has come for too long.
        """
        self._polls = 0 if heard else self._polls + 1
        if self._polls >= _SILENT_POLLS:
            raise LapseError(f"{self._name} cannot be read: no answer from its broker. Try again when it is back")


def _entities_of_kind(what: str, topics: Mapping[str, int]) -> list[str]:
    kinds = {"queue": (False,), "SOW topic": (True,)}.get(what, (False, True))
    return [name for sow in kinds for name in entities(topics, sow=sow)]


def entities(topics: Mapping[str, int], *, sow: bool) -> list[str]:
    """Return the names of the queues, or of the SOW topics, from the topics of a cluster."""
    names = [
        name[len(topic.PREFIX) : -len(COMMANDS)]
        for name in topics
        if name.startswith(topic.PREFIX) and name.endswith(COMMANDS) and len(name) > len(topic.PREFIX) + len(COMMANDS)
    ]
    return sorted(
        name for name in names if (topic.sow(name) in topics) is sow and not name.startswith(topic.DEFINITIONS_PREFIX)
    )


def is_for_people(name: str) -> bool:
    """Return whether a topic belongs to applications: neither to Kafka itself nor to lapse."""
    return not name.startswith(("__", topic.PREFIX)) and not name.endswith("-changelog")


def identity(prefix: str = "LAPSE") -> tuple[str, str]:
    """Read a user and secret from `<prefix>_USER`, and `<prefix>_SECRET_FILE` or `<prefix>_SECRET`.

    Raises:
        LapseError: the file cannot be read.
    """
    user, path = os.environ.get(f"{prefix}_USER", ""), os.environ.get(f"{prefix}_SECRET_FILE")
    if not path:
        return user, os.environ.get(f"{prefix}_SECRET", "")
    try:
        return user, Path(path).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no text"
        raise LapseError(f"{prefix}_SECRET_FILE = {path}: cannot be read: {reason}") from error
