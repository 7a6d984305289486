"""Reads the records of one partition that are named by ranges of bookmarks, and remembers how far it has read."""

from __future__ import annotations

import logging
import threading
import time
from abc import ABC, abstractmethod
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Sequence
from operator import methodcaller
from typing import Final, Generic, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lapse.core.generation import offset_of
from lapse.protocol.bookmark import BookmarkRange
from lapse_client.error import LapseError
from lapse_client.kafka.column_consumer import ColumnConsumer, Fault
from lapse_client.kafka.fault import NOT_THERE
from lapse_client.kafka.record_columns import ColumnSpan, RecordColumns

log = logging.getLogger("lapse_client")

_AT_ONCE: Final = 500
"""How many objects are read at once. The fewer there are at a time, the faster they are made."""

_POLL_S: Final = 0.2
_SHORT_S: Final = 5.0
"""How long to wait for records before the broker is asked where the log ends, in seconds. The topic may have been
deleted or created again."""

_ANSWER_S: Final = 2.0
_KNOWN_S: Final = 2.0
"""How long a broker that comes back has to learn of its topics, in seconds."""

_SKIP: Final = 2_000
"""The longest gap in the log that is read through, in offsets. For a longer one, or a step back, a seek is cheaper."""

S = TypeVar("S")
"""Some records, one behind the other."""


class LogSource(ABC, Generic[S]):
    """Where a place of the log gets its records from. `fetch` replaces the records that are there."""

    @abstractmethod
    def assign(self, offset: int) -> None:
        """Read from an offset on. The records that are there are dropped."""

    @abstractmethod
    def fetch(self, wait_s: float) -> list[Fault]:
        """Wait for records, and return the errors that came with them."""

    @abstractmethod
    def __len__(self) -> int:
        """Return how many records are there."""

    @abstractmethod
    def offset(self, at: int) -> int:
        """Return the offset of a record, by its index."""

    @abstractmethod
    def within(self, first: int, last: int, start: int) -> tuple[int, int]:
        """Return the indexes of the records from one offset to another, both included, behind an index."""

    @abstractmethod
    def some(self, first: int, stop: int) -> S:
        """Return records by their indexes; there is at least one."""

    @abstractmethod
    def end(self, timeout_s: float) -> int:
        """Return where the partition ends, or raise a KafkaException."""

    @abstractmethod
    def close(self) -> None:
        """Close the consumer."""


class MessageSource(LogSource[Sequence[Message]]):
    """Objects of confluent-kafka.

    Args:
        topic: the topic.
        partition: its partition.
        consumer: the consumer, which reports ends of partitions.
    """

    def __init__(self, topic: str, partition: int, consumer: Consumer) -> None:
        self._topic, self._partition, self._consumer = topic, partition, consumer
        self._fetched: list[Message] = []

    def assign(self, offset: int) -> None:
        """See `LogSource`."""
        self._fetched = []
        self._consumer.assign([TopicPartition(self._topic, self._partition, offset)])

    def fetch(self, wait_s: float) -> list[Fault]:
        """See `LogSource`."""
        # Each call releases the interpreter's lock, and may wait for it behind the application. So there is one if
        # records are here.
        self._fetched = self._consumer.consume(_AT_ONCE, 0)
        if not self._fetched:
            first = self._consumer.poll(wait_s)
            if first is None:
                return []
            self._fetched = [first, *self._consumer.consume(_AT_ONCE, 0)]
        return self._faults() if any(map(_ERROR, self._fetched)) else []

    def _faults(self) -> list[Fault]:
        """Separate errors from records."""
        arrived, self._fetched = self._fetched, []
        faults: list[Fault] = []
        for message in arrived:
            if (error := message.error()) is None:
                self._fetched.append(message)
            else:
                faults.append(Fault(error, message.offset() or 0, len(self._fetched)))
        return faults

    def __len__(self) -> int:
        return len(self._fetched)

    def offset(self, at: int) -> int:
        """See `LogSource`."""
        return _message_offset(self._fetched[at])

    def within(self, first: int, last: int, start: int) -> tuple[int, int]:
        """See `LogSource`."""
        begin = bisect_left(self._fetched, first, start, key=_message_offset)
        return begin, bisect_right(self._fetched, last, begin, key=_message_offset)

    def some(self, first: int, stop: int) -> Sequence[Message]:
        """See `LogSource`."""
        return self._fetched[first:stop]

    def end(self, timeout_s: float) -> int:
        """See `LogSource`."""
        return self._consumer.get_watermark_offsets(TopicPartition(self._topic, self._partition), timeout_s)[1]

    def close(self) -> None:
        """See `LogSource`."""
        self._consumer.close()


class ColumnSource(LogSource[ColumnSpan]):
    """Columns, by librdkafka's own functions.

    Args:
        consumer: the consumer, which reports ends of partitions.
    """

    def __init__(self, consumer: ColumnConsumer) -> None:
        self._consumer = consumer
        self._fetched: RecordColumns | None = None

    def assign(self, offset: int) -> None:
        """See `LogSource`."""
        self._fetched = None
        self._consumer.assign(offset)

    def fetch(self, wait_s: float) -> list[Fault]:
        """See `LogSource`."""
        self._fetched, faults = self._consumer.fetch(wait_s)
        return faults

    def __len__(self) -> int:
        return 0 if self._fetched is None else len(self._fetched)

    def offset(self, at: int) -> int:
        """See `LogSource`."""
        assert self._fetched is not None
        return self._fetched.offsets[at]

    def within(self, first: int, last: int, start: int) -> tuple[int, int]:
        """See `LogSource`."""
        assert self._fetched is not None
        begin = bisect_left(self._fetched.offsets, first, start)
        return begin, bisect_right(self._fetched.offsets, last, begin)

    def some(self, first: int, stop: int) -> ColumnSpan:
        """See `LogSource`."""
        assert self._fetched is not None
        return ColumnSpan(self._fetched, first, stop)

    def end(self, timeout_s: float) -> int:
        """See `LogSource`."""
        return self._consumer.end(timeout_s)

    def close(self) -> None:
        """See `LogSource`."""
        self._fetched = None
        self._consumer.close()


class LogPlace(Generic[S]):
    """A reader of one partition of an underlying topic, and its position.

    Args:
        topic: the topic, for messages.
        source: reads the partition.
        stopping: set when nothing more is wanted.
    """

    def __init__(self, topic: str, source: LogSource[S], stopping: threading.Event) -> None:
        self._topic = topic
        self._source = source
        self._stopping = stopping
        self._next = -1
        self._is_at_end = False
        self._at = 0
        """Index of the first fetched record that no range has used yet."""

    def close(self) -> None:
        """Close the consumer."""
        self._source.close()

    def read(self, some: BookmarkRange) -> list[S]:
        """Return those records of a range that Kafka still has, in as many parts as they came in."""
        source = self._source
        covered = BookmarkRange(some.topic, some.partition, offset_of(some.first), offset_of(some.last))
        if not 0 <= covered.first - self._next <= _SKIP or self._next < 0:
            self._begin(covered.first)
        found: list[S] = []
        give_up = time.monotonic() + _SHORT_S
        while self._next <= covered.last and not self._stopping.is_set():
            if self._at == len(source) and not self._fetch(covered.last):
                if time.monotonic() >= give_up:
                    if self._ends_before(covered.last):
                        log.warning("%s is not there: it comes again when its leases end", some)
                        self._next = -1
                        break
                    if self._is_at_end:  # what has come since is only there after a disturbance, or is no record
                        self._begin(self._next)
                    give_up = time.monotonic() + _SHORT_S
                continue
            first, stop = source.within(covered.first, covered.last, self._at)
            if first < stop:
                found.append(source.some(first, stop))
            self._at = stop
            # Kafka no longer has the range's offsets before the next record.
            self._next = covered.last + 1 if stop < len(source) else source.offset(stop - 1) + 1
        return found

    def _begin(self, offset: int) -> None:
        """Read from an offset on."""
        self._at = 0
        self._source.assign(offset)
        self._next = offset
        self._is_at_end = False

    def _ends_before(self, last: int) -> bool:
        """Return whether the broker says that the log ends before an offset. Without an answer, the log may go on.

        A broker that comes back may not know its topics for a moment, so it is asked twice.
        """
        for _ in range(2):
            try:
                end = self._source.end(_ANSWER_S)
            except KafkaException as error:
                if error.args[0].code() not in NOT_THERE:
                    return False
                self._stopping.wait(_KNOWN_S)
            else:
                return end <= last
        return True

    def _fetch(self, last: int) -> bool:
        """Fetch more records; return whether there were any. At the end of the log, give up the rest of the range."""
        faults = self._source.fetch(_POLL_S)
        self._at, there = 0, len(self._source)
        if there:
            self._is_at_end = False
        for fault in faults:
            error = fault.error
            if error.code() == KafkaError._PARTITION_EOF:
                if not fault.at and fault.offset > last:
                    self._next = last + 1
                self._is_at_end = fault.at == there
            elif error.fatal() or error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC):
                raise LapseError(
                    f"{self._topic} cannot be read: {error}. Deliveries by reference need the right to read the "
                    "underlying topic; without it, subscribe with payload='packed'"
                )
        return bool(there)


_ERROR: Final[Callable[[Message], KafkaError | None]] = methodcaller("error")
"""The error in the place of a record: of confluent-kafka's messages, and of those of `lapse.testing`."""


def _message_offset(message: Message) -> int:
    return message.offset() or 0
