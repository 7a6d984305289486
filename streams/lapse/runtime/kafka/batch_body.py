"""The body of a fetched RecordBatch: its records, uncompressed, and what they share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchBody:
    """The records of a RecordBatch.

    Attributes:
        data: bytes that hold them, uncompressed.
        at: where they begin.
        stop: where they end.
        count: how many there are.
        base_offset: to which their offsets are added.
        first_ms: to which their timestamps are added, ms since the epoch.
        append_ms: the timestamp of all, if the broker gave it; None = each has its own.
    """

    data: bytes
    at: int
    stop: int
    count: int
    base_offset: int
    first_ms: int
    append_ms: int | None

    @property
    def timestamp_type(self) -> int:
        """Who gave the timestamps, as aiokafka has it: 0 = producers, 1 = the broker."""
        return int(self.append_ms is not None)
