"""Cuts ranges of places at the borders of segments."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.change import Places, columns_of, every_of
from lapse.core.queue.segments.segment import Where, where_of

_FEW: Final = 32
"""Up to this number, ranges are cut one by one. More are cut together, since then most are very short."""

_LONG: Final = 64
"""Ranges with this many places on average are never cut together: a million places take 20 ms to list."""


def cut(places: Places, size: int) -> Iterator[tuple[int, int, int]]:
    """Yield each range cut at segment borders, as index of the segment, first slot, and slot after the last."""
    for first, count in places:
        place, end = first, first + count
        while place < end:
            index, slot = divmod(place, size)
            stop = min(size, slot + end - place)
            yield index, slot, stop
            place += stop - slot


def by_segment(places: Places, size: int) -> Iterator[tuple[int, Where]]:
    """Yield ascending places by segment, as index of the segment and the slots in it."""
    if len(places) == 1:
        index, slot = divmod(places[0][0], size)
        if slot + places[0][1] <= size:  # true for most changes
            yield index, slice(slot, slot + places[0][1])
            return
    every = every_of(places)
    if every is not None:
        yield from _cut_sorted(every, size)
        return
    if len(places) > _FEW:
        firsts, counts = columns_of(places)
        if int(counts.sum()) < _LONG * len(places):
            yield from _cut_many(firsts, counts, size)
            return
    at = -1
    cuts: list[tuple[int, int]] = []
    for index, slot, stop in cut(places, size):
        if index != at and cuts:
            yield at, where_of(cuts)
            cuts = []
        at = index
        cuts.append((slot, stop))
    if cuts:
        yield at, where_of(cuts)


def _cut_many(firsts: NDArray[np.int64], counts: NDArray[np.int64], size: int) -> Iterator[tuple[int, Where]]:
    ends = np.cumsum(counts)
    yield from _cut_sorted(np.arange(int(ends[-1])) + np.repeat(firsts - ends + counts, counts), size)


def _cut_sorted(every: NDArray[np.int64], size: int) -> Iterator[tuple[int, Where]]:
    low, high = int(every[0]) // size, int(every[-1]) // size
    if high - low < len(every):
        borders = np.arange(low + 1, high + 1) * size
        edges = [0, *np.searchsorted(every, borders).tolist(), len(every)] if high > low else [0, len(every)]
    else:
        edges = [0, *(np.flatnonzero(np.diff(every // size)) + 1).tolist(), len(every)]
    for first, stop in pairwise(edges):
        if first == stop:
            continue
        index = int(every[first]) // size
        slots = every[first:stop] - index * size
        if int(slots[-1]) - int(slots[0]) == stop - first - 1:
            yield index, slice(int(slots[0]), int(slots[-1]) + 1)
        else:
            yield index, slots
