"""Reads records back from underlying topics if memory no longer holds them, and asks where logs begin and end."""

from __future__ import annotations

import asyncio
import logging
import time
from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Sequence
from operator import attrgetter
from typing import Any, Final

from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError
from confluent_kafka import KafkaException

from lapse.runtime.kafka.bounded_close import bounded_close
from lapse.runtime.kafka.fetched import joined_blocks
from lapse.runtime.kafka.metadata import NeededTopics, client_of, ensure_metadata, forget
from lapse.runtime.kafka.offsets_asked import Question, ask
from lapse.runtime.kafka.shared_question import SharedQuestion
from lapse.runtime.shard.log import AT_ONCE_RECORDS, READ_AHEAD_RECORDS, Record, SilentLog
from lapse.runtime.topics.topic_id import TopicIds
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 10.0
_SILENT_FOR_S: Final = 30.0
"""How long a broker may be silent while records are read back, s. A write waits about as long before it fails."""

_REQUEST_MS: Final = 5_000
"""How long a broker may be silent until the connection is given up and the leaders are looked up anew, ms. Another
broker leads the partitions of a frozen one after about ten seconds. aiokafka waits for 40 s unless told."""

_GONE_FOR_S: Final = 10.0
"""For how long a topic that was found deleted is not looked up again, s."""

_NO_PARTITION: Final = TopicPartition("", -1)
"""Key of the consumer that only asks for offsets."""

_OFFSETS_WITHIN_S: Final = 40.0
"""How long the leader of an existing partition may be silent when it is asked for offsets, s."""

_AGAIN_S: Final = 0.2


class LogReader:
    """Reads records back from underlying topics.

    Each partition has its own consumer, which reads sequentially and ahead.

    Args:
        bootstrap_servers: addresses of the brokers.
        security: aiokafka's settings for TLS and SASL.
        topic_ids: finds out which topics exist. Nothing can be read from a deleted topic.
        needed: topics that will be asked for, see `lapse.runtime.kafka.metadata.ensure_metadata`.
    """

    def __init__(
        self, bootstrap_servers: str, security: dict[str, Any], topic_ids: TopicIds, needed: NeededTopics | None = None
    ) -> None:
        self._needed = needed
        self._topic_ids = topic_ids
        self._gone_at: dict[str, float] = {}
        self._settings: dict[str, Any] = {
            "bootstrap_servers": bootstrap_servers,
            "enable_auto_commit": False,
            "auto_offset_reset": "earliest",
            "isolation_level": "read_committed",
            "max_partition_fetch_bytes": 4 << 20,
            "fetch_max_wait_ms": 50,
            "request_timeout_ms": _REQUEST_MS,
            **security,
        }
        self._consumers: dict[TopicPartition, AIOKafkaConsumer] = {}
        self._next: dict[TopicPartition, int] = {}
        self._locks: defaultdict[TopicPartition, asyncio.Lock] = defaultdict(asyncio.Lock)
        """One for each partition, so that a silent leader holds up what is read from it only (C52)."""
        self._missing: set[str] = set()
        self._ends = SharedQuestion(self._ask_ends)
        self._begins = SharedQuestion(self._ask_begins)

    async def read(self, topic: str, partition: int, first: int, last: int) -> Sequence[Record]:
        """Read records from `first` on, at least up to the first one at or behind `last`, or to the log's end.

        A silent broker is waited for as long as a write would wait.

        Returns:
            Records with ascending offsets from `first` on; empty if the log has none there, or the topic is deleted.

        Raises:
            SilentLog: no broker answers.
        """
        tp, began = TopicPartition(topic, partition), time.monotonic()
        async with self._locks[tp]:
            if tp not in self._consumers and await self._is_gone(topic):
                return []
            while True:
                try:
                    return await self._read(tp, first, last)
                except (KafkaTimeoutError, KafkaConnectionError, TimeoutError) as error:
                    if await self._is_gone(topic):
                        self._next.pop(tp, None)
                        if (consumer := self._consumers.pop(tp, None)) is not None:
                            await consumer.stop()
                        return []
                    if time.monotonic() - began > _SILENT_FOR_S:
                        silent = f"{topic}, partition {partition}: no leader answers for {_SILENT_FOR_S:.0f} s"
                        raise SilentLog(silent) from error

    async def _read(self, tp: TopicPartition, first: int, last: int) -> Sequence[Record]:
        consumer = await self._consumer(tp)
        consumer.resume(tp)
        try:
            return await self._read_on(consumer, tp, first, last)
        finally:
            # At the log's end nothing can be read ahead, and an active consumer would ask twenty times a second.
            if tp not in self._next or self._next[tp] >= (consumer.last_stable_offset(tp) or 0):
                consumer.pause(tp)

    async def _read_on(self, consumer: AIOKafkaConsumer, tp: TopicPartition, first: int, last: int) -> Sequence[Record]:
        log_end = consumer.last_stable_offset(tp)
        if not 0 <= first - self._next.get(tp, first + 1) <= READ_AHEAD_RECORDS:
            log_end = None
            async with asyncio.timeout(_PATIENCE_S):
                begin = (await consumer.beginning_offsets([tp]))[tp]
            first = max(first, begin)
            last = max(last, begin)
            consumer.seek(tp, first)
        if log_end is None or log_end <= last:
            async with asyncio.timeout(_PATIENCE_S):
                log_end = (await consumer.end_offsets([tp]))[tp]
        if first >= log_end:
            # A consumer that reads behind the end is reset to the log's start, again and again.
            self._next.pop(tp, None)
            return []
        end = min(log_end, last + 1)
        got_so_far: list[Sequence[Record]] = []
        waited = 0.0
        while True:
            got = await consumer.getmany(tp, timeout_ms=200, max_records=AT_ONCE_RECORDS)
            got_so_far += filter(None, (_from(first, records) for records in got.values()))
            self._next.pop(tp, None)  # without an answer, what was read is not returned, and must be read again
            async with asyncio.timeout(_PATIENCE_S):
                self._next[tp] = await consumer.position(tp)
            if self._next[tp] >= end:
                return joined_blocks(got_so_far)
            await asyncio.sleep(0)
            if not got:
                waited += 0.2
                if waited > _PATIENCE_S:
                    raise TimeoutError(
                        f"{tp.topic}:{tp.partition}: reading back from offset {first} made no progress "
                        f"for {_PATIENCE_S:.0f} s"
                    )

    async def _is_gone(self, topic: str) -> bool:
        """Return whether a topic is deleted.

        Ask three times, since a broker that has just started may not know all topics.

        If no broker answers, the topic counts as existing.
        """
        if time.monotonic() - self._gone_at.get(topic, -_GONE_FOR_S) < _GONE_FOR_S:
            return True
        for _ in range(3):
            try:
                there = await self._topic_ids.of([topic], once=True)
            except KafkaException as error:
                logger.debug("whether %s is there is not known: %s", topic, error)
                return False
            if there:
                return False
            await asyncio.sleep(1)
        self._gone_at[topic] = time.monotonic()
        return True

    async def one(self, topic: str, partition: int, offset: int) -> Record | None:
        """Read one record; return None if Kafka no longer has it."""
        found = await self.read(topic, partition, offset, offset)
        return found[0] if found and found[0].offset == offset else None

    async def ends(self, tps: Iterable[TP], instant_ms: int | None = None) -> dict[TP, int]:
        """Return where partitions end now, committed records only; or the offsets that belong to an instant.

        Args:
            tps: the partitions.
            instant_ms: return the first offset at or behind this instant, ms since the epoch; the end if there is none.

        Raises:
            SilentLog: no answer.
            KafkaTimeoutError: a topic is missing.
        """
        wanted = list(tps)
        ends = _all_of(wanted, await self.existing_ends(wanted))
        return ends if instant_ms is None else ends | await self._written_since(wanted, instant_ms)

    async def _written_since(self, tps: Iterable[TP], instant_ms: int) -> dict[TP, int]:
        """Return the first offset at or after an instant, ms since the epoch, of partitions that have one."""
        consumer = await self._asker()
        partitions = [TopicPartition(*tp) for tp in tps]
        found = await consumer.offsets_for_times(dict.fromkeys(partitions, instant_ms)) if partitions else {}
        return {TP(*tp): at.offset for tp, at in found.items() if at is not None}

    async def offset_at(self, tps: Iterable[TP], instant_ms: int) -> dict[TP, int]:
        """See `Log`."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                there = await self.existing_ends(tps)
                return there | await self._written_since(there, instant_ms)
        except (KafkaTimeoutError, KafkaConnectionError) as error:
            raise TimeoutError(str(error)) from error

    async def existing_ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Return where partitions end now, without those whose topics are missing.

        Raises:
            SilentLog: no answer.
        """
        return await self._offsets_of_existing(self._ends, tps)

    async def begins(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Return the first offset that Kafka still has of each partition.

        Raises:
            SilentLog: no answer.
            KafkaTimeoutError: a topic is missing.
        """
        wanted = list(tps)
        return _all_of(wanted, await self._offsets_of_existing(self._begins, wanted))

    async def _offsets_of_existing(
        self, offsets: SharedQuestion[TopicPartition, int], tps: Iterable[TP]
    ) -> dict[TP, int]:
        """Return offsets of all partitions whose topics exist; ask again while a partition has no leader."""
        wanted, began = [TopicPartition(*tp) for tp in tps], time.monotonic()
        found: dict[TopicPartition, int] = {}
        while True:
            found |= await offsets.of([tp for tp in wanted if tp not in found])
            silent = sorted({tp.topic for tp in wanted if tp not in found and tp.topic not in self._missing})
            if not silent:
                return {TP(*tp): offset for tp, offset in found.items()}
            if time.monotonic() - began > _OFFSETS_WITHIN_S:
                raise SilentLog(f"no leader of {', '.join(silent)} answers for {_OFFSETS_WITHIN_S:.0f} s")
            await asyncio.sleep(_AGAIN_S)

    async def _ask_ends(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ask(AIOKafkaConsumer.end_offsets, tps)

    async def _ask_begins(self, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        return await self._ask(AIOKafkaConsumer.beginning_offsets, tps)

    async def _ask(self, question: Question, tps: list[TopicPartition]) -> dict[TopicPartition, int]:
        """Return offsets of many partitions, without those that have no topic or no answering leader.

        One silent leader must not delay the others (C52).
        """
        consumer = await self._asker()
        await self._note_missing(self._missing)
        there = [tp for tp in tps if tp.topic not in self._missing]
        if not there:
            return {}
        await ensure_metadata(client_of(consumer), (tp.topic for tp in there), self._needed)
        found = await ask(consumer, question, there)
        await self._note_missing({tp.topic for tp in there if tp not in found})
        return found

    async def _note_missing(self, topics: set[str]) -> None:
        """Note which of these topics are missing now. If no broker answers, keep what was known."""
        if not topics:
            return
        try:
            there = (await self._topic_ids.of(topics, once=True)).keys()
        except KafkaException as error:
            logger.debug("which topics there are is not known: %s", error)
            return
        self._missing = (self._missing | topics) - there

    async def _asker(self) -> AIOKafkaConsumer:
        """Return the consumer that only asks for offsets."""
        async with self._locks[_NO_PARTITION]:
            return await self._consumer(_NO_PARTITION)

    async def _consumer(self, tp: TopicPartition) -> AIOKafkaConsumer:
        consumer = self._consumers.get(tp)
        if consumer is None:
            consumer = AIOKafkaConsumer(**self._settings)
            try:
                await consumer.start()
            except BaseException:
                await consumer.stop()
                raise
            if tp is not _NO_PARTITION:
                consumer.assign([tp])
            self._consumers[tp] = consumer
        return consumer

    async def release(self, topic: str, partition: int) -> None:
        """Disconnect from a partition."""
        tp = TopicPartition(topic, partition)
        async with self._locks[tp]:
            consumer = self._consumers.pop(tp, None)
            self._next.pop(tp, None)
            if consumer is not None:
                await bounded_close(consumer)

    def forget(self, topics: Iterable[str]) -> None:
        """Stop asking brokers for the metadata of these topics."""
        for consumer in self._consumers.values():
            forget(client_of(consumer), topics)

    async def stop(self) -> None:
        """Disconnect from all partitions."""
        await asyncio.gather(*(self.release(tp.topic, tp.partition) for tp in list(self._consumers)))


def _from(first: int, records: Sequence[Record]) -> Sequence[Record]:
    """Return the records from an offset on.

    To read a few unneeded records costs less than a seek, so the first ones may be cut off.
    """
    return records[bisect_left(records, first, key=attrgetter("offset")) :] if records[0].offset < first else records


def _all_of(asked: Iterable[TP], found: dict[TP, int]) -> dict[TP, int]:
    """Return `found` if it has all partitions.

    Raises:
        KafkaTimeoutError: the topic of a partition is missing.
    """
    missing = sorted({tp.topic for tp in asked if tp not in found})
    if missing:
        raise KafkaTimeoutError(f"no offsets: {', '.join(missing)} missing")
    return found
