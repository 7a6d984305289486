"""Payloads: kept in memory as they were consumed within a window, read back from the log beyond it.

The state of a shard never holds payloads.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from bisect import bisect_left, bisect_right
from collections.abc import Awaitable, Callable, Collection, Iterable, Sequence
from typing import Any, Final, TypeAlias

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaTimeoutError
from confluent_kafka import KafkaException
from faust.types import TP

from lapse.runtime.kafka.bounded_close import bounded_close
from lapse.runtime.kafka.metadata import know
from lapse.runtime.kafka.together import Together
from lapse.runtime.topics.topic_id import TopicIds

logger = logging.getLogger(__name__)

_RECORD_OVERHEAD_BYTES: Final = 300
_READ_AHEAD_RECORDS: Final = 5_000
_PATIENCE_S: Final = 10.0
_GONE_FOR_S: Final = 10.0
"""So long a topic that was deleted is not asked for again."""

_NO_PARTITION: Final = TopicPartition("", -1)
"""Stands for the connection that only asks for offsets."""

_ALL_AT_ONCE_S: Final = 2.0
"""Longer than brokers take for the offsets of a thousand partitions that are there."""

_Question: TypeAlias = Callable[[AIOKafkaConsumer, list[TopicPartition]], Awaitable[dict[TopicPartition, int]]]
Record: TypeAlias = Any
"""aiokafka's `ConsumerRecord`, which has no types."""


class Chunk:
    """Consecutive records of one source, as they were consumed."""

    __slots__ = ("first", "left", "records", "size", "used_at")

    def __init__(self, records: Sequence[Record], size: int, used_at: int) -> None:
        self.first: int = records[0].offset
        self.records = records
        self.left = len(records)
        self.size = size
        self.used_at = used_at

    def find(self, offset: int) -> Record | None:
        """The record at an offset; None if the chunk does not hold it."""
        at = offset - self.first
        if 0 <= at < len(self.records) and self.records[at].offset == offset:
            return self.records[at]
        at = bisect_right(self.records, offset, key=_offset_of) - 1
        if at >= 0 and self.records[at].offset == offset:
            return self.records[at]
        return None

    def run(self, first: int, stop: int) -> tuple[list[Record | None], int]:
        """The records from an offset on, up to `stop` or the chunk's end, and how many those are.

        Where it does not hold one, None stands for it.
        """
        behind = self.records[-1].offset + 1
        stop = min(stop, behind)
        if first >= stop:
            return [], 0
        if len(self.records) == behind - self.first:
            return list(self.records[first - self.first : stop - self.first]), stop - first
        some = [self.find(offset) for offset in range(first, stop)]
        return some, sum(record is not None for record in some)


class SourceWindow:
    """The payloads of one source that are in memory."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._chunks: list[Chunk] = []
        self._size = 0
        self.handed = 0
        """How many records were handed out, those that were read back for it included."""

    def keep(self, records: Sequence[Record]) -> None:
        """Keep records if there is room; they are newer than all that were consumed, if not than all that were read."""
        if self._chunks and records and self._chunks[-1].records[-1].offset >= records[0].offset:
            records = records[bisect_right(records, self._chunks[-1].records[-1].offset, key=_offset_of) :]
        if self._size >= self._limit_bytes:
            self._forget_unused()
        if not records or self._size >= self._limit_bytes:
            return
        size = _size_of(records)
        self._chunks.append(Chunk(records, size, self.handed))
        self._size += size

    def insert(self, records: Sequence[Record]) -> None:
        """Keep records that were read back, those that are not here: what is here twice is handed out once."""
        while records:
            at = bisect_right(self._chunks, records[0].offset, key=_first_of)
            if at:
                records = records[bisect_right(records, self._chunks[at - 1].records[-1].offset, key=_offset_of) :]
            stop = len(records)
            if at < len(self._chunks):
                stop = bisect_left(records, self._chunks[at].first, key=_offset_of)
            some, records = records[:stop], records[stop:]
            if some:
                size = _size_of(some)
                self._chunks.insert(at, Chunk(some, size, self.handed))
                self._size += size
        if self._size > self._limit_bytes:
            self._forget_unused()
        while self._size > 2 * self._limit_bytes and len(self._chunks) > 1:
            # The newest go first: what is delivered next is older.
            self._size -= self._chunks.pop().size

    def _forget_unused(self) -> None:
        """Drop what nobody asked for while so much else was handed out: it expired, was purged, or had been read twice.

        Nothing says so when it happens. If somebody asks after all, it is read back.
        """
        most = self.handed - 2 * sum(len(chunk.records) for chunk in self._chunks)
        self._chunks = [chunk for chunk in self._chunks if chunk.used_at >= most]
        self._size = sum(chunk.size for chunk in self._chunks)

    def get(self, offset: int, used: bool = True) -> Record | None:
        """The record at an offset; with `used` it counts as handed out, and its chunk goes when all were."""
        at = bisect_right(self._chunks, offset, key=_first_of) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        record = chunk.find(offset)
        if record is not None and used:
            chunk.left -= 1
            chunk.used_at = self.handed
            if chunk.left <= 0:
                del self._chunks[at]
                self._size -= chunk.size
        return record

    def run(self, first: int, count: int) -> list[Record | None]:
        """The records of consecutive offsets, None for those that are not here; the others count as handed out."""
        found: list[Record | None] = []
        stop = first + count
        at = max(0, bisect_right(self._chunks, first, key=_first_of) - 1)
        while first < stop and at < len(self._chunks):
            chunk = self._chunks[at]
            if chunk.first > first:
                found += [None] * (min(chunk.first, stop) - first)
                first = min(chunk.first, stop)
            some, held = chunk.run(first, stop)
            found += some
            first += len(some)
            if held:
                chunk.left -= held
                chunk.used_at = self.handed
            if chunk.left <= 0:
                del self._chunks[at]
                self._size -= chunk.size
            else:
                at += 1
        found += [None] * (stop - first)
        return found


class PayloadWindow:
    """The payloads of one shard: a window in memory, and the log behind it.

    Args:
        reader: reads back what is not in the window.
        limit_bytes: how much is kept per source.
        aside: reads single records without moving `reader`; the same one by default.
    """

    def __init__(self, reader: LogReader, limit_bytes: int, aside: LogReader | None = None) -> None:
        self._reader = reader
        self._aside = reader if aside is None else aside
        self._limit_bytes = limit_bytes
        self._windows: dict[tuple[str, int], SourceWindow] = {}
        self.gone: Collection[str] = ()
        """Topics whose records must not be looked for: what bears their names now are others (C42)."""

    def keep(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Keep records that were just consumed, as far as there is room."""
        window = self._windows.get((topic, partition))
        if window is None:
            window = self._windows[topic, partition] = SourceWindow(self._limit_bytes)
        window.keep(records)

    async def ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Where logs end now; those of missing topics are left out."""
        return await self._reader.ends_there(tps)

    def passed_by(self, topic: str, partition: int, offsets: Sequence[int]) -> None:
        """Note that messages were handed out without their payloads."""
        window = self._windows.get((topic, partition))
        if window is None:
            return
        if _are_consecutive(offsets):
            window.run(offsets[0], len(offsets))
        else:
            for offset in offsets:
                window.get(offset)

    async def one(self, topic: str, partition: int, offset: int) -> Record | None:
        """One record; None where Kafka no longer has it. Moves nothing else."""
        window = self._windows.get((topic, partition))
        record = None if window is None else window.get(offset, used=False)
        if record is None and topic not in self.gone:
            record = await self._aside.one(topic, partition, offset)
        return record

    async def timestamp_ms(self, topic: str, partition: int, offset: int) -> int | None:
        """Timestamp of one record, ms since the epoch; None where Kafka no longer has it. Moves nothing else."""
        record = await self.one(topic, partition, offset)
        return None if record is None else int(record.timestamp)

    async def get(self, topic: str, partition: int, offsets: Sequence[int], used: bool = True) -> list[Record | None]:
        """The records at ascending offsets; None where Kafka no longer has one (C40).

        With `used` they count as handed out, and leave memory when all of their chunk were. Else they are only looked
        at: what is read back for that stays within the window, so that the next look does not read it again.
        """
        if topic in self.gone:
            return [None] * len(offsets)
        window = self._windows.get((topic, partition))
        if window is None:
            window = self._windows[topic, partition] = SourceWindow(self._limit_bytes)
        window.handed += len(offsets) if used else 0
        consecutive = _are_consecutive(offsets)
        found: list[Record | None]
        if used and consecutive:
            found = window.run(offsets[0], len(offsets))
        else:
            found = [window.get(offset, used) for offset in offsets]
        at = 0
        while not all(found[at:]):
            at = next(place for place in range(at, len(found)) if found[place] is None)
            last = _close_to(offsets, at)
            records = await self._reader.read(topic, partition, offsets[at], offsets[last])
            if not records:
                at = last + 1  # what is far behind may be there all the same
                continue
            stop = bisect_right(offsets, records[-1].offset)
            if consecutive and len(records) == records[-1].offset + 1 - offsets[at]:
                found[at:stop] = records[: stop - at]
                rest = records[stop - at :]
            else:
                by_offset = {record.offset: record for record in records}
                for place in range(at, stop):
                    if found[place] is None:
                        found[place] = by_offset.get(offsets[place])
                rest = [record for record in records if record.offset > offsets[-1]]
            kept = rest if used else records
            if kept:
                window.insert(kept)
            at = stop
        return found


def _close_to(offsets: Sequence[int], at: int) -> int:
    """The last of some ascending offsets that is read at once with another: what is far from it is looked for anew."""
    if offsets[-1] - offsets[at] <= _READ_AHEAD_RECORDS:
        return len(offsets) - 1
    while at + 1 < len(offsets) and offsets[at + 1] - offsets[at] <= _READ_AHEAD_RECORDS:
        at += 1
    return at


def _are_consecutive(offsets: Sequence[int]) -> bool:
    return offsets[-1] - offsets[0] == len(offsets) - 1


class LogReader:
    """Reads records back from underlying topics, one consumer per partition, sequentially and ahead.

    Args:
        bootstrap_servers: the brokers.
        security: aiokafka's settings for TLS and SASL.
        topic_ids: tells which topics there are; of one that was deleted nothing can be read.
        soon: topics that will be asked for; see `know`.
    """

    def __init__(
        self, bootstrap_servers: str, security: dict[str, Any], topic_ids: TopicIds, soon: Collection[str] = ()
    ) -> None:
        self._soon = soon
        self._topic_ids = topic_ids
        self._gone_at: dict[str, float] = {}
        self._settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "max_partition_fetch_bytes": 4 << 20,
            "fetch_max_wait_ms": 50,
            **security,
        }
        self._consumers: dict[TopicPartition, AIOKafkaConsumer] = {}
        self._next: dict[TopicPartition, int] = {}
        self._lock = asyncio.Lock()
        self._missing: set[str] = set()
        self._ends = Together(self._ask_ends)
        self._begins = Together(self._ask_begins)

    async def read(self, topic: str, partition: int, first: int, last: int) -> list[Record]:
        """Read from `first` on, at least until a record at or behind `last` was seen or the log has no more.

        Returns:
            Records with offsets from `first` on, ascending; empty if the log has none left there, or the topic is gone.
        """
        tp = TopicPartition(topic, partition)
        async with self._lock:
            if tp not in self._consumers and await self._is_gone(topic):
                return []
            try:
                return await self._read(tp, first, last)
            except (KafkaTimeoutError, TimeoutError):
                if not await self._is_gone(topic):
                    raise
                self._next.pop(tp, None)
                await self._consumers.pop(tp).stop()
                return []

    async def _read(self, tp: TopicPartition, first: int, last: int) -> list[Record]:
        consumer = await self._consumer(tp)
        log_end = consumer.last_stable_offset(tp)
        if self._next.get(tp) != first:
            log_end = None
            begin = (await asyncio.wait_for(consumer.beginning_offsets([tp]), _PATIENCE_S))[tp]
            first = max(first, begin)
            last = max(last, begin)
            consumer.seek(tp, first)
        if log_end is None or log_end <= last:
            log_end = (await asyncio.wait_for(consumer.end_offsets([tp]), _PATIENCE_S))[tp]
        if first >= log_end:
            # Reading there would begin again at the log's start, over and over.
            self._next.pop(tp, None)
            return []
        end = min(log_end, last + 1)
        records: list[Record] = []
        waited = 0.0
        while True:
            got = await consumer.getmany(tp, timeout_ms=200, max_records=_READ_AHEAD_RECORDS)
            records.extend(got.get(tp, ()))
            self._next[tp] = await consumer.position(tp)
            if self._next[tp] >= end:
                return records
            if not got:
                waited += 0.2
                if waited > _PATIENCE_S:
                    raise TimeoutError(
                        f"{tp.topic}:{tp.partition}: reading back from offset {first} made no progress "
                        f"for {_PATIENCE_S:.0f} s"
                    )

    async def _is_gone(self, topic: str) -> bool:
        """Whether a topic was deleted; asked several times, for a broker that has just started may not know all."""
        if time.monotonic() - self._gone_at.get(topic, -_GONE_FOR_S) < _GONE_FOR_S:
            return True
        for _ in range(3):
            if await self._topic_ids.of([topic]):
                return False
            await asyncio.sleep(1)
        self._gone_at[topic] = time.monotonic()
        return True

    async def one(self, topic: str, partition: int, offset: int) -> Record | None:
        """Read one record; None where Kafka no longer has it."""
        found = await self.read(topic, partition, offset, offset)
        return found[0] if found and found[0].offset == offset else None

    async def ends(self, tps: Iterable[TP], instant_ms: int | None = None) -> dict[TP, int]:
        """Where partitions end now, committed records only; or where they stood at an instant, ms since the epoch.

        Raises:
            KafkaTimeoutError: no answer, or a topic is missing.
        """
        asked = list(tps)
        ends = _all_of(asked, await self.ends_there(asked))
        if instant_ms is not None:
            async with self._lock:
                consumer = await self._consumer(_NO_PARTITION)
                places = [TopicPartition(*tp) for tp in asked]
                found = await consumer.offsets_for_times(dict.fromkeys(places, instant_ms))
                ends.update({TP(*tp): at.offset for tp, at in found.items() if at is not None})
        return ends

    async def ends_there(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Where partitions end now, those left out whose topics are missing."""
        ends = await self._ends.of([TopicPartition(*tp) for tp in tps])
        return {TP(*tp): offset for tp, offset in ends.items()}

    async def begins(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Where partitions begin now: Kafka has removed what stood before.

        Raises:
            KafkaTimeoutError: no answer, or a topic is missing.
        """
        asked = list(tps)
        begins = await self._begins.of([TopicPartition(*tp) for tp in asked])
        return _all_of(asked, {TP(*tp): offset for tp, offset in begins.items()})

    async def _ask_ends(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ask(AIOKafkaConsumer.end_offsets, tps)

    async def _ask_begins(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ask(AIOKafkaConsumer.beginning_offsets, tps)

    async def _ask(self, question: _Question, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Ask for all at once; partitions of missing topics are left out, and hold nobody else up (C52)."""
        async with self._lock:
            consumer = await self._consumer(_NO_PARTITION)
        await self._note_missing(self._missing)
        there = [tp for tp in tps if tp.topic not in self._missing]
        if not there:
            return {}
        await know(consumer._client, (tp.topic for tp in there), self._soon)
        with contextlib.suppress(KafkaTimeoutError, TimeoutError):
            async with asyncio.timeout(_ALL_AT_ONCE_S):
                return dict(await question(consumer, there))
        await self._note_missing({tp.topic for tp in there})
        there = [tp for tp in there if tp.topic not in self._missing]
        return dict(await question(consumer, there)) if there else {}

    async def _note_missing(self, topics: set[str]) -> None:
        """Note which of these topics are missing now; a broker that does not answer leaves it as it was."""
        if not topics:
            return
        try:
            there = (await self._topic_ids.of(topics)).keys()
        except KafkaException as error:
            logger.debug("which topics there are is not known: %s", error)
            return
        self._missing = (self._missing | topics) - there

    async def _consumer(self, tp: TopicPartition) -> AIOKafkaConsumer:
        consumer = self._consumers.get(tp)
        if consumer is None:
            consumer = AIOKafkaConsumer(**self._settings)
            await consumer.start()
            if tp is not _NO_PARTITION:
                consumer.assign([tp])
            self._consumers[tp] = consumer
        return consumer

    async def release(self, topic: str, partition: int) -> None:
        """Disconnect from a partition."""
        async with self._lock:
            consumer = self._consumers.pop(TopicPartition(topic, partition), None)
            self._next.pop(TopicPartition(topic, partition), None)
            if consumer is not None:
                await bounded_close(consumer)

    async def stop(self) -> None:
        """Disconnect."""
        for tp in list(self._consumers):
            await self.release(tp.topic, tp.partition)


def _all_of(asked: Iterable[TP], found: dict[TP, int]) -> dict[TP, int]:
    """What was found, if it is all that was asked."""
    missing = sorted({tp.topic for tp in asked if tp not in found})
    if missing:
        raise KafkaTimeoutError(f"no offsets: {', '.join(missing)} missing")
    return found


def _size_of(records: Sequence[Record]) -> int:
    """Bytes that records take in memory, about: measured on the first of them."""
    some = records[:16]
    mean = sum(len(record.value or b"") + len(record.key or b"") for record in some) / len(some)
    return int(len(records) * (mean + _RECORD_OVERHEAD_BYTES))


def _offset_of(record: Record) -> int:
    return int(record.offset)


def _first_of(chunk: Chunk) -> int:
    return chunk.first
