"""The records of a queue shard's journal: their keys, and the content of a step's record (see `queue_journal`)."""

from __future__ import annotations

import struct
from collections.abc import Iterable
from typing import Final

from lapse.core.queue.arrival.source import Source
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.journal import packed_change
from lapse.core.queue.state import QueueState

KEY: Final = struct.Struct(">cqq")
"""A key of kind, epoch and number."""

NAMED_KEY: Final = struct.Struct(">cqiq")
"""A key of kind, epoch, and a message's source and offset."""

AS_OF: Final = struct.Struct("<q")
"""Precedes a segment: the sequence of the last step that the segment contains."""

_HEAD: Final = struct.Struct("<BqqqBHI")
_SOURCE: Final = struct.Struct("<Hiq")
_FORMAT: Final = 1

KEPT_APART: Final = frozenset(
    {
        ChangeKind.SUBSCRIBED,
        ChangeKind.UNSUBSCRIBED,
        ChangeKind.SCHEDULED,
        ChangeKind.UNSCHEDULED,
        ChangeKind.REMEMBERED,
        ChangeKind.HONOURED,
        ChangeKind.IDENTIFIED,
        ChangeKind.FORGOTTEN,
        ChangeKind.LETTER_PENDING,
        ChangeKind.LETTER_WRITTEN,
        ChangeKind.RETIRING,
        ChangeKind.USED,
        ChangeKind.TRANSFER,
        ChangeKind.REWIND,
        ChangeKind.DEPARTED,
        ChangeKind.COUNTED,
        ChangeKind.UNCOUNTED,
    }
)
"""Kinds of change that are written to records of their own, not into the step's record."""


def encode_step(state: QueueState, changes: list[Change]) -> bytes:
    """Return a step's record: the read position of each source, and all changes except those in `KEPT_APART`."""
    joined = [change for change in changes if change.kind not in KEPT_APART]
    parts = [
        _HEAD.pack(
            _FORMAT,
            state.sequence,
            state.next_place,
            state.subscription_table.next_number,
            state.paused,
            len(state.sources),
            len(joined),
        )
    ]
    for source in state.sources:
        name = source.topic.encode()
        parts += [_SOURCE.pack(len(name), source.partition, source.next_offset), name]
    for change in joined:
        parts += packed_change.pack(change)
    return b"".join(parts)


def _after_sources(value: bytes) -> tuple[list[Source], int]:
    source_count = _HEAD.unpack_from(value)[5]
    at = _HEAD.size
    sources: list[Source] = []
    for _ in range(source_count):
        length, partition, next_offset = _SOURCE.unpack_from(value, at)
        at += _SOURCE.size
        sources.append(Source(value[at : at + length].decode(), partition, next_offset))
        at += length
    return sources, at


def sequence_of(value: bytes) -> int:
    """Return the sequence of a step's record."""
    sequence: int = _HEAD.unpack_from(value)[1]
    return sequence


def is_paused(value: bytes) -> bool:
    """Return whether deliveries were paused after a step."""
    return bool(_HEAD.unpack_from(value)[4])


def sources_of(value: bytes) -> list[Source]:
    """Return the sources as they were after a step."""
    return _after_sources(value)[0]


def changes_of(value: bytes) -> Iterable[Change]:
    """Return the changes of a step's record."""
    _, at = _after_sources(value)
    return packed_change.unpack(value, at, _HEAD.unpack_from(value)[6])


def restore_head(state: QueueState, value: bytes) -> None:
    """Set the values of the whole shard that each step's record holds.

    Raises:
        ValueError: the step has another format than this version writes.
    """
    form, _, next_place, next_number, paused, _, _ = _HEAD.unpack_from(value)
    if form != _FORMAT:
        raise ValueError(f"journal step of format {form}; this version of lapse reads format {_FORMAT}")
    state.next_place, state.subscription_table.next_number, state.paused = next_place, next_number, bool(paused)
