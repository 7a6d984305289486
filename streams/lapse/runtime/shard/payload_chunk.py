"""Payloads that were read together."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.runtime.kafka.fetched_rows import FetchedRows, copied
from lapse.runtime.shard.log import Record

_LEAST: Final = 8
"""For fewer records, columns cost more than objects."""


def record_offset(record: Record) -> int:
    """Return a record's offset, as a key to search for."""
    return int(record.offset)


class Chunk:
    """Records of one source in the order of their offsets, as they were read together."""

    __slots__ = ("first", "left", "records", "size", "used_at")

    def __init__(self, records: Sequence[Record], size: int, used_at: int) -> None:
        self.first: int = records[0].offset
        self.records = records
        self.left = len(records)
        self.size = size
        self.used_at = used_at

    def find(self, offset: int) -> Record | None:
        """Return the record at an offset; None if the chunk does not have it."""
        at = offset - self.first
        if 0 <= at < len(self.records) and self.records[at].offset == offset:
            return self.records[at]
        at = bisect_right(self.records, offset, key=record_offset) - 1
        if at >= 0 and self.records[at].offset == offset:
            return self.records[at]
        return None

    def run(self, first: int, stop: int) -> tuple[list[Record | None], int]:
        """Return records from an offset on, up to `stop` or the chunk's end, and their number.

        None stands for each offset that the chunk does not have.
        """
        behind = self.records[-1].offset + 1
        stop = min(stop, behind)
        if first >= stop:
            return [], 0
        if len(self.records) == behind - self.first:
            return list(self.records[first - self.first : stop - self.first]), stop - first
        records = [self.find(offset) for offset in range(first, stop)]
        return records, sum(record is not None for record in records)

    def count(self, offsets: NDArray[np.int64]) -> int:
        """Return how many of some ascending offsets, none of them before its first one, the chunk has."""
        records = self.records
        size = int(np.searchsorted(offsets, records[-1].offset, "right"))
        if len(records) == records[-1].offset + 1 - self.first:
            return size
        if isinstance(records, FetchedRows):
            there, wanted = records.offsets, offsets[:size]
            return int(np.count_nonzero(there[np.searchsorted(there, wanted)] == wanted))
        return sum(self.find(offset) is not None for offset in offsets[:size].tolist())


def gathered(chunks: Sequence[Chunk], offsets: NDArray[np.int64]) -> tuple[FetchedRows, dict[int, int]] | None:
    """Copy the records at ascending offsets out of chunks in the order of the log.

    Returns:
        The records, and how many each chunk has, by its index. None if they are few, or not all there in columns.
    """
    if len(offsets) < _LEAST or not chunks or not bool((offsets[1:] > offsets[:-1]).all()):
        return None
    which = np.searchsorted(np.array([chunk.first for chunk in chunks]), offsets, "right") - 1
    picked: list[tuple[FetchedRows, int]] = []
    counts: dict[int, int] = {}
    for at, offset in zip(which.tolist(), offsets.tolist(), strict=True):
        records = chunks[at].records
        if at < 0 or not isinstance(records, FetchedRows) or (row := records.row_of(offset)) is None:
            return None
        picked.append((records, row))
        counts[at] = counts.get(at, 0) + 1
    rows = copied(picked)
    return None if rows is None else (rows, counts)
