"""Ranges of messages in columns, and their bytes in an event, which may have a thousand of them (D4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

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
    source = np.frombuffer(packed_source(run.topic, run.partition), np.uint8)
    count = len(run.firsts)
    parts = [(np.tile(source, (count, 1)), np.ones((count, len(source)), bool)), *map(_varints, run[2:])]
    columns, used = (np.concatenate(some, axis=1) for some in zip(*parts, strict=True))
    packed: bytes = columns[used].tobytes()
    return packed


def _varints(values: NDArray[np.int64]) -> tuple[NDArray[np.uint8], NDArray[np.bool_]]:
    """Return the bytes of numbers as Avro encodes a `long` that is not negative, and which of them are used."""
    left = values.astype(np.uint64) << np.uint64(1)
    width = max(1, -(-int(left.max()).bit_length() // 7))
    columns, used = np.empty((len(left), width), np.uint8), np.empty((len(left), width), bool)
    for at in range(width):
        used[:, at] = (left > 0) | (at == 0)
        low, left = left & np.uint64(0x7F), left >> np.uint64(7)
        columns[:, at] = low | ((left > 0).astype(np.uint64) << np.uint64(7))
    return columns, used
