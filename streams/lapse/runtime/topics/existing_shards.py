"""Finds from the topics on the cluster which entities exist, and how many shards they have."""

from __future__ import annotations

from collections.abc import Mapping

from lapse.config import Config
from lapse.protocol import topic as names
from lapse.runtime.topics.wanted import GROWING, Wanted


class ExistingShards:
    """The entities that exist on a cluster, and their numbers of shards.

    Args:
        config: the configuration.
        existing: the number of partitions of every topic on the cluster.
    """

    def __init__(self, config: Config, existing: Mapping[str, int]) -> None:
        self._config = config
        self._existing = existing

    def exists(self, entity: str) -> bool:
        """Return whether an entity exists: it has a journal and commands with fitting numbers of partitions (C81)."""
        journal = self._existing.get(names.changelog(self._config.lapse.app_id, entity))
        commands = self._existing.get(names.commands(entity))
        if journal is None or commands is None or entity in self._config.sow:
            return journal is not None and journal == commands
        return max(journal, commands) % max(1, min(journal, commands)) == 0

    def count(self, entity: str) -> int:
        """Return the number of shards of an existing entity."""
        return min(self._existing[topic] for topic in self._own(entity) if topic in self._existing)

    def is_growing(self, topic: Wanted, count: int) -> bool:
        """Return whether a topic has partitions for shards that its queue does not have yet (C81).

        Args:
            topic: the topic, as the queue with its present shards needs it.
            count: its number of partitions.
        """
        if topic.role not in GROWING or not topic.partitions < count:
            return False
        queue = self._config.queue.get(topic.entity)
        if queue is None or queue.shards_read_topics or not self.exists(topic.entity):
            return False
        read = max((self._existing.get(one, 0) for one in queue.underlying(topic.entity)), default=0)
        return count <= read and count % topic.partitions == 0

    def _own(self, entity: str) -> list[str]:
        """Return the topics of an entity with a partition for each shard; some have more while shards are added."""
        journal = names.changelog(self._config.lapse.app_id, entity)
        if entity in self._config.sow:
            return [journal]
        return [journal, names.commands(entity), names.deliveries(entity), names.events(entity)]
