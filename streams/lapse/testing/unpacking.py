"""Outputs of a shard as single records: what is packed for Kafka's RecordBatches is read back."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from lapse.runtime.kafka.output import Headers, Output, Packed


class _Varint(NamedTuple):
    """A number, and where what follows it begins."""

    number: int
    end: int


def outputs_of(some: Iterable[Output | Packed]) -> Iterator[Output]:
    """What is written, record by record."""
    for one in some:
        if isinstance(one, Output):
            yield one
        else:
            for packed in one.records:
                yield Output(one.topic, one.partition, *unpacked(packed))


def unpacked(packed: bytes) -> tuple[bytes | None, bytes | None, Headers]:
    """Key, value and headers of a packed record (`lapse.runtime.kafka.packed_record`)."""
    key, at = _bytes(packed, 0)
    value, at = _bytes(packed, at)
    count, at = _varint(packed, at)
    headers: Headers = []
    for _ in range(count):
        name, at = _bytes(packed, at)
        content, at = _bytes(packed, at)
        headers.append(((name or b"").decode("utf-8", "surrogateescape"), content))  # type: ignore[arg-type]
    return key, value, headers


def _bytes(packed: bytes, at: int) -> tuple[bytes | None, int]:
    length, at = _varint(packed, at)
    if length < 0:
        return None, at
    return packed[at : at + length], at + length


def _varint(packed: bytes, at: int) -> _Varint:
    found = shift = 0
    while True:
        byte = packed[at]
        at += 1
        found |= (byte & 0x7F) << shift
        if byte < 0x80:
            return _Varint(found >> 1 ^ -(found & 1), at)
        shift += 7
