"""From a RecordBatch to rows: `columns.c` reads it, and aiokafka where that cannot."""

from __future__ import annotations

import struct
from collections.abc import Callable
from itertools import chain
from typing import Any, Final

from aiokafka.codec import gzip_decode, lz4_decode, snappy_decode, zstd_decode

from lapse.core.queue.arrival import TELLING
from lapse.runtime.kafka import columns
from lapse.runtime.kafka.fetched_rows import Columns, FetchedRows

_HEAD: Final = struct.Struct(">16xB4xhiqqqhii")
"""Of a RecordBatch: magic, attributes, last offset delta, first and latest timestamp (ms), producer id and epoch,
sequence, count."""

_MAGIC: Final = 2
_CODEC, _BY_THE_BROKER = 0x07, 0x08
_DECODE: Final[dict[int, Callable[[bytes], Any]]] = {1: gzip_decode, 2: snappy_decode, 3: lz4_decode, 4: zstd_decode}

_FEW: Final = 16
"""For fewer records columns cost more than they save."""

_TELLING: Final = columns.names(TELLING)


def rows_of(data: bytes, at: int, stop: int, batch: Any) -> FetchedRows | None:
    """The records of a RecordBatch in columns; None where they are few, or somebody else has to read them.

    Args:
        data: the bytes of a fetch.
        at: where the batch begins.
        stop: where it ends.
        batch: aiokafka's, which makes objects of them.
    """
    magic, attributes, _, first_ms, latest_ms, *_, count = _HEAD.unpack_from(data, at)
    if magic != _MAGIC or count < _FEW or columns.LIBRARY is None:
        return None
    begin, by_broker = at + _HEAD.size, bool(attributes & _BY_THE_BROKER)
    if codec := attributes & _CODEC:
        if codec not in _DECODE:
            return None
        data = bytes(_DECODE[codec](data[begin:stop]))
        begin, stop = 0, len(data)
    append_ms = latest_ms if by_broker else None
    found = columns.columns_of(data, begin, stop, count, batch.base_offset, first_ms, append_ms, _TELLING)
    if found is None:
        return None
    return FetchedRows(Columns(data, *found, int(by_broker), chain.from_iterable((batch,))), 0, count)
