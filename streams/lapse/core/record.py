"""The interface of a Kafka record for the core, which aiokafka's `ConsumerRecord` satisfies."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Record(Protocol):
    """A record of a partition."""

    @property
    def offset(self) -> int:
        """The record's offset."""

    @property
    def timestamp(self) -> int:
        """The record's timestamp, ms since the epoch; -1 = none (L1)."""

    @property
    def key(self) -> bytes | None:
        """The record's key bytes."""

    @property
    def value(self) -> bytes | None:
        """The record's value bytes; None = a tombstone."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """The record's headers in order, repeated names included."""


class RewoundRecord(NamedTuple):
    """The record of a message that a rewind brought back. Its offset is the message's position (C61)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
