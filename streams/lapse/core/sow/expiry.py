"""The deadline index: which records are due, in the order of their deadlines, without a look at the others (L10, L11).

Two wheels. The coarse one files keys by the second (1,024 ms) of their deadline; when a second is reached, its keys
move to the fine wheel, which files them by the millisecond. Entries are never taken out early: a key whose deadline has
moved since is recognised when its turn comes. When most of the index is out of date it is built anew.

Cost per record: 8 bytes in a list; O(1) to file, O(log distinct instants) to find.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.sow.record import deadline_of

_SHIFT: Final = 10
_SLACK: Final = 65_536
_STALE_KEPT: Final = 64


class DeadlineIndex:
    """Deadlines of the records of one shard.

    Args:
        entries: the shard's packed records; the truth that the index points into.
    """

    __slots__ = ("_coarse", "_coarse_order", "_entries", "_filed", "_fine", "_fine_order", "_open")

    def __init__(self, entries: Mapping[bytes, bytes]) -> None:
        self._entries = entries
        self._reset()

    def _reset(self) -> None:
        self._coarse: dict[int, list[bytes]] = {}
        self._coarse_order: list[int] = []
        self._fine: dict[int, list[bytes]] = {}
        self._fine_order: list[int] = []
        self._open = -(1 << 63)
        """The last second whose keys are on the fine wheel."""
        self._filed = 0

    def add(self, key: bytes, deadline_ms: int) -> None:
        """File a key under its deadline, ms since the epoch; one that never expires is not filed."""
        if deadline_ms == NEVER:
            return
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
        if self._filed > 2 * len(self._entries) + _SLACK:
            self.rebuild()

    def rebuild(self) -> None:
        """Build the index anew from the records; also how a restored shard gets one."""
        self._reset()
        coarse = self._coarse
        filed = 0
        for key, entry in self._entries.items():
            deadline_ms = deadline_of(entry)
            if deadline_ms != NEVER:
                coarse.setdefault(deadline_ms >> _SHIFT, []).append(key)
                filed += 1
        self._filed = filed
        self._coarse_order = sorted(coarse)

    def next_due_ms(self) -> int | None:
        """Return when to look next, ms since the epoch: at the earliest deadline, or at most a second before it."""
        fine_ms = self._next_fine_ms()
        if not self._coarse_order:
            return fine_ms
        coarse_ms = self._coarse_order[0] << _SHIFT
        return coarse_ms if fine_ms is None else min(fine_ms, coarse_ms)

    def due(self, until_ms: int, limit: int) -> tuple[list[bytes], bool]:
        """Take out the keys whose deadline is `<= until_ms`, earliest first.

        Args:
            until_ms: an instant, ms since the epoch.
            limit: at most so many.

        Returns:
            the keys, whose records are there and due; and whether the limit left some behind.
        """
        entries = self._entries
        found: list[bytes] = []
        while True:
            while self._coarse_order and self._coarse_order[0] << _SHIFT <= until_ms:
                if self._fine_order and self._fine_order[0] < self._coarse_order[0] << _SHIFT:
                    break
                self._open_second()
            if not self._fine_order or self._fine_order[0] > until_ms:
                return found, False
            if len(found) >= limit:
                return found, True
            instant_ms = self._fine_order[0]
            keys = self._fine[instant_ms]
            room = limit - len(found)
            if len(keys) > room:
                # Any number may share a millisecond, such as the end of a day: the rest comes with the next call.
                self._fine[instant_ms], keys = keys[room:], keys[:room]
            else:
                heapq.heappop(self._fine_order)
                del self._fine[instant_ms]
            self._filed -= len(keys)
            # A key may be filed twice under one millisecond: dict.fromkeys keeps the first.
            for key in dict.fromkeys(keys):
                entry = entries.get(key)
                if entry is not None and deadline_of(entry) == instant_ms:
                    found.append(key)

    def _next_fine_ms(self) -> int | None:
        """The earliest millisecond that has a record; those that have none any more are dropped."""
        entries = self._entries
        while self._fine_order:
            instant_ms = self._fine_order[0]
            keys = self._fine[instant_ms]
            for place, key in enumerate(keys):
                entry = entries.get(key)
                if entry is not None and deadline_of(entry) == instant_ms:
                    if place > _STALE_KEPT:  # or the same ones would be passed over each time
                        del keys[:place]
                        self._filed -= place
                    return instant_ms
            heapq.heappop(self._fine_order)
            del self._fine[instant_ms]
            self._filed -= len(keys)
        return None

    def _open_second(self) -> None:
        second = heapq.heappop(self._coarse_order)
        self._open = max(self._open, second)
        entries = self._entries
        keys = self._coarse.pop(second)
        self._filed -= len(keys)
        for key in keys:
            entry = entries.get(key)
            if entry is not None:
                deadline_ms = deadline_of(entry)
                if deadline_ms >> _SHIFT == second:
                    self._add_fine(key, deadline_ms)
                    self._filed += 1

    def _add_fine(self, key: bytes, deadline_ms: int) -> None:
        keys = self._fine.get(deadline_ms)
        if keys is None:
            self._fine[deadline_ms] = [key]
            heapq.heappush(self._fine_order, deadline_ms)
        else:
            keys.append(key)
