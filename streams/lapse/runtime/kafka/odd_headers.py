"""Reads records whose header names are not UTF-8. aiokafka cannot read them, but any publisher may write them.

Kafka's protocol says that names are text, but brokers do not check this. Bytes that are not UTF-8 are replaced by
U+FFFD, so that such a record is an ordinary message, and stops no worker (X7).
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice
from typing import Any

from lapse.runtime.kafka.batch_body import BatchBody
from lapse.runtime.kafka.batch_codec import body_of
from lapse.runtime.kafka.packed_record import unpacked, varint_at
from lapse.runtime.kafka.read_record import ReadRecord


def readable(batch: Any, data: bytes, at: int, stop: int) -> Iterator[Any]:
    """Yield the records of a RecordBatch. aiokafka reads them up to the first one that it cannot read.

    Args:
        batch: aiokafka's batch.
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
        body = body_of(data, at, stop)
        if body is None:
            raise
        yield from islice(_records(body), read, None)


def _records(body: BatchBody) -> Iterator[ReadRecord]:
    data, at = body.data, body.at
    for _ in range(body.count):
        _, at = varint_at(data, at)
        delta_ms, at = varint_at(data, at + 1)
        delta, at = varint_at(data, at)
        key, value, headers, at = unpacked(data, at, names="replace")
        timestamp_ms = body.first_ms + delta_ms if body.append_ms is None else body.append_ms
        yield ReadRecord(body.base_offset + delta, timestamp_ms, body.timestamp_type, key, value, headers)
