"""Reads changelog partitions in bulk, from an offset to their end."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterable, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaTimeoutError, LeaderNotAvailableError

from lapse.core.shard.changelog import Changelog
from lapse.runtime.kafka.bounded_close import bounded_close
from lapse.runtime.kafka.metadata import NeededTopics, client_of, ensure_metadata, forget
from lapse.runtime.kafka.offsets_asked import ask, next_read
from lapse.runtime.kafka.shared_question import SharedQuestion

_AT_ONCE: Final = 8
"""How many changelog partitions are read at the same time."""

_SILENT_FOR_S: Final = 30.0
"""How long a broker may be silent while a changelog is read, s."""

_RECORDS: Final = 2_000
"""How many records are processed before other shards have a turn (C90)."""

_SEARCHED_RECORDS: Final = 100
"""How many records are looked at first from the end backwards."""


class ChangelogReader:
    """Reads changelog partitions from an offset to their end.

    The end need not be a readable record: reading also stops at a compacted tail, or at transaction markers.

    Args:
        bootstrap_servers: addresses of the brokers.
        security: aiokafka's settings for TLS and SASL.
        needed: topics that will be read, see `ensure_metadata`.

    Attributes:
        settings: aiokafka's settings for a consumer of changelogs.
    """

    def __init__(self, bootstrap_servers: str, security: dict[str, Any], needed: NeededTopics | None = None) -> None:
        self._needed = needed
        self.settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            # Workers use no transactions here. One that somebody else left open would hide the newest state.
            "isolation_level": "read_uncommitted",
            "max_partition_fetch_bytes": 8 << 20,
            "fetch_max_bytes": 64 << 20,
            "fetch_max_wait_ms": 20,
            **security,
        }
        self._asker: AIOKafkaConsumer | None = None
        self._asking = asyncio.Lock()
        self._idle: list[AIOKafkaConsumer] = []
        self._places = asyncio.Semaphore(_AT_ONCE)
        self._bounds = SharedQuestion(self._ask_bounds)
        self._ends = SharedQuestion(self._ask_ends)

    async def read(
        self,
        topic: str,
        partition: int,
        into: Changelog,
        keep: Callable[[list[tuple[bytes, bytes | None]]], None] | None = None,
    ) -> None:
        """Read from `into.next_offset` to the end.

        Args:
            topic: the changelog topic.
            partition: its partition.
            into: processes the records.
            keep: called with the records that are not void, in order, several times and once at the end.

        Raises:
            KafkaError: for example, no leader of the partition answers.
        """
        tp = TopicPartition(topic, partition)
        begin, end = await self._bounds_of(tp)
        if into.next_offset > end:
            # The topic was deleted and created again: what was kept of the old one is invalid.
            into.latest.clear()
            into.runtime.clear()
            into.void.clear()
            into.next_offset = into.epoch = into.contested = 0
        position = max(into.next_offset, begin)
        if position < end:
            async with contextlib.aclosing(self._lots(tp, position, end)) as lots:
                async for lot, at in lots:
                    taken: list[tuple[bytes, bytes | None]] = []
                    for records in lot:
                        taken += into.take_all(records)
                    if at >= 0:
                        into.next_offset = position = at
                    await asyncio.sleep(0)
                    if keep is not None:
                        keep(taken)
        into.next_offset = max(position, end)
        if keep is not None:
            keep([])

    async def _bounds_of(self, tp: TopicPartition) -> tuple[int, int]:
        bounds = (await self._bounds.of([tp])).get(tp)
        if bounds is None:
            raise LeaderNotAvailableError(
                f"{tp.topic}, partition {tp.partition}: no leader says where it begins and ends"
            )
        return bounds

    async def _lots(
        self, tp: TopicPartition, position: int, end: int
    ) -> AsyncGenerator[tuple[list[Sequence[Any]], int], None]:
        """Yield the records of a partition up to its end, and where the next ones begin; -1 if that is not known."""
        async with self._borrowed() as consumer:
            if self._needed is not None:
                self._needed.copy_for(client_of(consumer), tp.topic)  # otherwise each shard would ask once more
            consumer.assign([tp])
            consumer.seek(tp, position)
            heard = time.monotonic()
            while position < end:
                if time.monotonic() - heard > _SILENT_FOR_S:
                    raise KafkaTimeoutError(f"{tp.topic}, partition {tp.partition}: nothing comes from {position} on")
                got = await consumer.getmany(timeout_ms=200, max_records=_RECORDS)
                if (at := next_read(consumer, tp)) > position:
                    heard = time.monotonic()
                position = at if at >= 0 else position
                yield list(got.values()), at

    async def search_back(self, topic: str, partition: int, number_of: Callable[[Any], int]) -> int:
        """Return the greatest number among the last records of a partition that have one; 0 if none has.

        Markers, and records of open transactions, are passed.

        Args:
            topic: the topic.
            partition: its partition.
            number_of: returns the number of a record; 0 if it has none.

        Raises:
            KafkaError: for example, no leader of the partition answers.
        """
        tp = TopicPartition(topic, partition)
        begin, behind = await self._bounds_of(tp)
        count, found = _SEARCHED_RECORDS, 0
        while behind > begin and not found:
            first = max(begin, behind - count)
            async with contextlib.aclosing(self._lots(tp, first, behind)) as lots:
                async for lot, _ in lots:
                    found = max([found, *(number_of(record) for records in lot for record in records)])
            behind, count = first, min(2 * count, _RECORDS)
        return found

    async def end(self, topic: str, partition: int) -> int | None:
        """Return where a partition ends now, records of open transactions included; None if no leader answers."""
        tp = TopicPartition(topic, partition)
        return (await self._ends.of([tp])).get(tp)

    def forget(self, topics: Iterable[str]) -> None:
        """Stop asking brokers for the metadata of these topics."""
        for consumer in (*self._idle, *([self._asker] if self._asker is not None else [])):
            forget(client_of(consumer), topics)

    async def rest(self) -> None:
        """Disconnect until something is read again.

        A request that is under way is waited for. Without its connection, aiokafka would repeat it for 40 s.
        """
        idle, self._idle = self._idle, []
        async with self._asking:
            if self._asker is not None:
                idle.append(self._asker)
                self._asker = None
        await asyncio.gather(*(bounded_close(consumer) for consumer in idle))

    @contextlib.asynccontextmanager
    async def _borrowed(self) -> AsyncIterator[AIOKafkaConsumer]:
        """Lend a consumer for one partition. To connect takes longer than to read a short changelog."""
        async with self._places:
            if self._idle:
                consumer = self._idle.pop()
            else:
                consumer = AIOKafkaConsumer(**self.settings)
                await consumer.start()
            try:
                yield consumer
                # Do not `unsubscribe`: aiokafka would ask the brokers something at each call.
                consumer.pause(*consumer.assignment())
            except BaseException:
                await bounded_close(consumer)
                raise
            self._idle.append(consumer)

    async def _ask_bounds(self, tps: list[TopicPartition]) -> dict[TopicPartition, tuple[int, int]]:
        """Return where partitions begin and end, without those whose leaders do not answer."""
        async with self._asking:
            asker = await self._connected(tps)
            ends = await ask(asker, AIOKafkaConsumer.end_offsets, tps)
            begins = await ask(asker, AIOKafkaConsumer.beginning_offsets, list(ends)) if ends else {}
        return {tp: (begins[tp], ends[tp]) for tp in begins}

    async def _ask_ends(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return where partitions end, without those whose leaders do not answer."""
        async with self._asking:
            return await ask(await self._connected(tps), AIOKafkaConsumer.end_offsets, tps)

    async def _connected(self, tps: Iterable[TopicPartition]) -> AIOKafkaConsumer:
        """Return the consumer that asks for offsets, with the metadata of these partitions."""
        if self._asker is None:
            asker = AIOKafkaConsumer(**self.settings)
            await asker.start()
            self._asker = asker
        await ensure_metadata(client_of(self._asker), (tp.topic for tp in tps), self._needed)
        return self._asker
