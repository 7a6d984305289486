"""Ranges of messages in columns, and their bytes in an event, which may have a thousand of them (D4)."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.protocol.event import PackedRanges, packed_source


class SourceRanges(NamedTuple):
    """Ranges of one source: their first and last offsets."""

    topic: str
    partition: int
    firsts: NDArray[np.int64]
    lasts: NDArray[np.int64]


class RangeColumns:
    """Ranges of messages of one or more sources.

    Args:
        runs: the ranges by source, in order.
    """

    def __init__(self, runs: Sequence[SourceRanges]) -> None:
        self._runs = runs

    def __len__(self) -> int:
        return sum(len(run.firsts) for run in self._runs)

    def __getitem__(self, which: slice) -> RangeColumns:
        found, at = [], 0
        for run in self._runs:
            first, stop = max(0, which.start - at), max(0, which.stop - at)
            at += len(run.firsts)
            if first < min(stop, len(run.firsts)):
                found.append(SourceRanges(run.topic, run.partition, run.firsts[first:stop], run.lasts[first:stop]))
        return RangeColumns(found)

    def pack(self) -> PackedRanges:
        """Return the ranges as an event has them."""
        return PackedRanges(len(self), b"".join(map(_packed, self._runs)))


def _packed(run: SourceRanges) -> bytes:
    """Return the bytes of ranges, those of consecutive ranges with numbers of equally many bytes together."""
    source = np.frombuffer(packed_source(run.topic, run.partition), np.uint8)
    widths = _widths(run.firsts) * _APART + _widths(run.lasts)
    edges = [0, *((widths[1:] != widths[:-1]).nonzero()[0] + 1).tolist(), len(widths)]
    return b"".join(
        _packed_alike(source, run.firsts[first:stop], run.lasts[first:stop], divmod(int(widths[first]), _APART))
        for first, stop in pairwise(edges)
    )


_MOST_BYTES: Final = 10
"""The most bytes of a `long` in Avro."""

_APART: Final = 16
"""Two widths are compared as one number, in which this is the unit of the first."""

_STEPS: Final = np.array([1 << (7 * size - 1) for size in range(1, _MOST_BYTES)], np.uint64)
"""The least numbers that take two bytes, three bytes, and so on: a number is doubled for its sign."""


def _widths(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes each number takes."""
    low, high = int(values.min()), int(values.max())
    least, most = np.searchsorted(_STEPS, np.array([low, high], np.uint64), "right").tolist()
    if least == most:
        return np.full(len(values), least + 1)
    return np.searchsorted(_STEPS, values.astype(np.uint64), "right") + 1


def _packed_alike(
    source: NDArray[np.uint8], firsts: NDArray[np.int64], lasts: NDArray[np.int64], widths: tuple[int, int]
) -> bytes:
    """Return the bytes of ranges whose numbers have as many bytes as `widths` says."""
    at = len(source)
    packed = np.empty((len(firsts), at + sum(widths)), np.uint8)
    packed[:, :at] = source
    for values, width in zip((firsts, lasts), widths, strict=True):
        left = values.astype(np.uint64) << np.uint64(1)
        for byte in range(width):
            packed[:, at] = (
                left.astype(np.uint8) | 0x80 if byte < width - 1 else left
            )  # seven bits, and whether more come
            left >>= np.uint64(7)
            at += 1
    return packed.tobytes()
