"""Deliveries by reference: the shard sends ranges of bookmarks, and the client reads the records itself (D4)."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from confluent_kafka import KafkaException, Message

from lapse.protocol import header, reference
from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.reference import Reference
from lapse_client.delivery.log_place import ColumnSource, LogPlace, MessageSource
from lapse_client.delivery.lot import Lot, landed_ms
from lapse_client.delivery.referenced_lot import ColumnLot, HandedOut, RecordLot
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection
from lapse_client.session.shard import Shard
from lapse_client.subscriber.settler import Settler

_TOGETHER: Final = 2_000
"""How many records are passed on together, so that the application need not take them in small batches."""

_POLL_S: Final = 0.2


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
        self._places: dict[tuple[str, int], tuple[LogPlace[Any], Callable[[HandedOut, Any], Lot]]] = {}
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
            for place, _ in self._places.values():
                place.close()

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
            place, lot_of = self._place(some)
            handed = HandedOut(
                self._settler,
                referenced.shard,
                some,
                deadlines_ms,
                referenced.lease,
                referenced.epoch,
                referenced.landed,
            )
            lots += [lot_of(handed, part) for part in place.read(some)]
            if count >= _TOGETHER:
                self._arrived(referenced, count, lots)
                lots, count = [], 0
        if count:
            self._arrived(referenced, count, lots)

    def _place(self, some: BookmarkRange) -> tuple[LogPlace[Any], Callable[[HandedOut, Any], Lot]]:
        """Return what reads a partition, and what makes a lot of the parts that it reads."""
        at = some.topic, some.partition
        found = self._places.get(at)
        if found is None:
            columns = self._connection.column_consumer(*at, enable_partition_eof=True)
            if columns is not None:
                found = LogPlace(some.topic, ColumnSource(columns), self._stopping), ColumnLot
            else:
                messages = MessageSource(*at, self._connection.consumer(enable_partition_eof=True))
                found = LogPlace(some.topic, messages, self._stopping), RecordLot
            self._places[at] = found
        return found


def _pieces(messages: Reference) -> Iterator[tuple[BookmarkRange, Sequence[int]]]:
    """Yield the ranges of a reference in pieces of at most `_TOGETHER` offsets, each with its deadlines."""
    base = 0
    for some in messages.ranges:
        for first in range(some.first, some.last + 1, _TOGETHER):
            last = min(some.last, first + _TOGETHER - 1)
            size = last - first + 1
            yield replace(some, first=first, last=last), messages.deadlines_ms[base : base + size]
            base += size
