"""Group codes: small numbers for the groups of a shard, so that what is known of each is in columns (Q20, Q25)."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.narrow_order import argsort_narrow
from lapse.core.queue.arrival.trait import OWN_GROUP
from lapse.core.queue.segments.segment import SIZE, Segment, Where, count_of

_KEPT: Final = 1024
"""For how many segments the codes of their messages are kept: 16 KiB each."""

_SORTED: Final = 16
"""For how many of them these are sorted: 64 KiB each."""

_FEW_OF: Final = 8
"""The codes of fewer than one in this number of a segment's messages are looked up without keeping any."""

_LEAST_FORGOTTEN: Final = 16_384
"""Codes of groups that are not needed any more are forgotten from this number on."""

_LEAST: Final = 64

_LOW_BITS: Final = 0xFFFF


class GroupCodes:
    """The codes of groups, and how many messages of each are leased, sent, delayed or transferring.

    The code 0 is that of messages without a group, which are not counted.

    Attributes:
        bound: by code, how many messages are leased, sent, delayed or transferring.
        delayed: by code, how many of these are neither leased nor sent.
        hashes: by code, the hash of the group.
        changed: codes of groups for which one of these counts has changed since they were looked at.
        keeps_columns: whether the codes of whole segments are kept. Otherwise only bound groups get codes.
    """

    def __init__(self) -> None:
        self._codes = _Codes()
        self._columns: dict[int, _Column] = {}
        self._sorted: dict[int, tuple[NDArray[np.intp], NDArray[np.intp]]] = {}
        self._crowded_at = _LEAST_FORGOTTEN
        self.hashes = np.zeros(_LEAST, np.int64)
        self.bound = np.zeros(_LEAST, np.int64)
        self.delayed = np.zeros(_LEAST, np.int64)
        self.changed: list[NDArray[np.int32]] = []
        self.keeps_columns = False

    def __len__(self) -> int:
        return len(self._codes)

    def find(self, group: int) -> int:
        """Return the code of a group, given its hash; 0 if it has none."""
        return self._codes.get(group, 0)

    def code(self, group: int) -> int:
        """Return the code of a group, given its hash."""
        code = self._codes[group]
        self._fit()
        self.hashes[code] = group
        return code

    def of(self, segment: Segment, where: Where) -> NDArray[np.int32]:
        """Return the codes of some messages of a segment."""
        if segment.groups is None:
            return np.zeros(count_of(where), np.int32)
        known = self._columns.get(segment.index)
        if known is None and (not self.keeps_columns or count_of(where) * _FEW_OF < segment.used):
            return self._number(segment.groups[where])
        if known is None:
            if len(self._columns) >= _KEPT:
                del self._columns[next(iter(self._columns))]
            known = self._columns[segment.index] = _Column()
        if known.used < segment.used:
            known.codes[known.used : segment.used] = self._number(segment.groups[known.used : segment.used])
            known.used = segment.used
        return known.codes[where]

    def sorted(self, segment: Segment) -> tuple[NDArray[np.intp], NDArray[np.intp]]:
        """Return the codes of all messages of a segment, sorted, and the slots of these."""
        known = self._sorted.get(segment.index)
        if known is None or len(known[0]) < segment.used:
            codes = self.of(segment, slice(0, segment.used))
            slots = argsort_narrow(codes)
            if known is None and len(self._sorted) >= _SORTED:
                del self._sorted[next(iter(self._sorted))]
            known = self._sorted[segment.index] = codes[slots].astype(np.intp), slots
        return known

    def drop(self, segment: Segment) -> None:
        """Forget what is kept of a segment that was dropped."""
        self._columns.pop(segment.index, None)
        self._sorted.pop(segment.index, None)

    def keep_columns(self, keeps: bool) -> None:
        """Keep the codes of whole segments, or forget them."""
        self.keeps_columns = keeps
        self._columns.clear()
        self._sorted.clear()
        self.changed.clear()

    def count(self, codes: NDArray[np.int32], by: int, delayed: bool) -> None:
        """Add or subtract (`by`) messages of groups; `delayed` tells whether they are neither leased nor sent."""
        np.add.at(self.bound, codes, by)
        if delayed:
            np.add.at(self.delayed, codes, by)
        self.changed.append(codes)

    def counted(self, codes: NDArray[np.int32]) -> list[tuple[int, int]]:
        """Return how many of some codes each group has, by its hash. Messages without a group are not counted."""
        if len(codes) == 1:
            return [(int(self.hashes[codes[0]]), 1)] if codes[0] else []
        counts = np.bincount(codes, minlength=1)
        counts[0] = 0
        found = np.flatnonzero(counts)
        return list(zip(self.hashes[found].tolist(), counts[found].tolist(), strict=True))

    def _number(self, groups: NDArray[np.int64]) -> NDArray[np.int32]:
        """Return the codes of groups, given as hashes."""
        if len(groups) < 2:
            return np.array(list(map(self.code, groups.tolist())), np.int32)
        order = argsort_narrow(groups & _LOW_BITS)  # hashes with equal bits are mostly of one group
        ordered = groups[order]
        firsts = np.concatenate(([0], np.flatnonzero(ordered[1:] != ordered[:-1]) + 1))
        distinct = ordered[firsts]
        codes = np.fromiter(map(self._codes.__getitem__, distinct.tolist()), np.int32, len(distinct))
        self._fit()
        self.hashes[codes] = distinct
        found = np.empty(len(order), np.int32)
        found[order] = np.repeat(codes, np.diff(firsts, append=len(order)))
        return found

    def _fit(self) -> None:
        """Make room for all codes."""
        if len(self._codes) > len(self.hashes):
            room = 2 * len(self._codes)
            self.hashes = enlarged(self.hashes, room, 0)
            self.bound = enlarged(self.bound, room, 0)
            self.delayed = enlarged(self.delayed, room, 0)

    # Forgetting

    @property
    def are_many(self) -> bool:
        """Whether there are so many codes that those of groups not needed any more must be forgotten."""
        return len(self._codes) >= self._crowded_at

    def keep(self, needed: NDArray[np.bool_]) -> NDArray[np.intp]:
        """Forget all codes but those of bound groups and of `needed` ones. Return the former code of each."""
        count = len(self._codes)
        needed = needed[:count] | (self.bound[:count] > 0)
        needed[0] = True
        kept = np.flatnonzero(needed)
        self.hashes, self.bound, self.delayed = (
            enlarged(column[kept], len(column), 0) for column in (self.hashes, self.bound, self.delayed)
        )
        self._codes = _Codes(zip(self.hashes[: len(kept)].tolist(), range(len(kept)), strict=True))
        self._columns.clear()
        self._sorted.clear()
        self.changed.clear()
        self._crowded_at = max(_LEAST_FORGOTTEN, 2 * len(kept))
        return kept


class _Codes(dict[int, int]):
    """The code of each hash. A new one gets the next number."""

    def __init__(self, known: object = ((OWN_GROUP, 0),)) -> None:
        super().__init__(known)  # type: ignore[call-overload]

    def __missing__(self, group: int) -> int:
        self[group] = code = len(self)
        return code


class _Column:
    """The codes of a segment's messages, by slot."""

    __slots__ = ("codes", "used")

    def __init__(self) -> None:
        self.codes = np.zeros(SIZE, np.int32)
        self.used = 0


def enlarged(column: NDArray[np.int64], size: int, value: int) -> NDArray[np.int64]:
    """Return a column of another size, whose further values are all the same."""
    found = np.full(size, value, np.int64)
    found[: min(size, len(column))] = column[:size]
    return found
