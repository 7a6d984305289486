"""Queues and SOW topics of a test: their topics, and the machines of their shards, which are the worker's own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator
from typing import Final

from lapse.config import QueueConfig, SowConfig
from lapse.core.queue.journal.restored import restore
from lapse.core.shard.changelog import Changelog
from lapse.core.sow.shard import SowShard
from lapse.protocol import topic as names
from lapse.runtime.queue.forwarding import Forwarding
from lapse.runtime.queue.machine import QueueMachine
from lapse.runtime.queue.output import QueueOutput
from lapse.runtime.queue.recovery_point import begin_offsets
from lapse.runtime.shard.machine import Machine
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.sow.machine import SowMachine
from lapse.runtime.sow.output import SowOutput
from lapse.runtime.sow.settings import settings as sow_settings
from lapse.runtime.tp import TP
from lapse.testing.cluster import Cluster
from lapse.testing.memory_log import MemoryLog, at_once

APP_ID: Final = "lapse"
_MOST_RECORD_BYTES: Final = 1_000_000
"""The greatest size of a SOW topic's record, bytes: Kafka's default."""


class Entity(ABC):
    """A queue or SOW topic.

    Args:
        name: name of the entity.
        config: its settings.
        cluster: the cluster with its topics.
    """

    def __init__(self, name: str, config: QueueConfig | SowConfig, cluster: Cluster) -> None:
        self.name = name
        self.cluster = cluster
        self.log = MemoryLog(cluster)
        self._config = config
        for topic in config.underlying(name):
            cluster.create(topic, config.partitions)
        known = cluster.partitions()
        self.shards = self._shards(max((known[topic] for topic in config.underlying(name)), default=config.partitions))
        for topic in (names.commands(name), names.deliveries(name), names.events(name), self.changelog):
            cluster.create(topic, self.shards)
        if letters := config.dead_letter_topic(name):
            cluster.create(letters, self.shards)

    @property
    def underlying(self) -> tuple[str, ...]:
        """The topics that its settings name."""
        return tuple(self._config.underlying(self.name))

    @property
    def changelog(self) -> str:
        """The topic with the journals of its shards."""
        return names.changelog(APP_ID, self.name)

    def sources(self, partition: int) -> Iterator[TP]:
        """Yield the partitions of underlying topics that a shard reads."""
        for topic, count in self._underlying():
            for source in range(count):
                if self._reads_all or source % self.shards == partition:
                    yield TP(topic, source)

    @property
    @abstractmethod
    def _reads_all(self) -> bool:
        """Whether every shard reads every partition."""

    def _shards(self, partitions: int) -> int:
        return partitions

    def _underlying(self) -> Iterator[tuple[str, int]]:
        known = self.cluster.partitions()
        for topic in self._config.underlying(self.name):
            yield topic, known.get(topic, 0)

    def begins(self, new: list[TP]) -> dict[TP, int]:
        """Return the first offsets to read of new sources."""
        return dict.fromkeys(new, 0)

    @abstractmethod
    def machine(self, partition: int, epoch: int, changelog: Changelog, positions: dict[TP, int]) -> Machine:
        """Build the machine of a shard from its journal, as a worker does."""

    def _clock_ms(self) -> int:
        return self.cluster.now_ms

    def _letter_partitions(self) -> int:
        return self.cluster.partitions().get(self._config.dead_letter_topic(self.name), 0)


class QueueEntity(Entity):
    """A queue.

    Args:
        name: name of the queue.
        config: its settings.
        cluster: the cluster with its topics.
        forward: the topic to which it forwards; None if it does not.
    """

    def __init__(self, name: str, config: QueueConfig, cluster: Cluster, forward: str | None) -> None:
        self._queue = config
        self._forward = forward
        super().__init__(name, config, cluster)

    def _shards(self, partitions: int) -> int:
        return 1 if self._queue.ordering == "total" else partitions

    @property
    def _reads_all(self) -> bool:
        return self._queue.ordering == "total"

    def _underlying(self) -> Iterator[tuple[str, int]]:
        yield from super()._underlying()
        pattern = self._queue.pattern()
        for topic, count in self.cluster.partitions().items():
            if pattern is not None and topic not in self._queue.topics and pattern.fullmatch(topic):
                yield topic, count

    def begins(self, new: list[TP]) -> dict[TP, int]:
        """See `Entity`; the recovery point decides (Q16)."""
        return {
            **super().begins(new),
            **at_once(begin_offsets(self.name, self._queue.recovery_point, new, self.log)),
        }

    def machine(self, partition: int, epoch: int, changelog: Changelog, positions: dict[TP, int]) -> Machine:
        """See `Entity`."""
        config = self._queue
        settings = config.settings(self.name, partition, self.shards)
        restored = restore(changelog.items())
        for tp, offset in positions.items():
            source = restored.state.sources[restored.state.sources.number(tp.topic, tp.partition)]
            source.next_offset, source.is_read = max(source.next_offset, offset), True
        forwarding = None
        if self._forward is not None:
            forwarding = Forwarding(self.name, self._forward, self.cluster.partitions().get(self._forward, 1))
        output = QueueOutput(self.name, partition, epoch, settings.dead_letter_topic, self._letter_partitions())
        output.ignores_lifetimes = not settings.expiration.enabled
        return QueueMachine(
            settings,
            restored,
            epoch,
            PayloadWindow(self.log, config.payload_window << 20),
            output,
            config.publish_target(self.name),
            config.ordering == "total",
            None,
            forwarding,
            self._clock_ms,
        )


class SowEntity(Entity):
    """A SOW topic.

    Args:
        name: name of the SOW topic.
        config: its settings.
        cluster: the cluster with its topics.
    """

    def __init__(self, name: str, config: SowConfig, cluster: Cluster) -> None:
        self._sow = config
        super().__init__(name, config, cluster)
        cluster.create(names.sow(name), self.shards)

    @property
    def _reads_all(self) -> bool:
        return self._sow.shards_read_topics(self.shards)

    def machine(self, partition: int, epoch: int, changelog: Changelog, positions: dict[TP, int]) -> Machine:
        """See `Entity`."""
        shard = SowShard(sow_settings(self._sow, self.name, partition, self.shards, _MOST_RECORD_BYTES))
        shard.restore(changelog.latest.items())
        letters = self._sow.dead_letter_topic(self.name)
        output = SowOutput(self.name, partition, epoch, letters, self._letter_partitions())
        return SowMachine(shard, output, self.log.one, None, self._clock_ms)
