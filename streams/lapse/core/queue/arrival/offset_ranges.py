"""Offset ranges: a set of offsets of a partition, stored as the fewest ranges possible."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
from numpy.typing import NDArray

Range = tuple[int, int]
"""First and last offset, both included."""


class OffsetRanges:
    """A set of offsets as ascending, disjoint ranges.

    Args:
        ranges: the ranges (first, last) to start with.
    """

    def __init__(self, ranges: Iterable[Iterable[int]] = ()) -> None:
        self._firsts: list[int] = []
        self._lasts: list[int] = []
        for first, last in ranges:
            self.add(first, last)

    @classmethod
    def of_columns(cls, firsts: NDArray[np.int64], lasts: NDArray[np.int64]) -> Self:
        """Return the set of ascending ranges that do not touch each other, given as columns."""
        found = cls()
        found._firsts, found._lasts = firsts.tolist(), lasts.tolist()
        return found

    def columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and the last offset of each range."""
        return np.array(self._firsts, np.int64), np.array(self._lasts, np.int64)

    def __iter__(self) -> Iterator[Range]:
        return zip(self._firsts, self._lasts, strict=True)

    def __len__(self) -> int:
        return len(self._firsts)

    def __contains__(self, offset: int) -> bool:
        at = bisect_right(self._firsts, offset) - 1
        return at >= 0 and offset <= self._lasts[at]

    def add(self, first: int, last: int) -> None:
        """Add the offsets of a range, and merge it with the ranges that it touches."""
        low = bisect_left(self._lasts, first - 1)
        high = bisect_right(self._firsts, last + 1)
        if low < high:
            first, last = min(first, self._firsts[low]), max(last, self._lasts[high - 1])
        self._firsts[low:high] = [first]
        self._lasts[low:high] = [last]

    def parts_between(self, first: int, last: int) -> Iterator[Range]:
        """Yield the parts of the ranges that lie between two offsets, both included."""
        for at in range(bisect_left(self._lasts, first), len(self._firsts)):
            if self._firsts[at] > last:
                return
            yield max(first, self._firsts[at]), min(last, self._lasts[at])

    def mask(self, offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
        """Return, for each of some offsets, whether it is in the set."""
        if not self._firsts:
            return np.zeros(len(offsets), bool)
        firsts, lasts = self.columns()
        at = np.searchsorted(firsts, offsets, "right") - 1
        inside: NDArray[np.bool_] = (at >= 0) & (offsets <= lasts[at])
        return inside
