"""Builds RecordBatches as a broker sends them, and reads their records as objects and in columns."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any

from aiokafka.record.default_records import DefaultRecordBatchBuilder

from lapse.runtime.kafka.batch_rows import rows_of
from lapse.runtime.kafka.checksum import CheckedRecords, crc32c
from lapse.runtime.kafka.decompression import plain
from lapse.runtime.kafka.fetched_rows import FetchedRows

BASE = 40


def encoded(records: list[Any], codec: int = 0, by_broker: bool = False, base: int = BASE) -> bytes:
    """Build a RecordBatch. A record may share the headers object of the previous one."""
    builder = DefaultRecordBatchBuilder(2, codec, 0, -1, 0, 0, 1 << 20)
    at, before = 0, []
    for gap, stamp_ms, key, value, headers, same in records:
        at += gap
        before = before if same else headers
        builder.append(at, stamp_ms, key, value, before)
        at += 1
    data = bytearray(builder.build())
    struct.pack_into(">q", data, 0, base)
    if by_broker:
        data[22] |= 8
    struct.pack_into(">I", data, 17, crc32c(bytes(data[21:])))
    return bytes(data)


def batches(data: bytes) -> Iterator[Any]:
    checked = CheckedRecords(data)
    while checked.has_next():
        yield checked.next_batch(), checked.last


def both(data: bytes) -> tuple[list[Any], FetchedRows]:
    """Read the records as objects, and in columns."""
    ((batch, _),) = batches(data)
    ((other, (at, stop)),) = batches(data)
    rows = rows_of(*plain(data, at, stop), other)
    assert rows is not None
    return list(batch), rows
