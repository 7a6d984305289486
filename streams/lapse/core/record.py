"""What the core asks of a Kafka record; aiokafka's `ConsumerRecord` is one as it comes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol


class Record(Protocol):
    """One record of one partition."""

    @property
    def offset(self) -> int:
        """Its offset in the partition."""

    @property
    def timestamp(self) -> int:
        """Its timestamp, ms since the epoch; -1 = none (L1)."""

    @property
    def key(self) -> bytes | None:
        """Its key, untouched."""

    @property
    def value(self) -> bytes | None:
        """Its value, untouched; None is a tombstone."""

    @property
    def headers(self) -> Sequence[tuple[str, bytes]]:
        """Its headers in order, repeated names included."""


class Reborn(NamedTuple):
    """A record as that of a message that a rewind brought back: its offset is the message's position (C61)."""

    offset: int
    timestamp: int
    key: bytes | None
    value: bytes | None
    headers: Sequence[tuple[str, bytes]]
