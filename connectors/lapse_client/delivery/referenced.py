"""Deliveries by reference: the shard sends ranges of bookmarks, and the client reads the records itself (D4)."""

from __future__ import annotations

import logging
import queue
import threading
import time
from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from operator import methodcaller
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lapse.core.generation import offset_of
from lapse.protocol import header, reference
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.reference import Reference
from lapse_client.delivery.lot import Lot, ReferencedLot, landed_ms
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import NOT_THERE
from lapse_client.session.shard import Shard
from lapse_client.subscriber.settler import Settler

log = logging.getLogger("lapse_client")

_AT_ONCE: Final = 500
"""How many records are read at once. The fewer objects there are at a time, the faster they are made."""

_TOGETHER: Final = 2_000
"""How many records are passed on together, so that the application need not take them in small batches."""

_POLL_S: Final = 0.2
_SHORT_S: Final = 5.0
"""How long to wait for records before the broker is asked where the log ends, in seconds. The topic may have been
deleted or created again."""

_ANSWER_S: Final = 2.0
_KNOWN_S: Final = 2.0
"""How long a broker that comes back has to learn of its topics, in seconds."""

_SKIP: Final = 2_000
"""The longest gap in the log that is read through, in offsets. For a longer one, or a step back, a seek is cheaper."""


@dataclass(frozen=True, slots=True)
class Referenced:
    """A delivery by reference whose records are still to be read.

    Attributes:
        shard: the shard that handed the messages out.
        messages: the ranges of bookmarks.
        lease: end of their leases, as in the header; None for at-most-once deliveries.
        epoch: the shard's epoch, as in the header.
        generation: how often the shard had forgotten the subscription when the delivery came.
        landed: when the delivery reached Kafka; see `landed_ms`.
    """

    shard: Shard
    messages: Reference
    lease: bytes | None
    epoch: bytes
    generation: int
    landed: float

    @property
    def lease_ends_ms(self) -> float:
        """The end of their leases, ms since the epoch; infinite without a lease."""
        return float("inf") if self.lease is None else int(self.lease)

    @classmethod
    def read(cls, shard: Shard, message: Message, fields: dict[str, bytes], generation: int) -> Referenced:
        """Decode a record of kind `reference`."""
        messages, lease = reference.decode(message.value() or b""), fields.get(header.LEASE_UNTIL_MS)
        found = cls(shard, messages, lease, fields[header.EPOCH], generation, landed_ms(message, fields))
        float(found.lease_ends_ms)  # raises a ValueError for a lease that is no number
        return found


class RecordReader:
    """Reads the records that references name, in the order of the references, in a thread of its own.

    Args:
        connection: the cluster.
        settler: sends the settlements of their deliveries.
        await_room: waits up to some seconds until there is room for more messages, and returns whether there is.
        arrived: called with a reference, how many of its next messages were looked for, and those that Kafka still has.
        failed: called with the error after which the reader cannot go on.
    """

    def __init__(
        self,
        connection: Connection,
        settler: Settler,
        await_room: Callable[[float], bool],
        arrived: Callable[[Referenced, int, list[Lot]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._connection = connection
        self._settler = settler
        self._await_room = await_room
        self._arrived = arrived
        self._failed = failed
        self._added = self._done = 0
        self._waiting: queue.SimpleQueue[Referenced | None] = queue.SimpleQueue()
        self._places: dict[tuple[str, int], LogPlace] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lapse records", daemon=True)
        self._thread.start()

    def add(self, referenced: Referenced) -> None:
        """Read a reference's records after those of the earlier references."""
        self._added += 1
        self._waiting.put(referenced)

    @property
    def is_busy(self) -> bool:
        """Whether records of an added reference are still to be read."""
        return self._done < self._added

    def close(self) -> None:
        """Stop, and drop the references that were not read."""
        self._stopping.set()
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (referenced := self._waiting.get()) is not None and not self._stopping.is_set():
                self._read(referenced)
                self._done += 1
        except Exception as error:  # else the subscription would wait for records that nobody reads
            self._failed(error)
            if not isinstance(error, KafkaException | LapseError | ValueError):
                raise
        finally:
            for place in self._places.values():
                place.consumer.close()

    def _read(self, referenced: Referenced) -> None:
        """Read a reference's messages, some at a time, as there is room for them."""
        lots: list[Lot] = []
        count = 0
        for some, deadlines_ms in _pieces(referenced.messages):
            if not count:
                while not self._await_room(_POLL_S):
                    if self._stopping.is_set():
                        return
            count += len(some)
            if found := self._place(some).read(some):
                epoch, landed = referenced.epoch, referenced.landed
                lots.append(
                    ReferencedLot(
                        self._settler, referenced.shard, some, found, deadlines_ms, referenced.lease, epoch, landed
                    )
                )
            if count >= _TOGETHER:
                self._arrived(referenced, count, lots)
                lots, count = [], 0
        if count:
            self._arrived(referenced, count, lots)

    def _place(self, some: BookmarkRange) -> LogPlace:
        at = some.topic, some.partition
        place = self._places.get(at)
        if place is None:
            consumer = self._connection.consumer(enable_partition_eof=True)
            place = self._places[at] = LogPlace(*at, consumer, self._stopping)
        return place


def _pieces(messages: Reference) -> Iterator[tuple[BookmarkRange, Sequence[int]]]:
    """Yield the ranges of a reference in pieces of at most `_TOGETHER` offsets, each with its deadlines."""
    base = 0
    for some in messages.ranges:
        for first in range(some.first, some.last + 1, _TOGETHER):
            last = min(some.last, first + _TOGETHER - 1)
            size = last - first + 1
            yield replace(some, first=first, last=last), messages.deadlines_ms[base : base + size]
            base += size


class LogPlace:
    """A reader of one partition of an underlying topic, and its position."""

    def __init__(self, topic: str, partition: int, consumer: Consumer, stopping: threading.Event) -> None:
        self.consumer = consumer
        self._topic = topic
        self._partition = partition
        self._stopping = stopping
        self._next = -1
        self._is_at_end = False
        self._fetched: list[Message] = []
        self._at = 0
        """Index of the first fetched record that no range has used yet."""

    def read(self, some: BookmarkRange) -> list[Message]:
        """Return those records of a range that Kafka still has."""
        covered = BookmarkRange(some.topic, some.partition, offset_of(some.first), offset_of(some.last))
        if not 0 <= covered.first - self._next <= _SKIP or self._next < 0:
            self._begin(covered.first)
        found: list[Message] = []
        give_up = time.monotonic() + _SHORT_S
        while self._next <= covered.last and not self._stopping.is_set():
            if self._at == len(self._fetched) and not self._fetch(covered.last):
                if time.monotonic() >= give_up:
                    if self._ends_before(covered.last):
                        log.warning("%s is not there: it comes again when its leases end", some)
                        self._next = -1
                        break
                    if self._is_at_end:  # what has come since is only there after a disturbance, or is no record
                        self._begin(self._next)
                    give_up = time.monotonic() + _SHORT_S
                continue
            first = bisect_left(self._fetched, covered.first, self._at, key=_message_offset)
            stop = bisect_right(self._fetched, covered.last, first, key=_message_offset)
            found += self._fetched[first:stop]
            self._at = stop
            # Kafka no longer has the range's offsets before the next record.
            self._next = covered.last + 1 if stop < len(self._fetched) else _message_offset(self._fetched[-1]) + 1
        return found

    def _begin(self, offset: int) -> None:
        """Read from an offset on."""
        self._fetched, self._at = [], 0
        self.consumer.assign([TopicPartition(self._topic, self._partition, offset)])
        self._next = offset
        self._is_at_end = False

    def _ends_before(self, last: int) -> bool:
        """Return whether the broker says that the log ends before an offset. Without an answer, the log may go on.

        A broker that comes back may not know its topics for a moment, so it is asked twice.
        """
        for _ in range(2):
            try:
                _, end = self.consumer.get_watermark_offsets(TopicPartition(self._topic, self._partition), _ANSWER_S)
            except KafkaException as error:
                if error.args[0].code() not in NOT_THERE:
                    return False
                self._stopping.wait(_KNOWN_S)
            else:
                return end <= last
        return True

    def _fetch(self, last: int) -> bool:
        """Fetch more records; return whether there were any. At the end of the log, give up the rest of the range."""
        # Each call releases the interpreter's lock, and may wait for it behind the application. So there is one if
        # records are here.
        arrived = self.consumer.consume(_AT_ONCE, 0)
        if not arrived:
            first = self.consumer.poll(_POLL_S)
            if first is None:
                return False
            arrived = [first, *self.consumer.consume(_AT_ONCE, 0)]
        if not any(map(_ERROR, arrived)):
            self._is_at_end = False
            self._fetched, self._at = arrived, 0
            return True
        fetched: list[Message] = []
        for message in arrived:
            error = message.error()
            if error is None:
                fetched.append(message)
                self._is_at_end = False
            elif error.code() == KafkaError._PARTITION_EOF:
                if not fetched and (message.offset() or 0) > last:
                    self._next = last + 1
                self._is_at_end = True
            elif error.fatal() or error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC):
                raise LapseError(
                    f"{self._topic} cannot be read: {error}. Deliveries by reference need the right to read the "
                    "underlying topic; without it, subscribe with payload='packed'"
                )
        self._fetched, self._at = fetched, 0
        return bool(fetched)


_ERROR: Final[Callable[[Message], KafkaError | None]] = methodcaller("error")
"""The error in the place of a record: of confluent-kafka's messages, and of those of `lapse.testing`."""


def _message_offset(message: Message) -> int:
    return message.offset() or 0
