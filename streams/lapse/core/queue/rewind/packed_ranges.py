"""Packed ranges: offsets of a stretch as the journal holds them, as ranges or, if these are many, as bits.

A log may have gaps everywhere, for example one behind each transaction. Then every message is a range of its own.
"""

from __future__ import annotations

import zlib
from base64 import b85decode, b85encode
from typing import Any, Final

import numpy as np

from lapse.core.queue.arrival.offset_ranges import OffsetRanges

STRETCH_BITS: Final = 16
"""Offsets are kept by stretches of 2 ** `STRETCH_BITS`."""

_STRETCH: Final = 1 << STRETCH_BITS

_FEW: Final = 256
"""The greatest number of ranges that are kept as they are. Bits take at most 10 KiB, usually much less."""


def pack(ranges: OffsetRanges) -> Any:
    """Return ranges of one stretch as a value for JSON."""
    if len(ranges) <= _FEW:
        return list(ranges)
    firsts, lasts = ranges.columns()
    base = int(firsts[0]) >> STRETCH_BITS << STRETCH_BITS
    edges = np.zeros(_STRETCH + 1, np.int8)
    edges[firsts - base] = 1
    edges[lasts + 1 - base] = -1
    bits = np.packbits(np.cumsum(edges[:-1], dtype=np.int8).astype(bool))
    return {"base": base, "bits": b85encode(zlib.compress(bits.tobytes(), 1)).decode()}


def unpack(value: Any) -> OffsetRanges:
    """Read ranges that `pack` wrote."""
    if not isinstance(value, dict):
        return OffsetRanges(value)
    bits = np.unpackbits(np.frombuffer(zlib.decompress(b85decode(value["bits"])), np.uint8))
    edges = np.flatnonzero(np.diff(bits.astype(np.int8), prepend=0, append=0)) + int(value["base"])
    return OffsetRanges.of_columns(edges[::2], edges[1::2] - 1)
