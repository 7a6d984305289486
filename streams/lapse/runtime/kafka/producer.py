"""Writes to Kafka in RecordBatches: the atomic ones of journals, and the outputs."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from typing import Any, Final, NamedTuple

from aiokafka import AIOKafkaProducer, errors
from aiokafka.structs import RecordMetadata, TopicPartition

from lapse.runtime.kafka import connection  # noqa: F401  # every client of the process connects as it says
from lapse.runtime.kafka.metadata import NeededTopics, ensure_metadata, forget
from lapse.runtime.kafka.output import MAX_BATCH_BYTES, Headers, Output, Packed
from lapse.runtime.kafka.packed_record import PiecedRecord
from lapse.runtime.kafka.packed_run import joined
from lapse.runtime.kafka.record_batch import Leased, PackedBatch, RecordBatch, Row, wall_ms
from lapse.runtime.kafka.shared_question import SharedQuestion
from lapse.runtime.kafka.swift_sender import SwiftSender
from lapse.runtime.kafka.timely_accumulator import TimelyAccumulator

MAX_FOREIGN_BATCH_BYTES: Final = 900_000
"""The largest RecordBatch for topics whose limit lapse does not know: just below Kafka's default, bytes."""

_SPARED_BYTES: Final = 64 << 10
"""A batch with room for fewer bytes takes no further record. So only a large record ever exceeds the limit."""

_TRIES: Final = 100
_PAUSE_S: Final = 0.1
"""How often, and with which pause, s, to ask a broker for added partitions, of which it may learn late."""


class BatchTooLarge(ValueError):
    """Records that must be in one RecordBatch and do not fit into one."""


class _Lot(NamedTuple):
    """Records that can share RecordBatches: rows, or parts with packed records. One of the two is empty.

    Attributes:
        leased: whether the rows are deliveries under a lease; with parts, one value for all of them.
    """

    rows: list[Row]
    parts: list[Sequence[bytes | PiecedRecord]]
    leased: list[bool]

    def takes(self, packed: bool, leased: bool) -> bool:
        return bool(self.parts) == packed and (not packed or self.leased[0] == leased)

    def batches(self, topic: str, stamp_ms: int, until_s: float) -> Iterator[RecordBatch | PackedBatch]:
        done = 0
        while done < len(self.rows):
            first = done
            batch, done = filled(self.rows, first, len(self.rows), stamp_ms=stamp_ms)
            if any(self.leased[first:done]):
                pairs = zip(self.rows[first:done], self.leased[first:done], strict=True)
                batch.leased = Leased(until_s, [None if leased else row for row, leased in pairs], topic, batch)
            yield batch
        records, done = joined(self.parts), 0
        while done < len(records):
            packed = PackedBatch(stamp_ms)
            done = packed.add_packed(records, done, len(records), MAX_FOREIGN_BATCH_BYTES)
            if self.leased[0]:
                packed.leased = Leased(until_s, None, topic, packed)
            yield packed


class BatchProducer:
    """An idempotent producer whose RecordBatches lapse fills itself.

    Args:
        bootstrap_servers: addresses of the brokers.
        security: aiokafka's settings for TLS and SASL.
        stamp_ms: returns the timestamp of records, ms since the epoch, which counts on topics with `CreateTime`.
        needed: topics that will be written, see `ensure_metadata`.
    """

    def __init__(
        self,
        bootstrap_servers: str,
        security: dict[str, Any],
        stamp_ms: Callable[[], int] = wall_ms,
        needed: NeededTopics | None = None,
    ) -> None:
        self._needed = needed
        self.stamp_ms = stamp_ms
        self._bootstrap_servers = bootstrap_servers
        self._security = security
        self._producer: AIOKafkaProducer | None = None
        self._metadata = SharedQuestion(self._learn)

    async def start(self) -> None:
        """Connect."""
        self._producer = AIOKafkaProducer(
            bootstrap_servers=self._bootstrap_servers,
            enable_idempotence=True,
            acks="all",
            max_batch_size=MAX_BATCH_BYTES,
            max_request_size=2 * MAX_BATCH_BYTES,
            linger_ms=0,
            **self._security,
        )
        self._producer._sender.__class__ = SwiftSender
        self._producer._message_accumulator.__class__ = TimelyAccumulator
        await self._producer.start()

    async def stop(self) -> None:
        """Flush and disconnect."""
        if self._producer is not None:
            await self._producer.stop()

    @property
    def producer(self) -> AIOKafkaProducer:
        """The connected producer.

        Raises:
            RuntimeError: `start` was not called.
        """
        if self._producer is None:
            raise RuntimeError("the producer is not started")
        return self._producer

    def forget(self, topics: Iterable[str]) -> None:
        """Stop asking brokers for these topics; see `lapse.runtime.kafka.metadata.forget`."""
        forget(self.producer.client, topics)

    async def send_atomically(
        self, topic: str, partition: int, records: Iterable[tuple[bytes, bytes | None]], headers: Headers
    ) -> tuple[asyncio.Future[RecordMetadata], int]:
        """Send records as one RecordBatch: all of them become readable, or none.

        Returns:
            A future that is done once Kafka has them, and their number of bytes.

        Raises:
            BatchTooLarge: they do not fit.
        """
        batch = RecordBatch(self.stamp_ms())
        if not batch.add_items(records, headers):
            raise BatchTooLarge(f"{topic}, partition {partition}: more than {MAX_BATCH_BYTES} bytes in one step")
        await self._know([topic])
        size: int = batch.size()
        return await self.producer.send_batch(batch, topic, partition=partition), size

    async def write_in_batches(
        self, topic: str, partition: int, records: Iterable[tuple[bytes, bytes | None]], headers: Headers
    ) -> None:
        """Write records in order, in as many RecordBatches as they need, and wait until Kafka has them.

        Each batch is sent once Kafka has the one before. If one is refused, none behind it is written: it could remove
        the keys that the refused one should replace.
        """
        rows: list[Row] = [(key, value, headers) for key, value in records]
        await self._know([topic])
        done = 0
        while done < len(rows):
            batch, done = filled(rows, done, len(rows), stamp_ms=self.stamp_ms())
            await (await self.producer.send_batch(batch, topic, partition=partition))

    async def send(
        self,
        outputs: Iterable[Output | Packed],
        leased: Collection[int] = (),
        until_s: float = math.inf,
        under_lease: list[Leased] | None = None,
    ) -> list[asyncio.Future[Any]]:
        """Send records, packed by partition, in order within each.

        Args:
            outputs: the records.
            leased: indexes of those that are deliveries under a lease.
            until_s: the last instant at which these may be sent, on the monotonic clock, s (L10).
            under_lease: gets what each batch has under a lease, so that the caller knows what was not sent.

        Returns:
            Futures that are done once Kafka has the records. The result is None if nothing was left of
            a batch, else `RecordMetadata`.
        """
        by_partition: dict[tuple[str, int], list[_Lot]] = {}
        for at, output in enumerate(outputs):
            lots = by_partition.setdefault((output.topic, output.partition), [])
            packed, is_leased = isinstance(output, Packed), at in leased
            if not lots or not lots[-1].takes(packed, is_leased):
                lots.append(_Lot([], [], []))
            if isinstance(output, Packed):
                lots[-1].parts.append(output.records)
            else:
                lots[-1].rows.append((output.key, output.value, output.headers))
            lots[-1].leased.append(is_leased)
        await self._know({topic for topic, _ in by_partition})
        stamp_ms = self.stamp_ms()
        sent: list[asyncio.Future[Any]] = []
        for (topic, partition), lots in by_partition.items():
            for batch in (batch for lot in lots for batch in lot.batches(topic, stamp_ms, until_s)):
                if under_lease is not None and batch.leased is not None:
                    under_lease.append(batch.leased)
                sent.append(await self.producer.send_batch(batch, topic, partition=partition))
        return sent

    async def _know(self, topics: Iterable[str]) -> None:
        cluster = self.producer.client.cluster
        unknown = [topic for topic in topics if cluster.partitions_for_topic(topic) is None]
        if unknown:
            await self._metadata.of(unknown)

    async def _learn(self, topics: list[str]) -> dict[str, bool]:
        await ensure_metadata(self.producer.client, topics, self._needed)
        return {}

    async def learn_size(self, topics: Iterable[str], partitions: int) -> None:
        """Wait until the client knows added partitions of topics. aiokafka refuses records for unknown ones."""
        client, names = self.producer.client, list(topics)
        for _ in range(_TRIES):
            known = (client.cluster.partitions_for_topic(name) for name in names)
            if not any(one is not None and len(one) < partitions for one in known):
                return
            await client.force_metadata_update()
            await asyncio.sleep(_PAUSE_S)

    def give_up(self, topic: str, partition: int, why: errors.KafkaError) -> None:
        """Fail the unsent batches of a partition, because its topic is gone.

        A new topic with the name is another one.
        """
        accumulator = self.producer._message_accumulator
        for batch in accumulator._batches.pop(TopicPartition(topic, partition), ()):
            accumulator._pending_batches.add(batch)  # its future's callback removes it from there
            batch.failure(why)
            batch._drain_waiter.exception()  # nobody waits for it, which asyncio would log as an error

    async def send_one(self, topic: str, partition: int, key: bytes | None, value: bytes) -> RecordMetadata:
        """Send one record, and wait until Kafka has it; the result has the broker's timestamp."""
        return await self.producer.send_and_wait(
            topic, value, key=key, partition=partition, timestamp_ms=self.stamp_ms()
        )


def filled(
    rows: list[Row],
    first: int,
    stop: int,
    most_bytes: int = MAX_FOREIGN_BATCH_BYTES,
    stamp_ms: int | None = None,
) -> tuple[RecordBatch, int]:
    """Return a batch of rows from `first` on, and the index behind its last row.

    The first record of a batch may have any size. If it is too large for the topic, the broker refuses it.
    """
    batch = RecordBatch(stamp_ms)
    done = batch.add_rows(rows, first, stop, most_bytes - min(_SPARED_BYTES, most_bytes // 8))
    if batch.size() > most_bytes and done > first + 1:
        return filled(rows, first, done - 1, most_bytes, stamp_ms)
    return batch, done
