"""The stage: a directory for the run, a broker, and the topics; cleared away afterwards."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final
from uuid import uuid4

from confluent_kafka import KafkaException

from lapse.config import ConfigError, loads
from lapse.demo.error import DemoFailed
from lapse.demo.plan import Plan
from lapse.embedded import EmbeddedError, EmbeddedKafka
from lapse.embedded.broker import given_broker
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.topology import TopologyError
from lapse_client import Connection

_HEAP_MB: Final = 768
_QUEUE: Final = "departures"
_SOW: Final = "aircraft"


class Stage:
    """Where a run takes place.

    Args:
        keep: leave directory and topics behind, for people to look at.

    Attributes:
        directory: of the run: configuration, logs, and the data of an embedded broker.
        given: the broker that `KAFKA_BOOTSTRAP_SERVERS` names; None = an embedded one.
        failed: the run ended early: its logs are kept.
        evidence: the ledger does not balance: everything is kept.
    """

    def __init__(self, *, keep: bool) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="lapse-demo-"))
        self.given = given_broker()
        self.failed = False
        self.evidence = keep
        (self.directory / "logs").mkdir()

    @property
    def configuration(self) -> Path:
        """The run's `lapse.toml`."""
        return self.directory / "lapse.toml"

    @property
    def broker_data(self) -> Path:
        """Where an embedded broker keeps its data."""
        return self.directory / "kafka"

    def log(self, name: str) -> Path:
        """The log of a process."""
        return self.directory / "logs" / f"{name}.log"

    @contextmanager
    def broker(self) -> Iterator[str]:
        """Yield bootstrap servers of the broker.

        Raises:
            DemoFailed: there is none, and none can be started; the text says what is missing.
        """
        if self.given is not None:
            yield self.given
            return
        kafka = EmbeddedKafka(self.broker_data, heap_mb=_HEAP_MB)
        try:
            kafka.start()
        except EmbeddedError as error:
            kafka.close()
            raise DemoFailed(f"The demo needs a Kafka broker. {error}") from error
        try:
            yield kafka.bootstrap_servers
        finally:
            kafka.close()

    def names(self) -> tuple[str, str]:
        """Names of the queue and of the SOW topic; on a broker that is not ours, ones that nobody else uses."""
        suffix = f"-{uuid4().hex[:8]}" if self.given is not None else ""
        return f"{_QUEUE}{suffix}", f"{_SOW}{suffix}"

    @contextmanager
    def topics(self, plan: Plan) -> Iterator[None]:
        """Write the configuration and create its topics; on a broker that is not ours, delete them afterwards.

        Raises:
            DemoFailed: the broker does not answer, or refuses.
        """
        self.configuration.write_text(plan.configuration(), "utf-8")
        try:
            config = loads(plan.configuration(), str(self.configuration))
            cluster = Cluster(config)
            wanted = cluster.topology().wanted()
            cluster.create(wanted)
        except (ConfigError, TopologyError) as error:
            raise DemoFailed(str(error)) from error
        try:
            yield
        finally:
            if self.given is not None and not self.evidence:
                _delete(plan, [topic.name for topic in wanted])

    def clear(self) -> str:
        """Delete the directory unless it is to be kept, or is needed to find out what went wrong.

        Returns:
            What to tell about it; empty if it is gone.
        """
        if self.failed and not self.evidence:
            shutil.rmtree(self.broker_data, ignore_errors=True)
            return f"The logs are in {self.directory / 'logs'}"
        if not self.evidence:
            shutil.rmtree(self.directory, ignore_errors=True)
            return ""
        if self.given is not None:
            return f"Kept: the topics on {self.given}, and {self.directory}"
        return (
            f"Kept: {self.directory}. Start its broker again with: lapse kafka start --data {self.broker_data} --port 0"
        )


def _delete(plan: Plan, topics: list[str]) -> None:
    admin = Connection.from_environment(plan.bootstrap_servers).admin()
    for future in admin.delete_topics(topics, operation_timeout=30).values():
        try:
            future.result()
        except KafkaException:
            continue  # what cannot be deleted stays; the run itself is over
