"""Reads the heads of fetched RecordBatches."""

from __future__ import annotations

from typing import Final

from lapse.runtime.kafka.batch_body import BatchBody
from lapse.runtime.kafka.decompression import CODEC, HEAD, MAGIC, MAGIC_AT

_BY_THE_BROKER: Final = 0x08
"""The bit of the attributes that says that the broker set one timestamp for all, the latest."""


def body_of(data: bytes, at: int, stop: int, least: int = 0) -> BatchBody | None:
    """Read the head of a RecordBatch; return None for an unknown format, or a batch that is compressed.

    Args:
        data: the bytes of a fetch.
        at: where the batch begins.
        stop: where it ends.
        least: return None if there are fewer records.
    """
    if data[at + MAGIC_AT] != MAGIC:
        return None  # its head may be shorter
    base_offset, _, attributes, _, first_ms, latest_ms, *_, count = HEAD.unpack_from(data, at)
    if attributes & CODEC or count < least:
        return None
    append_ms = latest_ms if attributes & _BY_THE_BROKER else None
    return BatchBody(data, at + HEAD.size, stop, count, base_offset, first_ms, append_ms)


def unread_range(data: bytes, at: int) -> tuple[range, int, int]:
    """Return the offsets of a RecordBatch, the timestamp of all that is known of it, ms, and who set it (0 or 1)."""
    base_offset, _, attributes, last_delta, first_ms, latest_ms, *_ = HEAD.unpack_from(data, at)
    by_the_broker = bool(attributes & _BY_THE_BROKER)
    return range(base_offset, base_offset + last_delta + 1), latest_ms if by_the_broker else first_ms, by_the_broker
