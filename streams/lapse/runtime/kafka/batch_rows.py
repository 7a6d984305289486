"""Turns a RecordBatch into rows: `columns.c` reads it, or aiokafka if that is not possible."""

from __future__ import annotations

from typing import Any, Final

from lapse.core.queue.arrival.arrival import TELLING
from lapse.runtime.kafka import columns
from lapse.runtime.kafka.batch_codec import body_of
from lapse.runtime.kafka.fetched_rows import Columns, FetchedRows
from lapse.runtime.kafka.odd_headers import readable

_FEW: Final = 16
"""For fewer records columns cost more than they save."""

_TELLING: Final = columns.names(TELLING)


def rows_of(data: bytes, at: int, stop: int, batch: Any, *, few: bool = False) -> FetchedRows | None:
    """Return the records of a RecordBatch in columns; None if they are few, or cannot be read like that.

    Args:
        data: the bytes of a fetch.
        at: where the batch begins.
        stop: where it ends.
        batch: aiokafka's batch, which makes objects of the records.
        few: whether few records are wanted in columns, too.
    """
    if columns.LIBRARY is None:
        return None
    body = body_of(data, at, stop, least=1 if few else _FEW)
    found = None if body is None else columns.columns_of(body, _TELLING)
    if body is None or found is None:
        return None
    objects = readable(batch, data, at, stop)
    return FetchedRows(Columns(body.data, *found, body.timestamp_type, objects), 0, body.count)
