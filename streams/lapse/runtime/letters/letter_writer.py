"""Writes dead letters. A letter that the broker refuses is returned to the caller, and the others are written (C27).

Letters of one partition are written in order, one RecordBatch at a time. So a refused batch can be divided until the
refused letters are alone, and no letter overtakes another. An error that is not a refusal (no broker, fenced, unknown)
is raised. It ends the process like any failed write.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from typing import Final, NamedTuple

from aiokafka import errors
from aiokafka.structs import RecordMetadata

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.packed_record import PiecedRecord, packed, packed_headers
from lapse.runtime.kafka.packed_run import joined
from lapse.runtime.kafka.producer import MAX_FOREIGN_BATCH_BYTES, BatchProducer
from lapse.runtime.kafka.record_batch import PackedBatch
from lapse.runtime.kafka.refusals import REFUSALS
from lapse.runtime.letters.refusal import Refusal

logger = logging.getLogger(__name__)

MAX_LETTER_BYTES: Final = 100_000_000
"""A letter of more bytes would not fit into any request that Kafka accepts by default; the broker would hang up."""

_LEAST_BATCH_BYTES: Final = 16 << 10
_LOOKED_S: Final = 2.0
"""How long to wait for an answer before checking that the topic still exists, s."""

_GIVEN_UP_S: Final = 0.05
_AT_ONCE: Final = 256
"""How many letters are packed before others have a turn."""

_OF_TOPIC: Final = (
    errors.TopicAuthorizationFailedError,
    errors.InvalidTopicError,
    errors.UnknownTopicOrPartitionError,
)


class _Lot(NamedTuple):
    """Packed letters of one partition."""

    topic: str
    partition: int
    rows: Sequence[bytes | PiecedRecord]


class LetterWriter:
    """Writes the letters of a worker.

    Args:
        producer: the connection.
    """

    def __init__(self, producer: BatchProducer) -> None:
        self._producer = producer
        self._batch_bytes: dict[str, int] = {}

    async def write(self, letters: Sequence[Output | Packed]) -> dict[int, Refusal]:
        """Write letters, and wait until Kafka has them.

        Returns:
            The refusals, by the indexes of the letters. Packed letters count one by one.

        Raises:
            KafkaError: it is unknown whether one was written.
        """
        by_partition: dict[tuple[str, int], tuple[list[int], list[Sequence[bytes | PiecedRecord]]]] = {}
        count = single = 0
        for letter in letters:
            which, parts = by_partition.setdefault((letter.topic, letter.partition), ([], []))
            if isinstance(letter, Packed):
                batch: Sequence[bytes | PiecedRecord] = letter.records
            else:
                batch = [packed(letter.key, letter.value, len(letter.headers), packed_headers(letter.headers))]
                single += 1
                if single % _AT_ONCE == 0:
                    await asyncio.sleep(0)  # other tasks have a turn (C60)
            which += range(count, count + len(batch))
            parts.append(batch)
            count += len(batch)
        lots = [_Lot(topic, partition, joined(parts)) for (topic, partition), (_, parts) in by_partition.items()]
        refused: dict[int, Refusal] = {}
        found = await asyncio.gather(*(self._write_in_order(lot, 0, len(lot.rows)) for lot in lots))
        for (which, _), some_refused in zip(by_partition.values(), found, strict=True):
            refused.update((which[at], refusal) for at, refusal in some_refused.items())
        return dict(sorted(refused.items()))

    async def _write_in_order(self, lot: _Lot, first: int, stop: int) -> dict[int, Refusal]:
        """Write letters of one partition; return those that Kafka refuses. A batch is made while another is sent."""
        refused: dict[int, Refusal] = {}
        sending: asyncio.Task[dict[int, Refusal]] | None = None
        at = first
        while at < stop or sending is not None:
            batch, done = None, at
            if at < stop:
                most_bytes = self._batch_bytes.get(lot.topic, MAX_FOREIGN_BATCH_BYTES)
                batch = PackedBatch(self._producer.stamp_ms())
                done = batch.add_packed(lot.rows, at, stop, most_bytes)
            if sending is not None:
                found = await sending
                sending = None
                refused |= found
                of_topic = next((one for one in found.values() if one.of_topic), None)
                if of_topic is not None:
                    return refused | dict.fromkeys(range(at, stop), of_topic)
            if batch is not None:
                sending = asyncio.create_task(self._send(lot, at, done, batch))
                await asyncio.sleep(0)
                at = done
        return refused

    async def _send(self, lot: _Lot, first: int, stop: int, batch: PackedBatch) -> dict[int, Refusal]:
        """Send a batch; return the refused letters. A refused batch is divided until these are alone."""
        size = batch.size()
        if size > MAX_LETTER_BYTES:
            return {first: Refusal(f"{size:,} bytes are more than Kafka takes in one request")}
        fault = await self._sent(lot.topic, lot.partition, batch)
        if fault is None:
            return {}
        of_topic = isinstance(fault, _OF_TOPIC)
        if of_topic or stop - first == 1:
            return dict.fromkeys(range(first, stop), Refusal(_text(fault, lot.topic, size), of_topic))
        # Make smaller batches from now on: the topic's limit may be less than Kafka's default.
        self._batch_bytes[lot.topic] = max(_LEAST_BATCH_BYTES, min(size // 2, self._batch_bytes.get(lot.topic, size)))
        middle = (first + stop) // 2
        refused = await self._write_in_order(lot, first, middle)
        return refused | await self._write_in_order(lot, middle, stop)

    async def _sent(self, topic: str, partition: int, batch: PackedBatch) -> errors.KafkaError | None:
        """Send one batch; return None once Kafka has it, or the refusal."""
        producer = self._producer.producer
        client = producer.client
        if client.cluster.partitions_for_topic(topic) is None:
            await client.add_topic(topic)
            await client.force_metadata_update()
            if (missing := self._missing(topic)) is not None:
                return missing
        try:
            future: asyncio.Future[RecordMetadata] = await producer.send_batch(batch, topic, partition=partition)
            while True:
                if (await asyncio.wait({future}, timeout=_LOOKED_S))[0]:
                    break
                await client.force_metadata_update()
                if (missing := self._missing(topic)) is not None:
                    while not future.done():
                        self._producer.give_up(topic, partition, missing)
                        await asyncio.sleep(_GIVEN_UP_S)
            future.result()
        except REFUSALS as refusal:
            return refusal
        return None

    def _missing(self, topic: str) -> errors.KafkaError | None:
        """Return why a topic cannot be written to at all, as far as the cluster says; None if it can."""
        cluster = self._producer.producer.client.cluster
        if cluster.partitions_for_topic(topic) is not None:
            return None
        if topic in cluster.unauthorized_topics:
            return errors.TopicAuthorizationFailedError(topic)
        return errors.UnknownTopicOrPartitionError(topic)


def _text(fault: errors.KafkaError, topic: str, size: int) -> str:
    if isinstance(fault, errors.UnknownTopicOrPartitionError):
        return f"there is no topic {topic}; `lapse apply` creates it"
    if isinstance(fault, errors.TopicAuthorizationFailedError):
        return f"the worker may not write to {topic}: it needs Write there"
    if isinstance(fault, errors.MessageSizeTooLargeError | errors.RecordListTooLargeError):
        return f"{topic} takes no record of {size:,} bytes: raise its max.message.bytes"
    return f"{topic}: {fault}"
