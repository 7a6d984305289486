"""Places in the journal: packed as ranges, or as bits if the ranges would be many and short.

So a change takes at most one bit for each place that it spans, and a step fits into one RecordBatch whatever pattern
its messages have.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np

from lapse.core.queue.change import Places, columns_of, every_of, join_places

_BITS: Final = 12
_BLOCK: Final = 1 << _BITS
_BLOCK_BYTES: Final = 8 + _BLOCK // 8
_RANGE: Final = struct.Struct("<qq")
_RANGE_BYTES: Final = _RANGE.size


def size_of(places: Places) -> int:
    """Return an upper bound of the packed size of places, in bytes."""
    if not places:
        return 0
    spread = (places[-1][0] + places[-1][1] - places[0][0]) // _BLOCK + 2
    return min(_RANGE_BYTES * len(places), _BLOCK_BYTES * spread)


def pack(places: Places) -> tuple[bytes, bool]:
    """Return the bytes of places, and whether they are packed as bits."""
    if len(places) == 1:  # true for most changes
        return _RANGE.pack(*places[0]), False
    ranges = np.ascontiguousarray(columns_of(places).T, "<i8")
    if len(ranges) * _RANGE_BYTES <= 2 * _BLOCK_BYTES:
        return ranges.tobytes(), False
    firsts, counts = ranges[:, 0], ranges[:, 1]
    blocks = np.unique(np.concatenate([firsts >> _BITS, (firsts + counts - 1) >> _BITS]))
    long = counts > _BLOCK
    if long.any() or len(blocks) * _BLOCK_BYTES >= len(ranges) * _RANGE_BYTES:
        return ranges.tobytes(), False
    every = every_of(places)
    if every is None:
        # The sequence of all places as differences: 1 inside a range, the gap at the start of a range.
        steps = np.ones(int(counts.sum()), np.int64)
        starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
        steps[starts] = np.concatenate([firsts[:1], firsts[1:] - (firsts[:-1] + counts[:-1] - 1)])
        every = np.cumsum(steps)
    bits = np.zeros(len(blocks) * _BLOCK, bool)
    bits[np.searchsorted(blocks, every >> _BITS) * _BLOCK + (every & (_BLOCK - 1))] = True
    return blocks.astype("<i8").tobytes() + np.packbits(bits).tobytes(), True


def unpack(data: bytes, as_bits: bool) -> Places:
    """Read places that `pack` wrote."""
    if not as_bits:
        return [(first, count) for first, count in np.frombuffer(data, "<i8").reshape(-1, 2).tolist()]
    count = len(data) // _BLOCK_BYTES
    blocks = np.frombuffer(data, "<i8", count)
    found = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8, offset=8 * count)))
    return join_places((blocks[found >> _BITS] << _BITS) + (found & (_BLOCK - 1)))
