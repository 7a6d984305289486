"""The shards that entities have already, as the topics of their own on the cluster say."""

from __future__ import annotations

from collections.abc import Mapping

from lapse.config import Config
from lapse.protocol import topic as names
from lapse.runtime.topics.wanted import GROWING, Wanted


class ExistingShards:
    """Which entities are on a cluster, and with how many shards.

    Args:
        config: the configuration.
        existing: partitions of every topic on the cluster.
    """

    def __init__(self, config: Config, existing: Mapping[str, int]) -> None:
        self._config = config
        self._existing = existing

    def exists(self, entity: str) -> bool:
        """Whether an entity is there: it has a journal and commands, of one shape or on the way to it (C81)."""
        journal = self._existing.get(names.changelog(self._config.lapse.app_id, entity))
        commands = self._existing.get(names.commands(entity))
        if journal is None or commands is None or entity in self._config.sow:
            return journal is not None and journal == commands
        return max(journal, commands) % max(1, min(journal, commands)) == 0

    def count(self, entity: str) -> int:
        """How many shards an entity has that is there."""
        return min(self._existing[topic] for topic in self._own(entity) if topic in self._existing)

    def is_growing(self, topic: Wanted, count: int) -> bool:
        """Whether a topic has got partitions for shards that its queue does not have yet (C81).

        Args:
            topic: the topic, as the queue with its present shards needs it.
            count: how many partitions it has.
        """
        queue = self._config.queue.get(topic.entity)
        if queue is None or queue.fed or not self.exists(topic.entity):
            return False
        read = max((self._existing.get(one, 0) for one in queue.underlying(topic.entity)), default=0)
        return topic.role in GROWING and topic.partitions < count <= read and count % topic.partitions == 0

    def _own(self, entity: str) -> list[str]:
        """The topics of an entity with as many partitions as it has shards; with more while it gets more."""
        journal = names.changelog(self._config.lapse.app_id, entity)
        if entity in self._config.sow:
            return [journal]
        return [journal, names.commands(entity), names.deliveries(entity), names.events(entity)]
