"""Deliveries by reference: the shard names ranges of bookmarks, and the client reads the records itself (D4)."""

from __future__ import annotations

import queue
import threading
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lapse.core.lifetime import EXPIRES_AT_MS, NEVER
from lapse.protocol import header, reference
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.reference import KIND, Reference
from lapse_client.connection import Connection
from lapse_client.delivery import Delivery, Settler
from lapse_client.error import LapseError
from lapse_client.shard import Shard

_AT_ONCE: Final = 2_000
_POLL_S: Final = 0.2
_SKIP: Final = 2_000
"""A gap in the log of so many offsets is read over; a longer one, or a step back, is worth a seek."""


@dataclass(frozen=True, slots=True)
class Referenced:
    """Messages that are ours, and still have to be read.

    Attributes:
        shard: who handed them out.
        messages: which ones.
        lease: end of their leases, as the header has it; None at most once.
        epoch: the epoch that handed them out, as the header has it.
        generation: the subscription's generation at the shard when they came.
    """

    shard: Shard
    messages: Reference
    lease: bytes | None
    epoch: bytes
    generation: int

    @classmethod
    def read(cls, shard: Shard, message: Message, fields: dict[str, bytes], generation: int) -> Referenced:
        """Read a record of kind `reference`."""
        messages, lease = reference.decode(message.value() or b""), fields.get(header.LEASE_UNTIL_MS)
        return cls(shard, messages, lease, fields[header.EPOCH], generation)


class RecordReader:
    """Reads what references name, in their order, in a thread of its own.

    Args:
        connection: the cluster.
        settler: whose deliveries they become.
        arrived: gets the deliveries of a reference, which may be fewer than it named: Kafka no longer has the rest.
        failed: told when it cannot go on.
    """

    def __init__(
        self,
        connection: Connection,
        settler: Settler,
        arrived: Callable[[Referenced, list[Delivery]], None],
        failed: Callable[[BaseException], None],
    ) -> None:
        self._connection = connection
        self._settler = settler
        self._arrived = arrived
        self._failed = failed
        self._waiting: queue.SimpleQueue[Referenced | None] = queue.SimpleQueue()
        self._places: dict[tuple[str, int], LogPlace] = {}
        self._stopping = threading.Event()
        self._thread = threading.Thread(target=self._run, name="lapse records", daemon=True)
        self._thread.start()

    def add(self, referenced: Referenced) -> None:
        """Read these after those that were added before."""
        self._waiting.put(referenced)

    def close(self) -> None:
        """Stop; what was not read is forgotten."""
        self._stopping.set()
        self._waiting.put(None)
        self._thread.join()

    def _run(self) -> None:
        try:
            while (referenced := self._waiting.get()) is not None and not self._stopping.is_set():
                self._arrived(referenced, list(self._deliveries(referenced)))
        except (KafkaException, LapseError, ValueError) as error:
            self._failed(error)
        finally:
            for place in self._places.values():
                place.consumer.close()

    def _deliveries(self, referenced: Referenced) -> Iterator[Delivery]:
        messages = referenced.messages
        at = (messages.topic, messages.partition)
        place = self._places.get(at)
        if place is None:
            consumer = self._connection.consumer(enable_partition_eof=True)
            place = self._places[at] = LogPlace(*at, consumer, self._stopping)
        prefix = f"{messages.topic}:{messages.partition}:".encode()
        base = 0
        for some in messages.ranges:
            common = {
                header.KIND: KIND,
                header.DELIVERY_COUNT: b"%d" % (some.delivery_count or 0),
                header.EPOCH: referenced.epoch,
            }
            if referenced.lease is not None:
                common[header.LEASE_UNTIL_MS] = referenced.lease
            for message in place.read(some):
                offset = message.offset() or 0
                fields = {**common, header.BOOKMARK: prefix + b"%d" % offset}
                if messages.deadlines_ms:
                    deadline_ms = messages.deadlines_ms[base + offset - some.first]
                    if deadline_ms != NEVER:
                        fields[EXPIRES_AT_MS] = b"%d" % deadline_ms
                yield Delivery(self._settler, referenced.shard, message, fields)
            base += len(some)


class LogPlace:
    """One partition of an underlying topic, as far as it is read."""

    def __init__(self, topic: str, partition: int, consumer: Consumer, stopping: threading.Event) -> None:
        self.consumer = consumer
        self._topic = topic
        self._partition = partition
        self._stopping = stopping
        self._next = -1
        self._fetched: deque[Message] = deque()

    def read(self, some: BookmarkRange) -> Iterator[Message]:
        """The records of a range that Kafka still has."""
        if not 0 <= some.first - self._next <= _SKIP or self._next < 0:
            self._fetched.clear()
            self.consumer.assign([TopicPartition(self._topic, self._partition, some.first)])
            self._next = some.first
        while self._next <= some.last and not self._stopping.is_set():
            if not self._fetched and not self._fetch(some.last):
                continue
            while self._fetched:
                offset = self._fetched[0].offset() or 0
                if offset > some.last:  # what the range names before it is no longer there
                    self._next = some.last + 1
                    return
                message = self._fetched.popleft()
                self._next = offset + 1
                if offset >= some.first:
                    yield message
                if offset == some.last:
                    return

    def _fetch(self, last: int) -> bool:
        """Get more records; at the end of the log, give up the rest of the range."""
        first = self.consumer.poll(_POLL_S)
        if first is None:
            return False
        for message in (first, *self.consumer.consume(_AT_ONCE, 0)):
            error = message.error()
            if error is None:
                self._fetched.append(message)
            elif error.code() == KafkaError._PARTITION_EOF:
                if not self._fetched and (message.offset() or 0) > last:
                    self._next = last + 1
            elif error.fatal() or error.code() in (KafkaError.TOPIC_AUTHORIZATION_FAILED, KafkaError._UNKNOWN_TOPIC):
                raise LapseError(
                    f"{self._topic} cannot be read: {error}. Deliveries by reference need the right to read the "
                    "underlying topic; without it, subscribe with payload='inline'"
                )
        return bool(self._fetched)
