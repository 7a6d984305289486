"""Standby: a worker follows the changelogs of others, to take their shards over sooner (Q16)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from lapse.runtime.journal.changelog import Changelog
from lapse.runtime.kafka.bounded_close import bounded_close

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 5.0
"""After a failure; nobody waits for a standby."""

_POLL_MS: Final = 500
_RECORDS: Final = 2_000


class Standby:
    """Follows partitions of one changelog topic.

    It is no more than a pre-read: whoever takes a shard over reads on from here to the end, and what went wrong here
    is read again from the beginning.

    Args:
        settings: aiokafka's settings for reading changelogs.
        topic: the changelog topic.
        begin: what is known of a partition when it is begun to be followed.
        keep: is given what was read.
        end: a partition is not followed any more, and nobody takes it over.
    """

    def __init__(
        self,
        settings: dict[str, Any],
        topic: str,
        begin: Callable[[int], Changelog],
        keep: Callable[[int, list[tuple[bytes, bytes | None]], Changelog], None],
        end: Callable[[int], None],
    ) -> None:
        self._settings = settings
        self._topic = topic
        self._begin, self._keep, self._end = begin, keep, end
        self._wanted: frozenset[int] = frozenset()
        self._followed: dict[int, Changelog] = {}
        self._changed = False
        self._ready: set[int] = set()
        self._task: asyncio.Task[None] | None = None

    def follow(self, partitions: Iterable[int]) -> None:
        """Follow these from now on, and no others."""
        self._wanted = frozenset(partitions)
        for partition in self._followed.keys() - self._wanted:
            self._drop(partition)
        self._changed = True
        if self._task is None and self._wanted:
            self._task = asyncio.create_task(self._run(), name=f"standby {self._topic}")

    def hand_over(self, partition: int) -> Changelog | None:
        """What is known of a partition, which is not followed any more; None = nothing."""
        self._wanted -= {partition}
        self._changed = True
        self._ready.discard(partition)
        return self._followed.pop(partition, None)

    async def stop(self) -> None:
        """Follow nothing any more."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        for partition in list(self._followed):
            self._drop(partition)

    def _drop(self, partition: int) -> None:
        del self._followed[partition]
        self._ready.discard(partition)
        self._end(partition)

    async def _run(self) -> None:
        while True:
            try:
                await self._read()
            except Exception:
                logger.exception("%s: standing by was interrupted; it begins anew", self._topic)
                for partition in list(self._followed):
                    self._drop(partition)
                await asyncio.sleep(_PAUSE_S)

    async def _read(self) -> None:
        consumer = AIOKafkaConsumer(**self._settings)
        await consumer.start()
        try:
            self._changed = True
            while True:
                if self._changed:
                    self._assign(consumer)
                if not self._followed:
                    await asyncio.sleep(_POLL_MS / 1000)
                    continue
                for tp, records in (await consumer.getmany(timeout_ms=_POLL_MS, max_records=_RECORDS)).items():
                    if tp.partition in self._followed:
                        self._take(tp.partition, records)
                        self._tell(tp.partition, consumer.highwater(tp))
                await asyncio.sleep(0)  # what is buffered comes without a pause
        finally:
            await bounded_close(consumer)

    def _tell(self, partition: int, end: int | None) -> None:
        changelog = self._followed.get(partition)
        if changelog is not None and partition not in self._ready and changelog.next_offset >= (end or 0):
            self._ready.add(partition)
            logger.info("%s, partition %d: standing by, read to %d", self._topic, partition, changelog.next_offset)

    def _assign(self, consumer: AIOKafkaConsumer) -> None:
        self._changed = False
        for partition in sorted(self._wanted - self._followed.keys()):
            self._followed[partition] = self._begin(partition)
        consumer.assign([TopicPartition(self._topic, partition) for partition in self._followed])
        for partition, changelog in self._followed.items():
            consumer.seek(TopicPartition(self._topic, partition), changelog.next_offset)

    def _take(self, partition: int, records: list[ConsumerRecord]) -> None:
        changelog = self._followed[partition]
        if records[0].offset < changelog.next_offset:
            # Kafka began again at the beginning: the topic was made anew.
            self._drop(partition)
            self._changed = True
            return
        taken = changelog.take_all(records)
        changelog.next_offset = records[-1].offset + 1
        self._keep(partition, taken, changelog)
