"""A record that lapse has decoded itself, in the form of aiokafka's."""

from __future__ import annotations

from typing import NamedTuple


class ReadRecord(NamedTuple):
    """A record without topic and partition, as aiokafka reads it from a RecordBatch.

    Attributes:
        offset: its offset in the partition.
        timestamp: ms since the epoch.
        timestamp_type: 0 if the producer set the timestamp, 1 if the broker did.
        key: its key.
        value: its value.
        headers: names and values, in order.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
