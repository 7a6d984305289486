"""From a RecordBatch to rows: `columns.c` reads it, and aiokafka where that cannot."""

from __future__ import annotations

from typing import Any, Final

from lapse.core.queue.arrival import TELLING
from lapse.runtime.kafka import columns
from lapse.runtime.kafka.fetched_rows import Columns, FetchedRows
from lapse.runtime.kafka.odd_headers import BY_THE_BROKER, CODEC, DECODE, HEAD, readable

_MAGIC: Final = 2

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
    _, magic, attributes, _, first_ms, latest_ms, *_, count = HEAD.unpack_from(data, at)
    if magic != _MAGIC or count < _FEW or columns.LIBRARY is None:
        return None
    fetched = data, at, stop
    begin, by_broker = at + HEAD.size, bool(attributes & BY_THE_BROKER)
    if codec := attributes & CODEC:
        if codec not in DECODE:
            return None
        data = bytes(DECODE[codec](data[begin:stop]))
        begin, stop = 0, len(data)
    append_ms = latest_ms if by_broker else None
    found = columns.columns_of(data, begin, stop, count, batch.base_offset, first_ms, append_ms, _TELLING)
    if found is None:
        return None
    return FetchedRows(Columns(data, *found, int(by_broker), readable(batch, *fetched)), 0, count)
