"""The stage: a directory for the run, a broker, and the topics, removed afterwards."""

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
    """The directory, broker and topics of a run.

    Args:
        keep: whether to keep directory and topics for people to look at.

    Attributes:
        directory: directory of the run, with configuration, logs, and the data of an embedded broker.
        given: the broker in `KAFKA_BOOTSTRAP_SERVERS`; None for an embedded one.
        failed: whether the run ended early, so that its logs are kept.
        evidence: whether everything is kept, because the user wants it or the ledger does not balance.
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
        """The data directory of an embedded broker."""
        return self.directory / "kafka"

    def log(self, name: str) -> Path:
        """Return the log of a process."""
        return self.directory / "logs" / f"{name}.log"

    @contextmanager
    def broker(self) -> Iterator[str]:
        """Yield the broker's bootstrap servers.

        Raises:
            DemoFailed: there is no broker, and none can be started; the text says what is missing.
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
        """Return the names of the queue and of the SOW topic; on a given broker, names that nobody else uses."""
        suffix = f"-{uuid4().hex[:8]}" if self.given is not None else ""
        return f"{_QUEUE}{suffix}", f"{_SOW}{suffix}"

    @contextmanager
    def topics(self, plan: Plan) -> Iterator[None]:
        """Write the configuration and create its topics; on a given broker, delete them afterwards.

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
        """Delete the directory unless it is kept, or is needed to find out what went wrong.

        Returns:
            What to tell the user about it; empty if it is deleted.
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
