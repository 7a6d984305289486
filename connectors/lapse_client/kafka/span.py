"""Reads the records of topics between two instants."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lapse_client.error import ConnectionFailed, LapseError
from lapse_client.kafka.connection import Connection, Silence, arrived
from lapse_client.kafka.fault import NOT_THERE, unreadable
from lapse_client.kafka.log_offsets import log_bounds, offsets_at
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S

_POLL_S: Final = 0.5
_OPEN_S: Final = 15.0
"""How long to wait for the end of an open transaction, s."""

_KNOWN_S: Final = 2.0
"""How long brokers may not know a listed topic before they are asked whether it was deleted, s."""

_AT_ONCE: Final = 5_000
_Name = tuple[str, int]
Progress = Callable[[int, int], None]
"""Called with the number of offsets read, and the number of all offsets to read."""


def _ignore_progress(done: int, total: int) -> None:
    """Ignore the progress."""


def span(
    connection: Connection,
    topics: Mapping[str, int],
    since_ms: int | None = None,
    until: Callable[[str], int | None] = lambda topic: None,
    progress: Progress = _ignore_progress,
    *,
    whole: bool = False,
    committed: bool = True,
    listed: bool = False,
    first_offset: int = 0,
) -> Iterator[Message]:
    """Yield the records of topics that were written at or after an instant, up to their present ends.

    Records behind an open transaction are hidden. By default, the present end is where the first one begins.

    Args:
        connection: the cluster.
        topics: which topics, and how many partitions each has.
        since_ms: the instant, ms since the epoch; None = from the beginning.
        until: called for each record with its topic; returns the last instant of interest, or None for no limit.
        progress: called with the number of offsets read, and of all.
        whole: whether to wait for the ends of open transactions, so that no committed record is missing.
        committed: whether to leave out records of open and aborted transactions. False is for topics that are written
            without transactions, where somebody else's must hide nothing.
        listed: whether the topics come from a list of what the cluster had. Those that were deleted since are left out.
        first_offset: the first offset to read; for a topic of one partition.

    Raises:
        LapseError: a topic cannot be read, or a transaction stays open.
    """
    level = "read_committed" if committed else "read_uncommitted"
    consumer = connection.consumer(enable_partition_eof=True, isolation_level=level)
    try:
        tps, ends = _bounds(consumer, topics, listed)
        if whole:
            ends = _whole_ends(connection, consumer, tps)
        for tp in tps.values():
            tp.offset = max(tp.offset, first_offset)
        if since_ms is not None and tps:
            _skip_older(consumer, tps, ends, since_ms, listed)
        yield from _records(consumer, tps, ends, until, progress, listed)
    except KafkaException as error:
        raise ConnectionFailed(connection.bootstrap_servers, error) from error
    finally:
        consumer.close()


def _records(
    consumer: Consumer,
    tps: Mapping[_Name, TopicPartition],
    ends: Mapping[_Name, int],
    until: Callable[[str], int | None],
    progress: Progress,
    listed: bool,
) -> Iterator[Message]:
    """Yield the records of partitions from their first offsets up to their ends."""
    left = {name: tp for name, tp in tps.items() if tp.offset < ends[name]}
    total = sum(ends[name] - tp.offset for name, tp in left.items())
    done = 0
    progress(done, total)
    if left:
        consumer.assign(list(left.values()))
    silence = Silence(", ".join({topic: None for topic, _ in tps}))
    while left:
        messages = arrived(consumer, _AT_ONCE, _POLL_S)
        silence.note(messages)
        if listed and not messages:  # no error tells of a topic that was deleted before its first record was fetched
            with suppress(KafkaException):
                _drop_deleted(consumer, left, _POLL_S)
        for message in messages:
            name = message.topic() or "", message.partition() or 0
            if name not in left:
                continue
            next_offset = ends[name]
            if not ((listed and _is_gone(message)) or _is_end(message)):
                limit_ms = until(name[0])
                if limit_ms is None or message.timestamp()[1] <= limit_ms:
                    next_offset = (message.offset() or 0) + 1
                    yield message
            done += next_offset - left[name].offset
            left[name].offset = next_offset
            if next_offset >= ends[name]:
                del left[name]
                consumer.pause([TopicPartition(*name)])
        progress(done, total)


def _bounds(
    consumer: Consumer, topics: Mapping[str, int], listed: bool = False
) -> tuple[dict[_Name, TopicPartition], dict[_Name, int]]:
    """Return the partitions of topics, each with its first offset, and their ends."""
    tps: dict[_Name, TopicPartition] = {}
    ends: dict[_Name, int] = {}
    deleted = set[str]()
    for name in ((topic, partition) for topic, count in topics.items() for partition in range(count)):
        if name[0] in deleted:
            continue
        tp = TopicPartition(*name)
        try:
            tp.offset, ends[name] = log_bounds(consumer, tp, _KNOWN_S if listed else METADATA_TIMEOUT_S)
        except KafkaException as error:
            if not (listed and error.args[0].code() in NOT_THERE):
                raise
            if name[0] not in consumer.list_topics(timeout=METADATA_TIMEOUT_S).topics:
                deleted.add(name[0])
                continue
            tp.offset, ends[name] = log_bounds(consumer, tp)
        tps[name] = tp
    return tps, ends


def _skip_older(
    consumer: Consumer, tps: dict[_Name, TopicPartition], ends: Mapping[_Name, int], since_ms: int, listed: bool
) -> None:
    """Move the first offsets to the first records that were written at or after an instant."""
    try:
        offsets = offsets_at(consumer, [TopicPartition(*name, since_ms) for name in tps])
    except KafkaException as error:
        if not (listed and error.args[0].code() in NOT_THERE and _drop_deleted(consumer, tps, METADATA_TIMEOUT_S)):
            raise
        _skip_older(consumer, tps, ends, since_ms, listed)
        return
    for found in offsets:
        name = found.topic, found.partition
        tps[name].offset = found.offset if found.offset >= 0 else ends[name]


def _drop_deleted(consumer: Consumer, tps: dict[_Name, TopicPartition], timeout_s: float) -> int:
    """Leave out the partitions of topics that are not there any more. Return how many they are."""
    there = consumer.list_topics(timeout=timeout_s).topics
    deleted = [name for name in tps if name[0] not in there]
    for name in deleted:
        del tps[name]
    return len(deleted)


def _is_gone(message: Message) -> bool:
    """Return whether a message only reports that its topic is not there any more."""
    error = message.error()
    return error is not None and error.code() in NOT_THERE


def _is_end(message: Message) -> bool:
    """Return whether a message only reports the end of its partition.

    Raises:
        LapseError: it reports that the topic cannot be read.
    """
    error = message.error()
    if error is not None and error.code() != KafkaError._PARTITION_EOF:
        name = message.topic() or ""
        raise unreadable(name, error) or LapseError(f"{name} cannot be read: {error.str()}. Read it again")
    return error is not None


def await_transactions(connection: Connection, topics: Mapping[str, int], timeout_s: float) -> None:
    """Wait until readers of committed records see everything that topics have now.

    Args:
        connection: the cluster.
        topics: which topics, and how many partitions each has.
        timeout_s: how long to wait for the end of an open transaction, s.

    Raises:
        LapseError: a transaction stays open.
        ConnectionFailed: no broker answers.
    """
    consumer = connection.consumer()
    try:
        _whole_ends(connection, consumer, _bounds(consumer, topics)[0], timeout_s)
    except KafkaException as error:
        raise ConnectionFailed(connection.bootstrap_servers, error) from error
    finally:
        consumer.close()


def _whole_ends(
    connection: Connection, consumer: Consumer, tps: Mapping[_Name, TopicPartition], timeout_s: float = _OPEN_S
) -> dict[_Name, int]:
    """Return where partitions end now, once no transaction before that is open.

    Raises:
        LapseError: a transaction stays open.
    """
    every = connection.consumer(isolation_level="read_uncommitted")
    try:
        ends = {name: log_bounds(every, tp)[1] for name, tp in tps.items()}
    finally:
        every.close()
    give_up = time.monotonic() + timeout_s
    for name, end in ends.items():
        while (stable := log_bounds(consumer, tps[name])[1]) < end:
            if time.monotonic() >= give_up:
                raise LapseError(
                    f"{name[0]}, partition {name[1]}: a transaction that begins at offset {stable} stays open, and "
                    "hides what is behind it. If the program that began it has ended, find and abort it with "
                    "kafka-transactions.sh"
                )
            time.sleep(_POLL_S)
    return ends
