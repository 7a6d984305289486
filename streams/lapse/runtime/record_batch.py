"""A RecordBatch that is filled by many records at a time."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence
from typing import Final

from aiokafka.producer.message_accumulator import BatchBuilder

MAX_BATCH_BYTES: Final = 4 << 20
"""Largest RecordBatch that lapse writes; topics that it creates accept twice that."""

Headers = list[tuple[str, bytes]]
Row = tuple[bytes | None, bytes | None, Headers]


class RecordBatch(BatchBuilder):
    """aiokafka's, without a call through its layers for each record: that costs as much as to write the record."""

    _relative_offset: int

    def __init__(self) -> None:
        super().__init__(MAX_BATCH_BYTES, 0)

    def add_rows(self, rows: Sequence[Row], first: int, stop: int, full_bytes: int) -> int:
        """Add rows from `first` on, and return the one behind the last that is in.

        It ends with the row that makes it larger than `full_bytes`, or before one that does not fit into
        `MAX_BATCH_BYTES`; the first may have any size.
        """
        append, size = self._builder.append, self._builder.size
        now_ms = int(time.time() * 1000)
        number = self._relative_offset
        for at in range(first, stop):
            key, value, headers = rows[at]
            if append(number, now_ms, key, value, headers) is None:
                stop = at
                break
            number += 1
            # Looked at behind the record: to measure it beforehand costs as much as to append it.
            if size() > full_bytes:
                stop = at + 1
                break
        self._relative_offset = number
        return stop

    def add_items(self, items: Iterable[tuple[bytes, bytes | None]], headers: Headers) -> bool:
        """Add keys and values that bear the same headers; False if they do not fit in."""
        append = self._builder.append
        now_ms = int(time.time() * 1000)
        number = self._relative_offset
        for key, value in items:
            if append(number, now_ms, key, value, headers) is None:
                return False
            number += 1
        self._relative_offset = number
        return True
