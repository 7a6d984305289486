"""The root of the configuration: the whole of `lapse.toml`."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Final, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, ValidationInfo, field_validator, model_validator

from lapse.config.circle import Way, circles
from lapse.config.duration import DurationMs, PeriodMs
from lapse.config.entity_config import QueueConfig, SowConfig
from lapse.config.fault import placed_error
from lapse.config.topic import TopicConfig, with_topic_lifetimes
from lapse.config.topic_name import LONGEST, TopicName
from lapse.config.user import UserConfig, read_keys
from lapse.core.entitlement import Entitlement, Right, find_entitlement
from lapse.protocol import topic as topic_names
from lapse.protocol.broker_address import DEFAULT_SERVERS

WORKER_KEY: Final = "LAPSE_WORKER_KEY"


LEAST_SESSION_MS: Final = 1_000
LONGEST_SESSION_MS: Final = 1_800_000


class WorkerConfig(BaseModel):
    """`[lapse]`: the settings of the deployment and of its workers.

    Attributes:
        app_id: consumer group of the workers and prefix of their changelog topics.
        bootstrap_servers: the brokers; `KAFKA_BOOTSTRAP_SERVERS` overrides it.
        replication_factor: replication factor of topics that lapse creates.
        store: the store for the content of changelogs: `"memory"` or `"rocksdb"`.
        standby: whether a worker follows the changelogs of shards at other workers, to take them over sooner.
        data_dir: directory for a worker's own files, such as its RocksDB store.
        max_clock_skew: offset between the worker's and the broker's clock that causes a warning, ms (L13).
        session_timeout: silence after which a worker counts as dead, ms.
        metrics_port: port of the worker's figures for Prometheus; 0 = none.
        metrics_host: address on which the figures are served.
        command_schema_id: id of `schemas/command.avsc` in a schema registry; None = no registry is used (X2).
        answer_schema_id: id of `schemas/answer.avsc` in the registry.
        definitions: the source of the entities' definitions: the `"topic"` to which `lapse apply` writes them, the same
            for all workers, or each worker's own `"file"` (Q23).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    app_id: str = Field(default="lapse", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$")
    bootstrap_servers: str = Field(default=DEFAULT_SERVERS, min_length=1)
    replication_factor: int = Field(default=1, ge=1, le=32, strict=True)
    store: Literal["memory", "rocksdb"] = "memory"
    standby: bool = Field(default=False, strict=True)
    data_dir: str = ".lapse"
    max_clock_skew: DurationMs = 1_000
    session_timeout: PeriodMs = 6_000
    metrics_port: int = Field(default=0, ge=0, le=65_535, strict=True)
    metrics_host: str = "127.0.0.1"
    command_schema_id: int | None = Field(default=None, ge=0, lt=1 << 32, strict=True)
    answer_schema_id: int | None = Field(default=None, ge=0, lt=1 << 32, strict=True)
    definitions: Literal["topic", "file"] = "topic"

    @field_validator("session_timeout")
    @classmethod
    def _kafka_takes(cls, period_ms: int) -> int:
        if not LEAST_SESSION_MS <= period_ms <= LONGEST_SESSION_MS:
            raise ValueError(
                'has to be from "1s" to "30m": a shorter one takes pauses for a death; Kafka takes no longer one'
            )
        return period_ms

    @model_validator(mode="after")
    def _both_ids(self) -> Self:
        if (self.command_schema_id is None) is not (self.answer_schema_id is None):
            missing = "command_schema_id" if self.command_schema_id is None else "answer_schema_id"
            raise placed_error(("lapse", missing), "command_schema_id and answer_schema_id need each other")
        return self

    @property
    def schema_ids(self) -> dict[str, int]:
        """The ids of the protocol's schemas in a schema registry, by name; empty = no registry is used (X2)."""
        if self.command_schema_id is None or self.answer_schema_id is None:
            return {}
        return {"command": self.command_schema_id, "answer": self.answer_schema_id}

    @property
    def brokers(self) -> str:
        """The brokers to connect to."""
        return os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or self.bootstrap_servers


class SecurityConfig(BaseModel):
    """`[security]`: the connection to Kafka over TLS and SASL (X5).

    Attributes:
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        sasl_mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        username: the SASL user.
        password: the SASL user's password; `LAPSE_SASL_PASSWORD` overrides it, so that the file need not contain it.
        ca_file: trusted certificates, PEM.
        certificate_file: the client's own certificate, PEM.
        key_file: the certificate's key, PEM.
        principal: the workers' principal in Kafka, whose rights `lapse apply` keeps when it grants some to users (X4).
        worker_key_file: file with the key that signs messages between shards, if there are users; if left out, the key
            is in `LAPSE_WORKER_KEY` (X4).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: str | None = None
    password: SecretStr | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None
    principal: str | None = Field(default=None, pattern=r"^\S+:.+$")
    worker_key_file: str | None = None

    @field_validator("worker_key_file")
    @classmethod
    def _beside(cls, file: str | None, info: ValidationInfo) -> str | None:
        return None if file is None else str(Path((info.context or {}).get("beside", "."), file).absolute())

    def worker_keys(self) -> tuple[bytes, ...]:
        """Read the workers' keys.

        Raises:
            ValueError: there is no key, or one is too short; the message says where, and never shows a key.
        """
        return read_keys(self.worker_key_file, WORKER_KEY)

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.protocol.startswith("SASL") and not self.username:
            raise placed_error(("security", "username"), f'is required with protocol = "{self.protocol}"')
        if (self.certificate_file is None) is not (self.key_file is None):
            missing = "key_file" if self.key_file is None else "certificate_file"
            raise placed_error(("security", missing), "certificate_file and key_file need each other")
        return self


class Config(BaseModel):
    """The whole configuration.

    Attributes:
        lapse: settings of the deployment and of its workers.
        security: settings of the connection to Kafka.
        queue: the queues, by name.
        sow: the SOW topics, by name.
        topic: underlying topics with their own lifetimes, by name (L8).
        users: the users with their entitlements, by name; none = everybody may do everything (X4).
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lapse: WorkerConfig = WorkerConfig()
    security: SecurityConfig = SecurityConfig()
    queue: dict[str, QueueConfig] = {}
    sow: dict[str, SowConfig] = {}
    topic: dict[TopicName, TopicConfig] = {}
    users: dict[str, UserConfig] = {}

    @model_validator(mode="before")
    @classmethod
    def _lifetimes_of_topics(cls, tree: Any) -> Any:
        return with_topic_lifetimes(tree)

    @field_validator("users")
    @classmethod
    def _user_names(cls, users: dict[str, UserConfig]) -> dict[str, UserConfig]:
        for name in users:
            if not topic_names.USER_NAME.match(name):
                raise ValueError(
                    f"{name!r} cannot name a user: letters, digits, '_' and '-' only, at most 64, and none of "
                    "'commands', 'decisions' and 'deliveries'"
                )
        return users

    def entitled_users(self, entity: str) -> dict[str, Entitlement]:
        """Return the users with any right to an entity, each with the entitlement (X4)."""
        found = {name: find_entitlement(entity, user.granted()) for name, user in self.users.items()}
        return {name: one for name, one in found.items() if one.rights}

    def creators(self) -> dict[str, Entitlement]:
        """Return the users who may create entities of some name, each with an entitlement to that right alone (C67)."""
        may = Entitlement(frozenset({Right.CREATE}))
        return {name: may for name, user in self.users.items() if any(one.create for one in user.entitlements.values())}

    @model_validator(mode="after")
    def _names(self) -> Self:
        for kind, name in [*(("queue", name) for name in self.queue), *(("sow", name) for name in self.sow)]:
            if not topic_names.NAME.match(name) or name.startswith(topic_names.PREFIX):
                raise placed_error(
                    (kind, name),
                    f"{name!r} cannot name an entity: letters, digits, '.', '_' and '-' only, at most 200, "
                    f"not beginning with {topic_names.PREFIX!r}",
                )
            if name.startswith(topic_names.INTERNAL_PREFIX):
                raise placed_error(
                    (kind, name), f"{name!r} cannot name an entity: Kafka's internal topics begin with '__'"
                )
            if name.startswith(topic_names.DEFINITIONS_PREFIX):
                raise placed_error(
                    (kind, name), f"{name!r} cannot name an entity: topics of definitions have such names (Q23)"
                )
            letters = name.startswith(topic_names.DEAD_LETTER_PREFIX)
            if letters and (kind == "sow" or name not in self.queue[name].underlying(name)):
                raise placed_error(
                    (kind, name),
                    f"{name!r} names a dead-letter topic: only a queue that reads {name} can bear it",
                )
        for name in sorted(set(self.queue) & set(self.sow)):
            raise placed_error(
                ("sow", name), f"there is a queue {name}, too; a queue and a SOW topic cannot share a name"
            )
        for name in self.queue:
            self._refuse_unread_topics(name)
        for topic in self.topic:
            if not any(topic in queue.underlying(name) or queue.reads(topic) for name, queue in self.queue.items()):
                raise placed_error(("topic", topic), f"no queue reads {topic}, so its lifetime would not count (L8)")
        self._refuse_clashes()
        self._refuse_long_topics()
        self._refuse_own_topics()
        self._refuse_circles()
        return self

    def _refuse_long_topics(self) -> None:
        """Refuse entities that need a topic with a longer name than Kafka allows, because of `app_id` or a user."""
        app_id, granted = self.lapse.app_id, {user: settings.granted() for user, settings in self.users.items()}
        for kind, names in (("queue", self.queue), ("sow", self.sow)):
            for name in names:
                longest = max(topic_names.entity_topics(app_id, name), key=len)
                for user in granted:
                    private = topic_names.deliveries(name, user)
                    # A user without a right has no topic there. Rights are looked up only if that matters.
                    if len(private) > max(len(longest), LONGEST) and find_entitlement(name, granted[user]).rights:
                        longest = private
                if len(longest) > LONGEST:
                    raise placed_error(
                        (kind, name),
                        f"its topic {longest} would have {len(longest)} characters, and Kafka allows {LONGEST}; choose "
                        "a shorter name",
                    )

    def _refuse_clashes(self) -> None:
        """Refuse entities whose topics collide in Kafka's metrics, in which '.' and '_' are the same."""
        owners: dict[str, str] = {}
        for kind, name in [*(("queue", name) for name in self.queue), *(("sow", name) for name in self.sow)]:
            for topic in (*topic_names.entity_topics(self.lapse.app_id, name), topic_names.events(name)):
                other = owners.setdefault(topic.replace(".", "_"), name)
                if other != name:
                    raise placed_error(
                        (kind, name), f"its topic {topic} clashes with one of {other}; choose another name"
                    )

    def _refuse_own_topics(self) -> None:
        """Refuse entities that would read topics that only lapse or Kafka writes.

        Of its own output each record would cause another. Those of other entities have records for their clients alone.
        """
        journals = {topic_names.changelog(self.lapse.app_id, name) for name in (*self.queue, *self.sow)}
        queues = (("queue", name, "topics", entity.underlying(name)) for name, entity in self.queue.items())
        sows = (("sow", name, "topic", entity.underlying(name)) for name, entity in self.sow.items())
        for kind, name, key, topics in (*queues, *sows):
            own = {*topic_names.entity_topics(self.lapse.app_id, name), topic_names.events(name)}
            for topic in topics:
                if topic in topic_names.INTERNAL:
                    raise placed_error(
                        (kind, name, key), f"{topic} is internal to Kafka: its records are for brokers only"
                    )
                if topic in own or topic.startswith(f"{topic_names.deliveries(name)}."):
                    raise placed_error(
                        (kind, name, key), f"{topic} is a topic of its own: what {name} writes would come back to it"
                    )
                if topic.startswith(topic_names.PREFIX) or topic in journals:
                    raise placed_error(
                        (kind, name, key),
                        f"{topic} is one of the topics that only lapse writes, for its clients and workers. Name the "
                        "topic that publishers write to; any Kafka consumer may read events and states beside it",
                    )

    def _refuse_circles(self) -> None:
        """Refuse forwarding and dead letters that return to their entity (C28, C38)."""
        ways: dict[str, list[Way]] = {}
        journals = {topic_names.changelog(self.lapse.app_id, name) for name in (*self.queue, *self.sow)}
        for name, entity in [*self.queue.items(), *self.sow.items()]:
            letters = entity.dead_letter_topic(name) if entity.dead_letter_reasons != () else ""
            onward = self.forward_topic(name) if name in self.queue else None
            places = (("forward_to", onward), ("dead_letter", letters))
            ways[name] = [Way(key, topic) for key, topic in places if topic]
            for way in ways[name]:
                writer = "Kafka" if way.topic in topic_names.INTERNAL else "lapse"
                if writer == "Kafka" or way.topic.startswith(topic_names.PREFIX) or way.topic in journals:
                    raise placed_error(
                        ("queue" if name in self.queue else "sow", name, way.key),
                        f"{way.topic} is one of the topics that only {writer} writes; name another",
                    )
        readers = self._all_readers({way.topic for some in ways.values() for way in some})
        for key, *passed in circles(ways, lambda topic: readers[topic]):
            name = passed[0]
            round_trip = " → ".join(passed)
            what = "a circle" if key == "forward_to" else "its dead letters come back to it"
            rule = "C38" if key == "forward_to" else "C28"
            raise placed_error(("queue" if name in self.queue else "sow", name, key), f"{what}: {round_trip} ({rule})")

    def _topics_as_text(self, name: str) -> str:
        queue = self.queue[name]
        return ", ".join(filter(None, (*queue.underlying(name), queue.topic_pattern)))

    def readers(self, topic: str) -> list[str]:
        """Return the entities that read a topic."""
        queues = [name for name, queue in self.queue.items() if topic in queue.underlying(name) or queue.reads(topic)]
        return queues + [name for name, sow in self.sow.items() if topic in sow.underlying(name)]

    def _all_readers(self, topics: set[str]) -> dict[str, list[str]]:
        """Return the entities that read each of some topics, by topic."""
        found: dict[str, list[str]] = {topic: [] for topic in topics}
        for name, queue in self.queue.items():
            pattern = queue.pattern()
            reads = topics.intersection(queue.underlying(name))
            if pattern is not None:
                reads |= set(filter(pattern.fullmatch, topics))
            for topic in reads:
                found[topic].append(name)
        for name, sow in self.sow.items():
            for topic in topics.intersection(sow.underlying(name)):
                found[topic].append(name)
        return found

    def _refuse_unread_topics(self, name: str) -> None:
        """Refuse settings that name a topic that the queue does not read (Q2, Q16, L8)."""
        queue = self.queue[name]
        own, pattern = set(queue.underlying(name)), queue.pattern()

        def is_read(topic: str) -> bool:
            return topic in own or (pattern is not None and pattern.fullmatch(topic) is not None)

        target = queue.default_publish_target
        if target is not None and not is_read(target):
            raise placed_error(
                ("queue", name, "default_publish_target"),
                f"{target} is none of the queue's topics: what is published there would not come to the queue",
            )
        for topic in queue.topic_expirations:
            if not is_read(topic):
                raise placed_error(
                    ("queue", name, "topic_expirations", topic),
                    f"{topic} is none of the queue's topics: {self._topics_as_text(name)}",
                )
        if isinstance(queue.recovery_point, tuple):
            for bookmark in queue.recovery_point:
                if not is_read(bookmark.topic):
                    raise placed_error(
                        ("queue", name, "recovery_point"),
                        f"{bookmark} is of none of the queue's topics: {self._topics_as_text(name)}",
                    )

    def forward_topic(self, name: str) -> str | None:
        """Return the topic that a queue forwards to: `forward_to`, or the publish target of that queue (Q21)."""
        target = self.queue[name].forward_to
        if target is None:
            return None
        return self.queue[target].publish_target(target) if target in self.queue else target
