"""A record that lapse has decoded itself, in the form of aiokafka's."""

from __future__ import annotations

from typing import ClassVar, NamedTuple


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


class UnreadRecord:
    """A record of a RecordBatch that is too large to be decompressed. Kafka still has it; here it has no content.

    Args:
        offset: see `ReadRecord`.
        timestamp: see `ReadRecord`; the same for all records of the batch.
        timestamp_type: see `ReadRecord`.
        why: why the batch is not read.
    """

    __slots__ = ("offset", "timestamp", "timestamp_type", "why")

    key: ClassVar[None] = None
    value: ClassVar[None] = None
    headers: ClassVar[tuple[()]] = ()

    def __init__(self, offset: int, timestamp: int, timestamp_type: int, why: str) -> None:
        self.offset = offset
        self.timestamp = timestamp
        self.timestamp_type = timestamp_type
        self.why = why
