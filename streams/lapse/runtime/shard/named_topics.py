"""The user's topics that an entity names: whether they exist, and their numbers of partitions (C52, C81)."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import Mapping

from lapse.config import QueueConfig, SowConfig
from lapse.protocol import topic as names
from lapse.runtime.topics.topic_id import Shape
from lapse.runtime.topics.wanted import Role, without
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)


def is_read(name: str, config: QueueConfig | SowConfig, topic: str) -> bool:
    """Return whether an entity's shards read a topic.

    Their journals also know topics that were taken away. They keep the positions there, and the topics' ids (C65).

    Args:
        name: name of the entity.
        config: its settings.
        topic: name of the topic.
    """
    if topic in (names.commands(name), *config.underlying(name)):
        return True
    return isinstance(config, QueueConfig) and config.reads(topic)


class NamedTopics(ABC):
    """The part of an entity that is about the user's topics.

    Args:
        name: name of the entity.
        config: its settings.
        partitions: its number of shards.
    """

    def __init__(self, name: str, config: QueueConfig | SowConfig, partitions: int) -> None:
        self.name = name
        self.config = config
        self.partitions = partitions
        self.apart = False
        """Whether shards read their topics with consumers of their own from their next take-over on. Faust cannot
        read topics that are missing, were created again, or have another number of partitions (C52, C81)."""
        self.shapes: dict[str, Shape] = {}
        """The ids and numbers of partitions of underlying topics and targets, as last looked up."""
        self.unread: dict[str, int] = {}
        """The number of records in partitions of underlying topics that no shard reads, by topic (C81)."""
        self._seen_partitions: dict[str, int] = {}
        """The numbers of partitions of underlying topics when the last warning was logged."""
        self._lacking: set[str] = set()
        self._missed: set[str] = set()

    @property
    def has_own_readers(self) -> bool:
        """Whether shards always read their topics with consumers of their own."""
        if isinstance(self.config, SowConfig):
            return self.config.shards_read_topics(self.partitions)
        return self.config.shards_read_topics

    @property
    def targets(self) -> dict[str, Role]:
        """The user's topics that the entity names, with their roles. All are watched (C81)."""
        letters = self.config.dead_letter_topic(self.name)
        targets = {letters: Role.DEAD_LETTERS} if letters else {}
        return {**targets, **dict.fromkeys(self.config.underlying(self.name), Role.UNDERLYING)}

    def reads(self, topic: str) -> bool:
        """Return whether the shards read a topic; see `is_read`."""
        return is_read(self.name, self.config, topic)

    def shares(self, partition: int, shapes: Mapping[str, Shape]) -> list[TP]:
        """Return the partitions of topics that belong to a shard: every one whose number leads to it."""
        return [
            TP(topic, number)
            for topic, shape in shapes.items()
            for number in range(partition, shape.partitions, self.partitions)
        ]

    def expect(self, existing: Mapping[str, int]) -> None:
        """Note which topics exist before the start. The start warns of missing ones, so they are not logged again."""
        self._lacking = {topic for topic in self.targets if topic not in existing}
        underlying = self.config.underlying(self.name)
        self.apart = not self.has_own_readers and any(existing.get(topic) != self.partitions for topic in underlying)
        self._seen_partitions = {topic: existing[topic] for topic in underlying if topic in existing}

    def attend(self, shapes: Mapping[str, Shape]) -> bool:
        """Note the current shapes of the topics that the entity names; log a missing topic once.

        Returns:
            Whether the entity's shards must be taken over anew to use the topics.
        """
        missing = {topic for topic in self.targets if topic not in shapes}
        for topic in sorted((missing & self._missed) - self._lacking):  # a broker that starts may lack some
            logger.warning("%s: %s", self.name, without(self.targets[topic], topic))
        for topic in sorted(self._lacking.intersection(self.targets) - missing):
            logger.warning("%s: topic %s is there now, and is taken up", self.name, topic)
        self._lacking, self._missed = missing & (self._lacking | self._missed), missing
        self._note(shapes)
        return self._needs_take_over()

    @abstractmethod
    def _needs_take_over(self) -> bool:
        """Return whether shards must be taken over anew, because they cannot use a topic otherwise."""

    def _note(self, shapes: Mapping[str, Shape]) -> None:
        self.shapes = {topic: shapes[topic] for topic in self.targets if topic in shapes}
        if self.has_own_readers:
            return
        for topic in self.config.underlying(self.name):
            shape = shapes.get(topic)
            count = self.partitions if shape is None else shape.partitions
            self.apart |= shape is None or count != self.partitions
            before, self._seen_partitions[topic] = self._seen_partitions.get(topic, self.partitions), count
            if before != count != self.partitions:
                logger.warning(
                    "%s: topic %s has %d partitions, and it has %d shards; what was served goes on%s. `lapse check` "
                    "says what to do",
                    self.name,
                    topic,
                    count,
                    self.partitions,
                    ", and nobody reads the added ones" if self.unread_partitions() else "",
                )

    @property
    def missing(self) -> list[str]:
        """The topics that the entity names and that certainly do not exist (C52)."""
        return sorted(self._lacking)

    @property
    def added(self) -> dict[str, int]:
        """The number of partitions that underlying topics have beyond the entity's shards, by topic (C81)."""
        beyond = {topic: shape.partitions - self.partitions for topic, shape in self.shapes.items()}
        underlying = () if self.has_own_readers else self.config.underlying(self.name)
        return {topic: beyond[topic] for topic in underlying if beyond.get(topic, 0) > 0}

    @property
    def partitions_read(self) -> int:
        """The number of partitions that the shards of a SOW topic read: their own number, or a multiple of it (C81).

        With keys in the payload they read all, by another rule (C46). Kafka's partitioners move keys from partition *q*
        of 2 to *q* or *q* + 2 of 4, which one shard reads. With 3, a key might have a record in two shards.
        """
        if self.has_own_readers:
            return self.partitions
        times = min((count // self.partitions for count in self._counts()), default=1)
        return max(1, times) * self.partitions

    def _counts(self) -> list[int]:
        shapes = [self.shapes.get(topic) for topic in self.config.underlying(self.name)]
        return [shape.partitions for shape in shapes if shape is not None]

    def unread_partitions(self) -> list[TP]:
        """Return the added partitions that no shard reads: of a SOW topic, those beyond a multiple of its shards."""
        if isinstance(self.config, QueueConfig):
            return []
        read = self.partitions_read
        return [TP(topic, number) for topic in self.added for number in range(read, self.shapes[topic].partitions)]

    def note_unread(self, records: Mapping[TP, int]) -> None:
        """Note how many records are in added partitions that no shard reads; log it once for each topic."""
        before, self.unread = self.unread, {}
        for tp, count in records.items():
            self.unread[tp.topic] = self.unread.get(tp.topic, 0) + count
        for topic, count in self.unread.items():
            if count and not before.get(topic):
                logger.warning(
                    "%s: %d records in added partitions of topic %s are read by nobody. They stay there, as long as "
                    "Kafka keeps them. `lapse check` says what to do",
                    self.name,
                    count,
                    topic,
                )

    def letter_partitions(self) -> int:
        """Return the number of partitions of the dead-letter topic; 0 while it is missing."""
        shape = self.shapes.get(self.config.dead_letter_topic(self.name))
        return 0 if shape is None else shape.partitions

    def _sources(self, partition: int) -> list[TP]:
        """Return the partitions of underlying topics that Faust fetches for a shard."""
        return [TP(topic, partition) for topic in self.config.underlying(self.name)]

    def _most_read(self) -> int | None:
        """Return the number from which on partitions are not read before the next take-over; None if all are.

        Messages of added partitions must be merged by time with the others, and a queue's shard does so only if it was
        taken over when they were there.
        """
        if self.has_own_readers:
            return None
        if isinstance(self.config, SowConfig):
            return self.partitions_read
        return None if self.added else self.partitions
