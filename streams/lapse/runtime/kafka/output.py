"""Records to be written to Kafka: single ones, and many that are packed already."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

MAX_BATCH_BYTES: Final = 4 << 20
"""Largest RecordBatch that lapse writes; topics that it creates accept twice that."""

Headers = list[tuple[str, bytes]]


class Output(NamedTuple):
    """One record to be written."""

    topic: str
    partition: int
    key: bytes | None
    value: bytes | None
    headers: Headers


class Packed(NamedTuple):
    """Many records for one partition, each as a RecordBatch holds it.

    Attributes:
        topic: where they go.
        partition: of it.
        records: see `packed_record`.
    """

    topic: str
    partition: int
    records: Sequence[bytes]
