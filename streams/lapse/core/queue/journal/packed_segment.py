"""Packed segments: the bytes of a segment in journal and spill store: a head, its runs, and its columns in use."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import Final

import numpy as np

from lapse.core.queue.arrival.trait import Traits
from lapse.core.queue.life.message_state import BINDS
from lapse.core.queue.segments.segment import LEASED, Run, Segment

_HEAD: Final = struct.Struct("<BqHHq")
_RUN: Final = struct.Struct("<HHqH")
_FORMAT: Final = 1
_NO_COUNTS: Final = 128
"""Column bit: no message was delivered, and the delivery counts are left out."""

_BEGINNINGS: Final = 256
"""Column bit: the starts of leases, at the end of the record. Older versions ignore them."""


def encode(segment: Segment) -> bytes:
    """Return the bytes of a segment."""
    used = segment.used
    columns = (
        (1 if segment.deadline_ms is not None else 0)
        | (2 if segment.cancels is not None and segment.cancels[:used].any() else 0)
        | (4 if segment.until_ms is not None and _has_holders(segment) else 0)
        | (8 if segment.ranks is not None else 0)
        | (16 if segment.flags is not None else 0)
        | (32 if segment.groups is not None else 0)
        | (64 if segment.retries is not None else 0)
        | (_NO_COUNTS if segment.is_undelivered else 0)
        | (_BEGINNINGS if _has_lease_starts(segment) else 0)
    )
    parts = [
        _HEAD.pack(_FORMAT, segment.index, used, len(segment.runs), columns),
        b"".join(_RUN.pack(*run) for run in segment.runs),
        segment.state[:used].tobytes(),
    ]
    if not columns & _NO_COUNTS:
        parts.append(segment.deliveries[:used].astype("<u4").tobytes())
    if columns & 1 and segment.deadline_ms is not None:
        parts.append(segment.deadline_ms[:used].astype("<i8").tobytes())
    if columns & 2 and segment.cancels is not None:
        parts.append(segment.cancels[:used].astype("<u4").tobytes())
    if columns & 4 and segment.holder is not None and segment.until_ms is not None:
        parts.append(segment.holder[:used].astype("<i4").tobytes())
        parts.append(segment.until_ms[:used].astype("<i8").tobytes())
    if segment.ranks is not None:
        parts.append(segment.ranks[:used].astype("<u8").tobytes())
    if segment.flags is not None:
        parts.append(segment.flags[:used].tobytes())
    if segment.groups is not None:
        parts.append(segment.groups[:used].astype("<i8").tobytes())
    if segment.retries is not None:
        parts.append(segment.retries[:used].astype("<i8").tobytes())
    if columns & _BEGINNINGS and segment.since_ms is not None:
        parts.append(segment.since_ms[:used].astype("<i8").tobytes())
    return b"".join(parts)


def decode(data: bytes | memoryview) -> Segment:
    """Read a segment.

    Raises:
        ValueError: the segment has another format than this version writes.
    """
    form, index, used, run_count, columns = _HEAD.unpack_from(data)
    if form != _FORMAT:
        raise ValueError(f"journal segment of format {form}; this version of lapse reads format {_FORMAT}")
    segment = Segment(index)
    segment.used = used
    at = _HEAD.size
    segment.runs = [Run(*_RUN.unpack_from(data, at + number * _RUN.size)) for number in range(run_count)]
    at += run_count * _RUN.size
    segment.state[:used] = np.frombuffer(data, np.uint8, used, at)
    at += used
    if not columns & _NO_COUNTS:
        segment.delivery_counts()[:used] = np.frombuffer(data, "<u4", used, at)
        at += 4 * used
    if columns & 1:
        segment.deadlines()[:used] = np.frombuffer(data, "<i8", used, at)
        at += 8 * used
    if columns & 2:
        segment.cancel_counts()[:used] = np.frombuffer(data, "<u4", used, at)
        at += 4 * used
    if columns & 4:
        holder, until_ms = segment.leases()
        holder[:used] = np.frombuffer(data, "<i4", used, at)
        at += 4 * used
        until_ms[:used] = np.frombuffer(data, "<i8", used, at)
        at += 8 * used
    sizes = [width * used if columns & bit else 0 for bit, width in ((8, 8), (16, 1), (32, 8))]
    if any(sizes):
        edges = [at, at + sizes[0], at + sizes[0] + sizes[1], at + sum(sizes)]
        segment.set_traits(0, used, Traits.decode(*(data[low:high] for low, high in pairwise(edges))))
        at = edges[-1]
    if columns & 64:
        segment.set_traits(0, used, Traits(retries=np.frombuffer(data, "<i8", used, at)))
        at += 8 * used
    if columns & _BEGINNINGS:
        segment.lease_starts()[:used] = np.frombuffer(data, "<i8", used, at)
    segment.recount()
    return segment


def _has_holders(segment: Segment) -> bool:
    """Return whether the columns of holders and instants are in use."""
    return bool(BINDS[segment.state[: segment.used]].any() or segment.returned_mask.any())


def _has_lease_starts(segment: Segment) -> bool:
    """Return whether the start of any lease is known."""
    return segment.since_ms is not None and bool((segment.state[: segment.used] == LEASED).any())
