"""Records with headers whose names are no UTF-8: aiokafka cannot read them, and whoever may publish may write them.

Kafka's protocol says that names are text, and no broker looks. What is no UTF-8 in them is replaced by U+FFFD, so that
such a record is a message like any other, and stops nobody (X7).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterator
from itertools import islice
from typing import Any, Final, NamedTuple

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

from lapse.runtime.kafka.packed_record import unpacked, varint_at

HEAD: Final = struct.Struct(">q8xB4xhiqqqhii")
"""Of a RecordBatch: base offset, magic, attributes, last offset delta, first and latest timestamp (ms), producer id and
epoch, sequence, count."""

CODEC: Final = 0x07
"""Attributes: how the records are compressed."""

BY_THE_BROKER: Final = 0x08
"""Attributes: whether the latest timestamp is that of all, given by the broker."""

DECODE: Final[dict[int, Callable[[bytes], Any]]] = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
"""By codec: what uncompresses the records."""


class OddRecord(NamedTuple):
    """A record as aiokafka's: without topic and partition."""

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


def readable(batch: Any, data: bytes, at: int, stop: int) -> Iterator[Any]:
    """The records of a RecordBatch: as aiokafka reads them, and from the first on that it cannot, as it would.

    Args:
        batch: aiokafka's.
        data: the bytes of a fetch.
        at: where the batch begins.
        stop: where it ends.
    """
    read = 0
    try:
        for record in batch:
            read += 1
            yield record
    except UnicodeDecodeError:
        yield from islice(_records(data, at, stop), read, None)


def _records(data: bytes, at: int, stop: int) -> Iterator[OddRecord]:
    base, _, attributes, _, first_ms, latest_ms, *_, count = HEAD.unpack_from(data, at)
    at += HEAD.size
    if codec := attributes & CODEC:
        data = bytes(DECODE[codec](data[at:stop]))
        at = 0
    by_broker = bool(attributes & BY_THE_BROKER)
    for _ in range(count):
        _, at = varint_at(data, at)
        delta_ms, at = varint_at(data, at + 1)
        delta, at = varint_at(data, at)
        key, value, headers, at = unpacked(data, at, names="replace")
        timestamp_ms = latest_ms if by_broker else first_ms + delta_ms
        yield OddRecord(base + delta, timestamp_ms, int(by_broker), key, value, headers)
