"""Records to be written to Kafka: single ones, and many that are packed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from lapse.runtime.kafka.packed_record import PiecedRecord

MAX_BATCH_BYTES: Final = 4 << 20
"""The largest RecordBatch that lapse writes, bytes. Topics that it creates accept twice that."""

Headers = list[tuple[str, bytes]]


class Output(NamedTuple):
    """One record to be written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Packed(NamedTuple):
    """Many records for one partition, each as a RecordBatch contains it.

    Attributes:
        topic: the topic to write to.
        partition: its partition.
        records: see `packed_record`.
    """

    topic: str
    partition: int
    records: Sequence[bytes | PiecedRecord]
