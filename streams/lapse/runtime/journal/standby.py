"""Standby: a worker follows the changelogs of shards at other workers, to take them over sooner (Q16)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, ConsumerRecord, TopicPartition

from lapse.core.shard.changelog import Changelog
from lapse.runtime.kafka.bounded_close import bounded_close

logger = logging.getLogger(__name__)

_PAUSE_S: Final = 5.0
"""Pause after a failure, s. Nobody waits for a standby."""

_POLL_MS: Final = 500
_RECORDS: Final = 2_000


class Standby:
    """Follows partitions of one changelog topic.

    It only reads ahead. A worker that takes a shard over reads on from here to the end. A partition whose reading
    failed here is read from its beginning.

    Args:
        settings: aiokafka's settings for reading changelogs.
        topic: the changelog topic.
        begin: returns what is known of a partition when following it begins.
        keep: called with the records that were read.
        end: called when a partition is no longer followed and is not taken over here.
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
        """Follow these partitions from now on, and no others."""
        self._wanted = frozenset(partitions)
        for partition in self._followed.keys() - self._wanted:
            self._drop(partition)
        self._changed = True
        if self._task is None and self._wanted:
            self._task = asyncio.create_task(self._run(), name=f"standby {self._topic}")

    def hand_over(self, partition: int) -> Changelog | None:
        """Stop following a partition, and return what was read of it; None if nothing was."""
        self._wanted -= {partition}
        self._changed = True
        self._ready.discard(partition)
        return self._followed.pop(partition, None)

    async def stop(self) -> None:
        """Stop following."""
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
                logger.exception("%s: standing by was interrupted; it begins again", self._topic)
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
                        self._note_ready(tp.partition, consumer.highwater(tp))
                await asyncio.sleep(0)  # buffered records come without a pause
        finally:
            await bounded_close(consumer)

    def _note_ready(self, partition: int, end: int | None) -> None:
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
            # The offset is lower than expected: the topic was created again.
            self._drop(partition)
            self._changed = True
            return
        taken = changelog.take_all(records)
        changelog.next_offset = records[-1].offset + 1
        self._keep(partition, taken, changelog)
