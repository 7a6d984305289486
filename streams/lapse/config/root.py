"""The whole of `lapse.toml`."""

from __future__ import annotations

import os
from typing import Literal, Self

from pydantic import BaseModel, ConfigDict, Field, SecretStr, model_validator

from lapse.config.duration import DurationMs
from lapse.config.entity import QueueConfig, SowConfig
from lapse.protocol import topic as topic_names


class WorkerConfig(BaseModel):
    """`[lapse]`: what holds for the whole deployment.

    Attributes:
        app_id: consumer group of the workers and prefix of their changelog topics.
        bootstrap_servers: the brokers; `KAFKA_BOOTSTRAP_SERVERS` comes first.
        replication_factor: of topics that lapse creates.
        store: where shards keep what the changelog holds: `"memory"` or `"rocksdb"`.
        standby: whether a worker follows the changelogs of shards at other workers, so that it takes them over sooner.
        data_dir: directory of the RocksDB store, one per worker.
        max_clock_skew: offset between the worker's clock and the broker's that causes a warning, ms (L13).
        session_timeout: silence after which a worker is taken for dead, ms.
        metrics_port: port of the worker's figures for Prometheus; 0 = none.
        metrics_host: address on which they are served.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    app_id: str = Field(default="lapse", pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,100}$")
    bootstrap_servers: str = "127.0.0.1:9092"
    replication_factor: int = Field(default=1, ge=1, le=32)
    store: Literal["memory", "rocksdb"] = "memory"
    standby: bool = False
    data_dir: str = ".lapse"
    max_clock_skew: DurationMs = 1_000
    session_timeout: DurationMs = 6_000
    metrics_port: int = Field(default=0, ge=0, le=65_535)
    metrics_host: str = "127.0.0.1"

    @property
    def brokers(self) -> str:
        """The brokers to connect to."""
        return os.environ.get("KAFKA_BOOTSTRAP_SERVERS") or self.bootstrap_servers


class SecurityConfig(BaseModel):
    """`[security]`: Kafka over TLS and SASL (X5).

    Attributes:
        protocol: PLAINTEXT, SSL, SASL_PLAINTEXT or SASL_SSL.
        sasl_mechanism: PLAIN, SCRAM-SHA-256 or SCRAM-SHA-512.
        username: SASL user.
        password: its password; `LAPSE_SASL_PASSWORD` comes first, so that it need not stand in the file.
        ca_file: certificates to trust, PEM.
        certificate_file: the client's own certificate, PEM.
        key_file: its key, PEM.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    protocol: Literal["PLAINTEXT", "SSL", "SASL_PLAINTEXT", "SASL_SSL"] = "PLAINTEXT"
    sasl_mechanism: Literal["PLAIN", "SCRAM-SHA-256", "SCRAM-SHA-512"] = "PLAIN"
    username: str | None = None
    password: SecretStr | None = None
    ca_file: str | None = None
    certificate_file: str | None = None
    key_file: str | None = None


class Config(BaseModel):
    """The whole configuration.

    Attributes:
        lapse: what holds for the deployment.
        security: how to speak to Kafka.
        queue: the queues, by name.
        sow: the SOW topics, by name.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    lapse: WorkerConfig = WorkerConfig()
    security: SecurityConfig = SecurityConfig()
    queue: dict[str, QueueConfig] = {}
    sow: dict[str, SowConfig] = {}

    @model_validator(mode="after")
    def _names(self) -> Self:
        for name in [*self.queue, *self.sow]:
            if not topic_names.NAME.match(name) or name.startswith(
                (topic_names.PREFIX, topic_names.DEAD_LETTER_PREFIX)
            ):
                raise ValueError(
                    f"{name!r} cannot name an entity: letters, digits, '.', '_' and '-' only, at most 200, "
                    f"not beginning with {topic_names.PREFIX!r} or {topic_names.DEAD_LETTER_PREFIX!r}"
                )
        both = set(self.queue) & set(self.sow)
        if both:
            raise ValueError(f"{', '.join(sorted(both))}: a queue and a SOW topic cannot share a name")
        for name in self.queue:
            self._follow(name)
            self._know_bookmarks(name)
        for name, queue in self.queue.items():
            letters = queue.dead_letter_topic(name)
            if letters and letters in queue.underlying(name):
                raise ValueError(
                    f"queue.{name}: its dead letters go to {letters}, which it reads itself: "
                    f"{name} → {letters} → {name} (C28)"
                )
        return self

    def _know_bookmarks(self, name: str) -> None:
        """Refuse a recovery point at a topic that the queue does not read (Q16)."""
        queue = self.queue[name]
        if isinstance(queue.recovery_point, tuple):
            for bookmark in queue.recovery_point:
                if bookmark.topic not in queue.underlying(name) and not queue.reads(bookmark.topic):
                    raise ValueError(
                        f"queue.{name}.recovery_point: {bookmark} is of none of the queue's topics: "
                        f"{', '.join(queue.underlying(name)) or queue.topic_pattern}"
                    )

    def forward_topic(self, name: str) -> str | None:
        """The topic that a queue forwards to: named itself, or where a publish to the named queue goes (Q21)."""
        target = self.queue[name].forward_to
        if target is None:
            return None
        return self.queue[target].publish_target(target) if target in self.queue else target

    def _follow(self, start: str) -> None:
        """Refuse a circle of forwarding queues (C38)."""
        way = [start]
        topic = self.forward_topic(start)
        while topic is not None:
            readers = [
                name for name, queue in self.queue.items() if topic in queue.underlying(name) or queue.reads(topic)
            ]
            back = next((name for name in readers if name in way), None)
            if back is not None:
                raise ValueError(f"queue.{start}.forward_to: a circle: {' → '.join([*way, back])} (C38)")
            onward = next((name for name in readers if self.queue[name].forward_to is not None), None)
            if onward is None:
                return
            way.append(onward)
            topic = self.forward_topic(onward)
