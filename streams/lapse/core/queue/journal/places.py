"""Places in the journal: packed as ranges, or as bits if the ranges would be many and short.

So a change takes at most one bit for each place that it spans, and a step fits into one RecordBatch whatever pattern
its messages have.
"""

from __future__ import annotations

import struct
from typing import Final

import numpy as np
from numpy.typing import NDArray

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
    count = len(places)
    if count * _RANGE_BYTES <= 2 * _BLOCK_BYTES:
        return _ranges(places), False
    every = every_of(places)
    if every is None:
        every = _every(places)
        if every is None:
            return _ranges(places), False
    of = every >> _BITS
    is_next = of[1:] != of[:-1]
    if (int(np.count_nonzero(is_next)) + 1) * _BLOCK_BYTES >= count * _RANGE_BYTES:
        return _ranges(places), False
    numbers = np.zeros(len(every), np.int64)
    np.cumsum(is_next, out=numbers[1:])
    blocks = np.concatenate((of[:1], of[1:][is_next]))
    bits = np.zeros(len(blocks) * _BLOCK, bool)
    bits[(numbers << _BITS) + (every & (_BLOCK - 1))] = True
    return blocks.astype("<i8").tobytes() + np.packbits(bits).tobytes(), True


def _ranges(places: Places) -> bytes:
    return np.ascontiguousarray(columns_of(places).T, "<i8").tobytes()


def _every(places: Places) -> NDArray[np.int64] | None:
    """Return all places of ranges, ascending; None if a range is so long that bits would take more bytes."""
    firsts, counts = columns_of(places)
    if (counts > _BLOCK).any():
        return None
    # The sequence of all places as differences: 1 inside a range, the gap at the start of a range.
    steps = np.ones(int(counts.sum()), np.int64)
    starts = np.concatenate([[0], np.cumsum(counts)[:-1]])
    steps[starts] = np.concatenate([firsts[:1], firsts[1:] - (firsts[:-1] + counts[:-1] - 1)])
    return np.cumsum(steps)


def unpack(data: bytes, as_bits: bool) -> Places:
    """Read places that `pack` wrote."""
    if not as_bits:
        return [(first, count) for first, count in np.frombuffer(data, "<i8").reshape(-1, 2).tolist()]
    count = len(data) // _BLOCK_BYTES
    blocks = np.frombuffer(data, "<i8", count)
    found = np.flatnonzero(np.unpackbits(np.frombuffer(data, np.uint8, offset=8 * count)))
    return join_places((blocks[found >> _BITS] << _BITS) + (found & (_BLOCK - 1)))
