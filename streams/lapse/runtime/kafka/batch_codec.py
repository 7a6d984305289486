"""Reads the heads of fetched RecordBatches, and decompresses their records with aiokafka's codecs."""

from __future__ import annotations

import struct
from collections.abc import Callable
from typing import Any, Final

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

from lapse.runtime.kafka.batch_body import BatchBody

_HEAD: Final = struct.Struct(">q8xB4xhiqqqhii")
"""The head of a RecordBatch: base offset, magic, attributes, last offset delta, first and latest timestamp (ms),
producer id and epoch, sequence, count."""

_MAGIC: Final = 2
_CODEC: Final = 0x07
"""The bits of the attributes with the codec."""

_BY_THE_BROKER: Final = 0x08
"""The bit of the attributes that says that the broker set one timestamp for all, the latest."""

_DECODE: Final[dict[int, Callable[[bytes], Any]]] = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}
"""The decompressing function of each codec."""


def body_of(data: bytes, at: int, stop: int, least: int = 0) -> BatchBody | None:
    """Read the head of a RecordBatch, and decompress its records; return None for an unknown format or codec.

    Args:
        data: the bytes of a fetch.
        at: where the batch begins.
        stop: where it ends.
        least: return None, before decompression, if there are fewer records.
    """
    base_offset, magic, attributes, _, first_ms, latest_ms, *_, count = _HEAD.unpack_from(data, at)
    if magic != _MAGIC or count < least:
        return None
    at += _HEAD.size
    if codec := attributes & _CODEC:
        if codec not in _DECODE:
            return None
        data = bytes(_DECODE[codec](data[at:stop]))
        at, stop = 0, len(data)
    append_ms = latest_ms if attributes & _BY_THE_BROKER else None
    return BatchBody(data, at, stop, count, base_offset, first_ms, append_ms)
