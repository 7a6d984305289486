"""A record that lapse has read itself, in the form of aiokafka's."""

from __future__ import annotations

from typing import NamedTuple


class ReadRecord(NamedTuple):
    """A record without topic and partition, as aiokafka reads it from a RecordBatch.

    Attributes:
        offset: its place in the partition.
        timestamp: ms since the epoch.
        timestamp_type: 0 = the producer gave the timestamp, 1 = the broker did.
        key: its key.
        value: its value.
        headers: names and values, in their order.
    """

    offset: int
    timestamp: int
    timestamp_type: int
    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
