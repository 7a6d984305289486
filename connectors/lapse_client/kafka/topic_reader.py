"""Readers of all partitions of a topic, without a consumer group."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import Final, Generic, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lapse_client.argument import check_instant
from lapse_client.error import ConnectionFailed
from lapse_client.kafka.connection import Connection, Silence
from lapse_client.kafka.fault import raise_if_unreadable
from lapse_client.kafka.log_offsets import log_bounds, offsets_at

_POLL_S: Final = 0.5

_SLOWLY: Final = {"queued.max.messages.kbytes": 4_096}
"""A reader that follows is rarely behind. If its application does not take what comes, little waits in memory."""


T = TypeVar("T")


class PacedReader(ABC, Generic[T]):
    """Reads a topic, and converts its records to one kind of object."""

    @abstractmethod
    def paced(self) -> Iterator[T | None]:
        """Iterate over the records, and yield None after each half second without one, so that the caller can stop."""

    def __iter__(self) -> Iterator[T]:
        """Iterate over the records, in order per partition.

        Raises:
            LapseError: the topic cannot be read.
        """
        return (record for record in self.paced() if record is not None)


class TopicReader(PacedReader[Message]):
    """Reads a topic, in order per partition.

    Args:
        connection: the cluster.
        topic: the topic.
        partitions: its number of partitions.
        follow: whether to wait for new records; otherwise stop after the records that existed at the beginning.
        since_ms: read only records written at or after this instant, ms since the epoch; None = all.
        newer: whether to read only records that are written after the reader has begun.
        after: by partition, the first offset to read, instead of `since_ms` and `newer`. A partition that is missing,
            or whose log does not reach there, is read from its beginning.

    Attributes:
        reached: by partition, the next offset, once the reader has begun.
    """

    def __init__(
        self,
        connection: Connection,
        topic: str,
        partitions: int,
        *,
        follow: bool = False,
        since_ms: int | None = None,
        newer: bool = False,
        after: Mapping[int, int] | None = None,
    ) -> None:
        check_instant("since_ms", since_ms)
        self.topic = topic
        self.reached: dict[int, int] = {}
        self._after = after
        self._connection = connection
        self._partitions = partitions
        self._follow = follow
        self._since_ms = since_ms
        self._newer = newer

    def paced(self) -> Iterator[Message | None]:
        """Iterate over the records, and yield None after each half second without one, so that the caller can stop.

        Raises:
            LapseError: the topic cannot be read.
        """
        consumer = self._connection.consumer(enable_partition_eof=True, **(_SLOWLY if self._follow else {}))
        try:
            yield from self._messages(consumer)
        except KafkaException as error:
            raise ConnectionFailed(self._connection.bootstrap_servers, error) from error
        finally:
            consumer.close()

    def _messages(self, consumer: Consumer) -> Iterator[Message | None]:
        tps = [TopicPartition(self.topic, partition) for partition in range(self._partitions)]
        bounds = [log_bounds(consumer, tp) for tp in tps]
        for tp, (first, end) in zip(tps, bounds, strict=True):
            tp.offset = end if self._newer else first
        if self._after is not None:
            for tp, (first, end) in zip(tps, bounds, strict=True):
                wanted = self._after.get(tp.partition, first)
                tp.offset = wanted if first <= wanted <= end else first
        elif self._since_ms is not None:
            instants = [TopicPartition(self.topic, tp.partition, self._since_ms) for tp in tps]
            for found in offsets_at(consumer, instants):
                # Not OFFSET_END, which would leave out what comes until it is looked up.
                tps[found.partition].offset = bounds[found.partition][1] if found.offset < 0 else found.offset
        ends = {tp.partition: bounds[tp.partition][1] for tp in tps}
        ends = {partition: end for partition, end in ends.items() if tps[partition].offset < end}
        self.reached = {tp.partition: tp.offset for tp in tps}
        consumer.assign(tps)
        silence = Silence(self.topic)
        while ends or self._follow:
            message = consumer.poll(_POLL_S)
            silence.note(message is not None or self._follow)
            if message is None:
                yield None
                continue
            error, partition = message.error(), message.partition() or 0
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                ends.pop(partition, None)  # the last offset need not be a record
            elif error is not None:
                raise_if_unreadable(self.topic, error)
            elif self._follow or partition in ends:
                self.reached[partition] = (message.offset() or 0) + 1
                yield message
                if (message.offset() or 0) + 1 >= ends.get(partition, 0):
                    ends.pop(partition, None)
