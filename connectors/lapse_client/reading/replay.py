"""Bookmark replay: the records of an underlying topic from a bookmark on (Q19)."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lapse.protocol.bookmark import Bookmark
from lapse_client.error import ConnectionFailed, NoRecord
from lapse_client.kafka.connection import Connection, Silence
from lapse_client.kafka.fault import raise_if_unreadable
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.log_offsets import log_bounds

_POLL_S = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Replayed:
    """A record of an underlying topic, independent of its state in a queue.

    Attributes:
        bookmark: bookmark of the record.
        key: key of the record.
        value: value of the record.
        headers: headers of the record, in order.
        timestamp_ms: timestamp of the record, ms since the epoch.
    """

    bookmark: Bookmark
    key: bytes | None
    value: bytes | None
    timestamp_ms: int
    headers: list[tuple[str, bytes | None]] = field(repr=False)


def replay(start: Bookmark | str, *, connection: Connection | None = None, follow: bool = False) -> Iterator[Replayed]:
    """Yield the records of one partition from a bookmark on, without leases and without changes of state.

    Args:
        start: bookmark of the first record.
        connection: connection to the cluster; from the environment by default.
        follow: whether to wait for new records; otherwise stop after the records that existed at the beginning.

    Raises:
        ValueError: the bookmark is not valid.
        UnknownEntity: there is no such topic or partition.
        NoRecord: the bookmark's record is not in the log any more, or not yet.
    """
    for record in paced(start, connection=connection, follow=follow):
        if record is not None:
            yield record


def paced(
    start: Bookmark | str, *, connection: Connection | None = None, follow: bool = False
) -> Iterator[Replayed | None]:
    """Yield as `replay` does, and None after each half second without a record, so that the caller can stop."""
    first = start if isinstance(start, Bookmark) else Bookmark.parse(start)
    cluster = connection or Connection.from_environment()
    topics = cluster.partitions(first.topic)
    if first.partition >= topics.get(first.topic, 0):
        raise cluster.no_partition(f"{first.topic}:{first.partition}", topics)
    consumer = cluster.consumer(enable_partition_eof=True)
    try:
        tp = TopicPartition(first.topic, first.partition, first.log_offset)
        low, end = log_bounds(consumer, tp)
        if not low <= first.log_offset <= end:
            raise NoRecord(f"{first} is not in the log, which has offsets {low} to {end - 1}: start at one of them")
        consumer.assign([tp])
        reached, silence = first.log_offset, Silence(first.topic)
        while follow or reached < end:
            message = consumer.poll(_POLL_S)
            silence.note(message is not None or follow)
            if message is None:
                yield None
                continue
            error = message.error()
            if error is not None and error.code() == KafkaError._PARTITION_EOF:
                reached = max(reached, message.offset() or 0)
                continue
            if error is not None:
                raise_if_unreadable(first.topic, error)
                continue
            reached = (message.offset() or 0) + 1
            yield Replayed(
                bookmark=Bookmark(first.topic, first.partition, message.offset() or 0),
                key=message.key(),
                value=message.value(),
                timestamp_ms=message.timestamp()[1],
                headers=headers_of(message),
            )
    except KafkaException as error:
        raise ConnectionFailed(cluster.bootstrap_servers, error) from error
    finally:
        consumer.close()
