"""Deadline index: finds due records by deadline, without a scan (L10, L11).

The index has two wheels. The coarse wheel files keys by the second (1,024 ms) of their deadlines. When a second is
reached, its keys move in portions to the fine wheel, which files them by the millisecond. A key whose deadline moves to
a later instant keeps its entry, and is filed again when that comes up, so repeated updates cost nothing. Every filed
record has an entry that is not later than its deadline. When most entries are outdated, because records were deleted,
the index is rebuilt.

Cost per record: 8 bytes in a list; O(1) to file, O(log distinct instants) to find.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.portions import Portions, in_lots, run_to_end
from lapse.core.sow.records.record import DEADLINE, deadline_of

_SHIFT: Final = 10
_SLACK: Final = 65_536
_STALE_KEPT: Final = 64
_REBUILT: Final = 1_024
"""How many records a portion files when the index is rebuilt."""

_MOVED_AT_ONCE: Final = 4_000
"""The greatest number of keys that one call moves to the fine wheel, since any number may share a second."""


class DeadlineIndex:
    """The index of one shard's deadlines.

    Args:
        entries: the shard's packed records, whose deadlines are authoritative.
    """

    __slots__ = ("_coarse", "_coarse_order", "_entries", "_filed", "_fine", "_fine_order", "_moving", "_open")

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries = entries
        self._reset()

    def _reset(self) -> None:
        self._coarse: dict[int, list[bytes]] = {}
        self._coarse_order: list[int] = []
        self._fine: dict[int, list[bytes]] = {}
        self._fine_order: list[int] = []
        self._open = -(1 << 63)
        """The last second whose keys are on the fine wheel, or moving to it."""
        self._moving: list[bytes] = []
        self._filed = 0

    def add(self, key: bytes, deadline_ms: int, before_ms: int = NEVER) -> None:
        """File a key under its deadline, unless it has an earlier entry.

        Args:
            key: the record's journal key.
            deadline_ms: its deadline, ms since the epoch; `NEVER` is not filed.
            before_ms: its former deadline, ms since the epoch; `NEVER` for a new record.
        """
        if deadline_ms == NEVER or before_ms <= deadline_ms:
            return
        self._file(key, deadline_ms)
        if self._filed > 2 * len(self._entries) + _SLACK:
            self.rebuild()

    def add_all(self, some: Sequence[tuple[bytes, int]]) -> None:
        """File keys under deadlines, ms since the epoch, that are earlier than their former ones."""
        file = self._file
        for key, deadline_ms in some:
            file(key, deadline_ms)
        if self._filed > 2 * len(self._entries) + _SLACK:
            self.rebuild()

    def _file(self, key: bytes, deadline_ms: int) -> None:
        second = deadline_ms >> _SHIFT
        if second <= self._open:
            self._add_fine(key, deadline_ms)
        else:
            keys = self._coarse.get(second)
            if keys is None:
                self._coarse[second] = [key]
                heapq.heappush(self._coarse_order, second)
            else:
                keys.append(key)
        self._filed += 1

    def rebuild(self) -> None:
        """Rebuild the index from the records."""
        run_to_end(self.rebuilding())

    def rebuilding(self) -> Portions[None]:
        """Rebuild the index in portions, as a restored shard does."""
        self._reset()
        coarse = self._coarse
        filed = 0
        unpack = DEADLINE.unpack_from
        for some in in_lots(self._entries.items(), _REBUILT):
            for key, entry in some:
                (deadline_ms,) = unpack(entry)
                if deadline_ms != NEVER:
                    second = deadline_ms >> _SHIFT
                    keys = coarse.get(second)
                    if keys is None:
                        coarse[second] = [key]
                    else:
                        keys.append(key)
                    filed += 1
            yield
        self._filed = filed
        self._coarse_order = sorted(coarse)

    def next_due_ms(self) -> int | None:
        """Return the earliest deadline or an instant up to a second before, ms since the epoch; None without one."""
        fine_ms = self._next_fine_ms()
        if self._moving:
            moving_ms = self._open << _SHIFT
            return moving_ms if fine_ms is None else min(fine_ms, moving_ms)
        if not self._coarse_order:
            return fine_ms
        coarse_ms = self._coarse_order[0] << _SHIFT
        return coarse_ms if fine_ms is None else min(fine_ms, coarse_ms)

    def due(self, until_ms: int, limit: int) -> tuple[list[bytes], bool]:
        """Remove and return keys with a deadline up to `until_ms`, earliest first.

        Args:
            until_ms: an instant, ms since the epoch.
            limit: the greatest number of keys.

        Returns:
            The keys, whose records exist and are due, and whether others may be left.
        """
        entries = self._entries
        unpack = DEADLINE.unpack_from
        found: dict[bytes, None] = {}  # a key may be filed several times under one millisecond
        moved = False
        while True:
            if self._moving or self._open_due_second(until_ms):
                if moved:
                    return list(found), True
                moved = True
                self._move_keys()
                if self._moving:
                    return list(found), True
                continue
            if not self._fine_order or self._fine_order[0] > until_ms:
                return list(found), False
            if len(found) >= limit:
                return list(found), True
            instant_ms = self._fine_order[0]
            keys = self._fine[instant_ms]
            room = limit - len(found)
            if len(keys) > room:
                # Any number may share a millisecond, such as the end of a day. The next call returns the rest.
                self._fine[instant_ms], keys = keys[room:], keys[:room]
            else:
                heapq.heappop(self._fine_order)
                del self._fine[instant_ms]
            self._filed -= len(keys)
            for key in dict.fromkeys(keys):
                entry = entries.get(key)
                if entry is not None:
                    (deadline_ms,) = unpack(entry)
                    if deadline_ms == instant_ms:
                        found[key] = None
                    elif instant_ms < deadline_ms != NEVER:
                        self._file(key, deadline_ms)

    def count_due(self, until_ms: int) -> int:
        """Return how many records are due at an instant, ms since the epoch, without examining others."""
        keys = set(self._moving)
        for instant_ms, some in self._fine.items():
            if instant_ms <= until_ms:
                keys.update(some)
        for second, some in self._coarse.items():
            if second << _SHIFT <= until_ms:
                keys.update(some)
        found = (self._entries.get(key) for key in keys)
        return sum(entry is not None and deadline_of(entry) <= until_ms for entry in found)

    def _next_fine_ms(self) -> int | None:
        """Return the earliest millisecond with a current entry, and drop outdated ones before it."""
        entries = self._entries
        while self._fine_order:
            instant_ms = self._fine_order[0]
            keys = self._fine[instant_ms]
            for at, key in enumerate(keys):
                entry = entries.get(key)
                if entry is not None and deadline_of(entry) == instant_ms:
                    if at > _STALE_KEPT:  # otherwise the same outdated keys would be skipped each time
                        self._fine[instant_ms] = keys[at:]
                        self._refile(keys[:at], instant_ms)
                    return instant_ms
            heapq.heappop(self._fine_order)
            del self._fine[instant_ms]
            self._refile(keys, instant_ms)
        return None

    def _refile(self, keys: list[bytes], instant_ms: int) -> None:
        """File again the keys whose deadline has moved to a later instant. The others are filed elsewhere, or gone."""
        self._filed -= len(keys)
        for key in keys:
            entry = self._entries.get(key)
            if entry is not None and instant_ms < (deadline_ms := deadline_of(entry)) != NEVER:
                self._file(key, deadline_ms)

    def _open_due_second(self, until_ms: int) -> bool:
        """Return whether the next second must move to the fine wheel. If so, begin to move it."""
        if not self._coarse_order or self._coarse_order[0] << _SHIFT > until_ms:
            return False
        if self._fine_order and self._fine_order[0] < self._coarse_order[0] << _SHIFT:
            return False
        second = heapq.heappop(self._coarse_order)
        self._open = max(self._open, second)
        self._moving = self._coarse.pop(second)
        self._moving.reverse()
        return True

    def _move_keys(self) -> None:
        """Move some keys of the open second to the fine wheel."""
        entries = self._entries
        begins_ms = self._open << _SHIFT
        some = self._moving[-_MOVED_AT_ONCE:]
        del self._moving[-_MOVED_AT_ONCE:]
        some.reverse()
        ends_ms = begins_ms + (1 << _SHIFT)
        self._filed -= len(some)
        fine = self._fine
        unpack = DEADLINE.unpack_from
        for key in some:
            entry = entries.get(key)
            if entry is not None:
                (deadline_ms,) = unpack(entry)
                if begins_ms <= deadline_ms < ends_ms and (keys := fine.get(deadline_ms)) is not None:
                    keys.append(key)
                    self._filed += 1
                elif begins_ms <= deadline_ms != NEVER:
                    self._file(key, deadline_ms)

    def _add_fine(self, key: bytes, deadline_ms: int) -> None:
        keys = self._fine.get(deadline_ms)
        if keys is None:
            self._fine[deadline_ms] = [key]
            heapq.heappush(self._fine_order, deadline_ms)
        else:
            keys.append(key)
