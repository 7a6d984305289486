"""The body of a fetched RecordBatch: its records, uncompressed, and what they share."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class BatchBody:
    """The records of a RecordBatch.

    Attributes:
        data: bytes with the records, uncompressed.
        at: where the records begin in them.
        stop: where the records end.
        count: the number of records.
        base_offset: the base of their offsets.
        first_ms: the base of their timestamps, ms since the epoch.
        append_ms: the timestamp of all, if the broker set it, ms since the epoch; None if each has its own.
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
        """Who set the timestamps, as aiokafka has it: 0 for producers, 1 for the broker."""
        return int(self.append_ms is not None)
