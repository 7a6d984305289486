"""Many packed records in one piece of memory. An object for a record is made only if it is needed."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final, TypeVar

import numpy as np
from numpy.typing import NDArray

from lapse.core.lazy_sequence import LazySequence
from lapse.runtime.kafka import columns

R = TypeVar("R")
"""A packed record."""

_BEFORE_NUMBER: Final = 2
"""The bytes of attributes and timestamp, one each."""


class PackedRun(LazySequence[bytes]):
    """Records in the format of `packed_record`, one behind the other. A single item is bytes.

    Args:
        data: the records.
        ends: the end of each.
    """

    __slots__ = ("_data", "_ends")

    def __init__(self, data: NDArray[np.uint8], ends: NDArray[np.int64]) -> None:
        self._data = data
        self._ends = ends

    def __len__(self) -> int:
        return len(self._ends)

    def item(self, at: int) -> bytes:
        """Return a packed record, by its index from 0 on."""
        return self._data[int(self._ends[at - 1]) if at else 0 : int(self._ends[at])].tobytes()

    @classmethod
    def joined(cls, runs: Sequence[PackedRun]) -> PackedRun:
        """Join the records of several runs."""
        if len(runs) == 1:
            return runs[0]
        begins = np.cumsum([0, *(len(one._data) for one in runs[:-1])])
        ends = [one._ends + begin for one, begin in zip(runs, begins.tolist(), strict=True)]
        return cls(np.concatenate([one._data for one in runs]), np.concatenate(ends))

    def placed(self, first: int, stop: int, number: int, most_bytes: int) -> tuple[NDArray[np.uint8], int]:
        """Return records from `first` on as a RecordBatch contains them, and the index behind the last that fits in.

        The first record of a batch may have any size.

        Args:
            first: index of the first record.
            stop: index behind the last record to take.
            number: the number of records in the batch before them.
            most_bytes: the most bytes to take.
        """
        lengths = np.diff(self._ends[first:stop], prepend=self._ends[first - 1] if first else 0)
        lengths += _BEFORE_NUMBER + _varint_bytes(np.arange(number, number + stop - first))
        lengths += _varint_bytes(lengths)
        sizes = np.cumsum(lengths)
        fit = int(np.searchsorted(sizes, most_bytes, "right"))
        if not fit:
            if number:
                return np.empty(0, np.uint8), first
            fit = 1
        stop = first + fit
        return columns.places(self._data, self._ends, first, stop, number, int(sizes[fit - 1])), stop


def joined(parts: Sequence[Sequence[R]]) -> Sequence[R | bytes]:
    """Join packed records of several parts, in one piece of memory if all parts are."""
    runs = [part for part in parts if isinstance(part, PackedRun)]
    return PackedRun.joined(runs) if runs and len(runs) == len(parts) else list(chain.from_iterable(parts))


def _varint_bytes(numbers: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return how many bytes Kafka's encoding takes for numbers that are not negative."""
    return np.searchsorted(_VARINT_BEYOND, numbers, "right") + 1


_VARINT_BEYOND: Final = np.array([1 << (7 * count - 1) for count in range(1, 9)], np.int64)
"""From each of these numbers on, a varint takes one more byte: a byte has seven bits of twice the number."""
