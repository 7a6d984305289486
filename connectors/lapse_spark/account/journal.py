"""The journal of a queue: the worker's own record of how messages left. A ledger compares events with it (D8)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition
from pyspark.sql import DataFrame, SparkSession

from lapse.protocol import topic
from lapse.protocol.header import EPOCH
from lapse.recorded.journaled_fates import JournaledFate, JournaledFates, joined, offsets
from lapse_client import Connection
from lapse_client.error import LapseError
from lapse_client.kafka.connection import arrived
from lapse_client.kafka.fault import raise_if_unreadable
from lapse_client.kafka.log_offsets import log_bounds
from lapse_spark import local_rows
from lapse_spark.account import generation, verdict
from lapse_spark.instant import queue_as_of

_LOT: Final = 1_000
_POLL_S: Final = 0.5
_PATIENCE_S: Final = 30.0

STATEMENT: Final = (
    "topic string, partition int, first bigint, last bigint, epoch bigint, fates int, reasons int, at_ms bigint"
)
"""The columns of rows from `Journal.read`, with those of `verdict.SAME`."""

Row = tuple[str, int, int, int, int, int, int, int]


class NoJournal(RuntimeError):
    """There is no journal, or it cannot be read; the text says why."""


class Journal:
    """Reads the journals of a queue's shards, each time from where it stopped.

    Args:
        connection: connection to the cluster.
        queue: name of the queue.
        app_id: `app_id` of its deployment; None = search for it.
        since_ms: ignore messages that left before this instant, ms since the epoch.
    """

    def __init__(self, connection: Connection, queue: str, app_id: str | None = None, since_ms: int = 0) -> None:
        self._connection = connection
        self._queue = queue
        self._app_id = app_id
        self._since_ms = since_ms
        self._consumer: Consumer | None = None
        self._name = ""
        self._next: dict[int, int] = {}
        self._shards: dict[int, JournaledFates] = {}
        self._ahead: list[JournaledFate] = []

    def read(self, ends: Mapping[tuple[str, int], int] | None = None) -> list[Row]:
        """Return the messages that left since the last call.

        Args:
            ends: how far the underlying topics have been read, by partition. Messages beyond that are returned by a
                later call. None = return all.

        Raises:
            NoJournal: there is no journal, or it cannot be read.
        """
        try:
            self._ahead += self._read()
        except (KafkaException, LapseError, ValueError) as error:
            self.close()
            raise NoJournal(str(error)) from error
        reached, ahead = list[JournaledFate](), list[JournaledFate]()
        for one in self._ahead:
            partition = one.topic, one.partition
            if ends is None or offsets(one)[1] < ends.get(partition, 0):
                reached.append(one)
            elif partition in ends:
                ahead.append(one)
        self._ahead = ahead
        return [_row(one) for one in joined(reached)]

    def close(self) -> None:
        """Close the consumer. The next `read` begins from the start."""
        if self._consumer is not None:
            self._consumer.close()
        self._consumer = None
        self._shards, self._ahead = {}, []

    def _read(self) -> list[JournaledFate]:
        """Read to the present end of the journal."""
        consumer = self._open()
        waiting = {}
        for shard in self._next:
            first, end = log_bounds(consumer, TopicPartition(self._name, shard))
            if end > max(first, self._next[shard]):
                waiting[shard] = end
        found: list[JournaledFate] = []
        give_up = time.monotonic() + _PATIENCE_S
        while waiting:
            lot = arrived(consumer, _LOT, _POLL_S)
            if lot:
                give_up = time.monotonic() + _PATIENCE_S
            elif time.monotonic() > give_up:
                raise LapseError(f"{self._name} cannot be read: no answer in {_PATIENCE_S:g} s")
            for message in lot:
                found += self._take(message)
                shard = message.partition() or 0
                if self._next[shard] >= waiting.get(shard, 0):
                    waiting.pop(shard, None)
        return found

    def _take(self, message: Message) -> list[JournaledFate]:
        """Return the messages that left by a record, except those before `since_ms`."""
        shard, error, offset = message.partition() or 0, message.error(), message.offset() or 0
        if error is not None:
            if error.code() == KafkaError._PARTITION_EOF:
                self._next[shard] = max(self._next[shard], offset)  # the last offset need not be a record
            else:
                raise_if_unreadable(self._name, error)
            return []
        self._next[shard] = offset + 1
        epoch = dict(message.headers() or []).get(EPOCH)
        left = list(self._shards[shard].take(_bytes(message.key()), _bytes(message.value()), _bytes(epoch)))
        return left if message.timestamp()[1] >= self._since_ms else []

    def _open(self) -> Consumer:
        if self._consumer is not None:
            return self._consumer
        topics = self._connection.partitions(topic.commands(self._queue))
        name = queue_as_of.journal(self._queue, self._app_id, set(topics))
        if name is None:
            raise LapseError(f"{self._queue} has no journal here")
        self._name = name
        self._shards = {shard: JournaledFates() for shard in range(topics[name])}
        # Workers use no transactions here. One that somebody else left open would hide what left since.
        consumer = self._connection.consumer(enable_partition_eof=True, isolation_level="read_uncommitted")
        self._consumer = consumer
        partitions = [TopicPartition(name, shard) for shard in self._shards]
        for one in partitions:
            one.offset = log_bounds(consumer, one)[0]
        self._next = {one.partition: one.offset for one in partitions}
        consumer.assign(partitions)
        return consumer


def _bytes(data: str | bytes | None) -> bytes | None:
    return data.encode() if isinstance(data, str) else data


def _row(one: JournaledFate) -> Row:
    first, last = offsets(one)
    fates = verdict.IN_TIME if one.in_time else verdict.OVERDUE
    return generation.name(one.topic, one.first), one.partition, first, last, one.epoch, fates, 0, 0


def statements(spark: SparkSession, rows: Iterable[Row]) -> DataFrame:
    """Convert rows of a journal to a DataFrame with the columns `STATEMENT`."""
    return local_rows.frame(spark, list(rows), STATEMENT)
