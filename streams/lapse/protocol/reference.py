"""Deliveries by reference, which name messages without their payloads (D4)."""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.protocol import codec
from lapse.protocol.bookmark import BookmarkRange

KIND: Final = b"reference"
"""The value of `lapse-kind` on a delivery by reference."""


_MOST: Final = (1 << 31) - 1
"""The most messages of a range. No subscription has a greater backlog."""


@dataclass(frozen=True, slots=True)
class Reference:
    """Messages of one partition that are handed to a subscription.

    Attributes:
        topic: the underlying topic.
        partition: the topic's partition.
        ranges: the messages in the order of delivery, each range with its delivery count.
        deadlines_ms: deadline of each message, ms since the epoch, `NEVER` without one; empty = none has one.
    """

    topic: str
    partition: int
    ranges: tuple[BookmarkRange, ...]
    deadlines_ms: tuple[int, ...] = ()

    def __len__(self) -> int:
        return sum(map(len, self.ranges))


def encode(topic: str, partition: int, ranges: Sequence[tuple[int, int, int]], deadlines_ms: bytes) -> bytes:
    """Encode a reference.

    Args:
        topic: the underlying topic.
        partition: its partition.
        ranges: first offset, last offset and delivery count of each range.
        deadlines_ms: deadline of each message, as a column of little-endian 64-bit numbers; empty = none has one.
    """
    record = {
        "topic": topic,
        "partition": partition,
        "ranges": [{"first": first, "last": last, "delivery_count": count} for first, last, count in ranges],
        "deadlines_ms": deadlines_ms,
    }
    return codec.encode("reference", record)


def decode(data: bytes) -> Reference:
    """Decode a reference.

    Raises:
        codec.CodecError: the bytes are not a reference.
    """
    record = codec.decode("reference", data)
    topic, partition, packed = record["topic"], record["partition"], record["deadlines_ms"]
    if len(packed) % 8:
        raise codec.CodecError(f"reference record: {len(packed)} bytes of deadlines, expected a multiple of 8")
    ranges = tuple(
        BookmarkRange(topic, partition, one["first"], one["last"], one["delivery_count"]) for one in record["ranges"]
    )
    if any(not 0 <= some.first <= some.last < some.first + _MOST for some in ranges):
        raise codec.CodecError("reference record: a range that ends before it begins, or has too many messages")
    if packed and len(packed) != 8 * sum(map(len, ranges)):
        raise codec.CodecError(f"reference record: {len(packed) // 8} deadlines, not one for each message")
    return Reference(topic, partition, ranges, struct.unpack(f"<{len(packed) // 8}q", packed))


__all__ = ["NEVER", "Reference", "decode", "encode"]
