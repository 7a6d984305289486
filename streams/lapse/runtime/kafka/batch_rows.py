"""Turns RecordBatches into rows: `columns.c` reads them, or aiokafka if that is not possible."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from lapse.core.queue.arrival.arrival import TELLING
from lapse.runtime.kafka import columns
from lapse.runtime.kafka.batch_codec import body_of
from lapse.runtime.kafka.checksum import batches_between
from lapse.runtime.kafka.columns import BatchRun
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


def rows_of_run(data: bytes, at: int, run: BatchRun, *, few: bool = False) -> FetchedRows | None:
    """Return the records of some RecordBatches in columns; None if they are few, or cannot be read like that.

    Args:
        data: the bytes of a fetch.
        at: where the first batch begins.
        run: the batches.
        few: whether few records are wanted in columns, too.
    """
    if run.records < (1 if few else _FEW):
        return None
    found = columns.columns_of_batches(data, at, run, _TELLING)
    if found is None:
        return None
    return FetchedRows(Columns(data, *found, run.timestamp_type, records_of_run(data, at, run)), 0, run.records)


def records_of_run(data: bytes, at: int, run: BatchRun) -> Iterator[Any]:
    """Yield the records of some RecordBatches as objects. A damaged one raises what aiokafka raises."""
    for batch, begin, end in batches_between(data, at, run.stop):
        yield from readable(batch, data, begin, end)
