"""RecordBatches that are filled with many records at a time."""

from __future__ import annotations

import struct
import time
from collections.abc import Iterable, Sequence
from typing import Any, Final

import numpy as np
from aiokafka.producer.message_accumulator import BatchBuilder
from aiokafka.record.default_records import DefaultRecordBatch

from lapse.runtime.kafka.checksum import crc32c
from lapse.runtime.kafka.output import MAX_BATCH_BYTES, Headers
from lapse.runtime.kafka.packed_record import VARINT, Buffer, PiecedRecord
from lapse.runtime.kafka.packed_run import PackedRun

Row = tuple[bytes | None, bytes | None, Headers]


def wall_ms() -> int:
    """Return the time of this machine's clock, ms since the epoch."""
    return int(time.time() * 1000)


class Leased:
    """The deliveries under a lease in a batch, and whether they were sent.

    Args:
        until_s: the last instant at which it may be sent, on the monotonic clock, s.
        rows: the batch's records in order, None for a delivery under a lease; None if all are.
        topic: the topic to which it goes.
        batch: the batch with these deliveries; None if they are not needed.

    Attributes:
        is_sent: whether it was sent, so that Kafka may have it.
        is_left_out: whether it was not sent in time. Then it is never sent (C55).
    """

    __slots__ = ("_batch", "is_left_out", "is_sent", "rows", "topic", "until_s")

    def __init__(
        self, until_s: float, rows: Sequence[Row | None] | None, topic: str = "", batch: BatchBuilder | None = None
    ) -> None:
        self.until_s = until_s
        self.rows = rows
        self.topic = topic
        self.is_sent = self.is_left_out = False
        self._batch = batch

    def is_late(self, now_s: float) -> bool:
        """Return whether it is too late to send it. What was not sent by then is left out for good."""
        self.is_left_out |= not self.is_sent and now_s > self.until_s
        return self.is_left_out or now_s > self.until_s

    def note_sent(self) -> None:
        """Note that it is being sent."""
        self.is_sent, self._batch = True, None

    def records(self) -> Iterable[Any]:
        """Return the batch's records, as aiokafka reads them."""
        return [] if self._batch is None else DefaultRecordBatch(bytes(self._batch._build()))


class RecordBatch(BatchBuilder):
    """aiokafka's batch, without its calls through several layers for each record, which cost as much as the record."""

    leased: Leased | None = None
    _relative_offset: int

    def __init__(self, stamp_ms: int | None = None) -> None:
        super().__init__(MAX_BATCH_BYTES, 0)
        self.stamp_ms = wall_ms() if stamp_ms is None else stamp_ms

    def add_rows(self, rows: Sequence[Row], first: int, stop: int, full_bytes: int) -> int:
        """Add rows from `first` on; return the index behind the last added row.

        The batch ends with the row that makes it larger than `full_bytes`, or before one that does not fit into
        `MAX_BATCH_BYTES`. The first row may have any size.
        """
        append, size = self._builder.append, self._builder.size
        now_ms = self.stamp_ms
        number = self._relative_offset
        for at in range(first, stop):
            key, value, headers = rows[at]
            if append(number, now_ms, key, value, headers) is None:
                stop = at
                break
            number += 1
            # Check the size afterwards: to measure a record beforehand costs as much as to append it.
            if size() > full_bytes:
                stop = at + 1
                break
        self._relative_offset = number
        return stop

    def add_items(self, items: Iterable[tuple[bytes, bytes | None]], headers: Headers) -> bool:
        """Add keys and values with the same headers; return False if they do not fit in."""
        append = self._builder.append
        now_ms = self.stamp_ms
        number = self._relative_offset
        for key, value in items:
            if append(number, now_ms, key, value, headers) is None:
                return False
            number += 1
        self._relative_offset = number
        return True


_HEAD: Final = struct.Struct(">qiibI")
"""Base offset, length of what follows the length, leader epoch, magic, CRC-32C of everything behind it."""

_BODY_HEAD: Final = struct.Struct(">hiqqqhii")
"""Attributes, last offset delta, first and latest timestamp (ms), producer id and epoch, sequence, count."""

_BEFORE_LENGTH_ENDS: Final = 12
_MAGIC: Final = 2


class PackedBatch(BatchBuilder):
    """aiokafka's batch for records that are packed already. Only their positions in the batch are added."""

    leased: Leased | None = None
    _relative_offset: int
    _buffer: bytearray | None

    def __init__(self, stamp_ms: int | None = None) -> None:
        super().__init__(MAX_BATCH_BYTES, 0)
        self.stamp_ms = wall_ms() if stamp_ms is None else stamp_ms
        self._parts: list[Buffer] = []
        self._bytes = _HEAD.size + _BODY_HEAD.size
        self._producer: tuple[int, int, int] = (-1, -1, -1)

    def add_packed(self, records: Sequence[bytes | PiecedRecord], first: int, stop: int, most_bytes: int) -> int:
        """Add records from `first` on; return the index behind the last added record.

        The batch ends before a record that would make it larger than `most_bytes`. The first one may have any size.
        """
        if isinstance(records, PackedRun):
            placed, stop = records.placed(first, stop, self._relative_offset, most_bytes - self._bytes)
            self._parts.append(memoryview(placed))  # type: ignore[arg-type]  # numpy's types say so where Python is older
            self._bytes += len(placed)
            self._relative_offset += stop - first
            return stop
        put = self._parts.append
        varint, size = VARINT, self._bytes
        places = _places(self._relative_offset + stop - first)
        number = self._relative_offset
        for at in range(first, stop):
            record = records[at]
            place = places[number]
            length = len(place) + len(record)
            encoded = varint[length]
            size += len(encoded) + length
            if size > most_bytes and number:
                size -= len(encoded) + length
                stop = at
                break
            put(encoded)
            put(place)
            if isinstance(record, PiecedRecord):
                self._parts += record.pieces
            else:
                put(record)
            number += 1
        self._bytes = size
        self._relative_offset = number
        return stop

    def size(self) -> int:
        """Return the number of bytes of the batch so far."""
        return self._bytes

    def _set_producer_state(self, producer_id: int, producer_epoch: int, base_sequence: int) -> None:
        self._producer = producer_id, producer_epoch, base_sequence

    def _build(self) -> bytearray:
        self.close()
        if self._buffer is None:
            now_ms = self.stamp_ms
            count = self._relative_offset
            body_head = _BODY_HEAD.pack(0, count - 1, now_ms, now_ms, *self._producer, count)
            batch = bytearray().join([bytes(_HEAD.size), body_head, *self._parts])
            length = len(batch) - _BEFORE_LENGTH_ENDS
            _HEAD.pack_into(batch, 0, 0, length, -1, _MAGIC, crc32c(np.frombuffer(batch, np.uint8, offset=_HEAD.size)))
            self._buffer = batch
            self._parts = []
        return self._buffer


_known_places: list[bytes] = []


def _places(count: int) -> list[bytes]:
    """Return the bytes before a record's key, by its number in the batch: attributes, timestamp and offset delta."""
    _known_places.extend(b"\x00\x00" + VARINT[number] for number in range(len(_known_places), count))
    return _known_places
