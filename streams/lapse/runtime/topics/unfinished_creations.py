"""Remembers creations that a definer has begun, and their topics if the entities are temporary (C65).

The topics exist before the definition that says to which entity they belong. If the definer is killed in between, or
somebody else changes definitions at that moment, the command is carried out again and finds the topics. A note says
that they did not exist before the command. It is kept with the committed offset of the commands, so it is safe before
the first topic is created. It is removed when the command is done.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any, Final

import orjson
from aiokafka import AIOKafkaConsumer
from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.structs import OffsetAndMetadata, TopicPartition

_MOST_BYTES: Final = 4_096
"""Kafka's default limit of the metadata of an offset, bytes. A longer note is kept only in memory."""


class UnfinishedCreations:
    """Remembers the topics that unfinished commands have created.

    Args:
        connection: aiokafka's settings: brokers and security.
        group: the consumer group whose offset has the note.

    Attributes:
        begun: whether the next commands were begun, perhaps by a worker that was killed. Topics may exist already.
    """

    def __init__(self, connection: Mapping[str, Any], group: str) -> None:
        self._connection = connection
        self._group = group
        self.begun = False
        self._topics: frozenset[str] = frozenset()
        self._is_read = False
        self._consumer: AIOKafkaConsumer | None = None
        self._tp = TopicPartition("", 0)
        self._offset = 0

    @property
    def topics(self) -> Collection[str]:
        """The topics that did not exist before the commands that are under way."""
        return self._topics

    async def begin(self, consumer: AIOKafkaConsumer, tp: TopicPartition, offset: int) -> None:
        """Note the offset of the next commands, which may be carried out for the second time.

        Raises:
            KafkaError: the stored note cannot be read.
        """
        if offset != self._offset:
            self.begun = False  # another worker has finished what was begun here
        self._consumer, self._tp, self._offset = consumer, tp, offset
        if not self._is_read:
            self._topics |= await self._read()
            self._is_read = True

    async def note(self, topics: Iterable[str]) -> None:
        """Note that a creation is begun, and remember further topics, before they are created.

        Raises:
            KafkaError: another worker carries the commands out now.
        """
        noted = self._topics.union(topics)
        if noted == self._topics and self.begun:
            return
        self._topics, self.begun = noted, True
        text = orjson.dumps(sorted(noted)).decode()
        if self._consumer is not None and len(text) <= _MOST_BYTES:
            await self._consumer.commit({self._tp: OffsetAndMetadata(self._offset, text)})

    def end(self) -> None:
        """Note that the commands are done, and their offset is committed."""
        self._topics, self.begun = frozenset(), False

    def forget(self) -> None:
        """Read the note again later, because another worker may have carried out commands meanwhile.

        The topics that this worker has created for an unfinished command stay known.
        """
        self._is_read = False

    async def _read(self) -> frozenset[str]:
        admin = AIOKafkaAdminClient(**self._connection)
        try:
            await admin.start()
            committed = await admin.list_consumer_group_offsets(self._group, partitions=[self._tp])
        finally:
            await admin.close()
        found = committed.get(self._tp)
        if found is None or found.offset != self._offset or not found.metadata:
            return frozenset()
        self.begun = True
        try:
            return frozenset(map(str, orjson.loads(found.metadata)))
        except (orjson.JSONDecodeError, TypeError):
            return frozenset()
