"""Entries of lines that wait for something else than their turn: a free place, a rate, a write, a barrier (Q12, Q25).

No search looks at them before that has come. An entry is outdated if its line got another one meanwhile.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator

from lapse.core.lifetime import NEVER
from lapse.core.queue.groups.resting_lines import Entry


class EntriesSetAside:
    """Entries that were removed from the heap of waiting groups and return to it."""

    def __init__(self) -> None:
        self._by_group: dict[int, list[Entry]] = {}
        self._until: list[tuple[int, Entry]] = []
        self._until_written: list[Entry] = []
        self._places: list[tuple[int, int]] = []
        self._places_until_written: list[int] = []
        self._behind: list[Entry] = []
        self._barrier: int | None = None

    @property
    def any_waits_for_group(self) -> bool:
        """Whether any entry waits for the release of its group."""
        return bool(self._by_group)

    def add(self, entry: Entry) -> None:
        """Keep an entry until its group is released."""
        self._by_group.setdefault(entry[3], []).append(entry)

    def add_until(self, entry: Entry, instant_ms: int) -> None:
        """Keep an entry until an instant, ms since the epoch; `NEVER` = until a delivery is written."""
        if instant_ms >= NEVER:
            self._until_written.append(entry)
        else:
            heapq.heappush(self._until, (instant_ms, entry))

    def add_place(self, place: int, instant_ms: int) -> None:
        """Keep a message without a group, given by its place, until an instant: see `add_until` (C70)."""
        if instant_ms >= NEVER:
            self._places_until_written.append(place)
        else:
            heapq.heappush(self._places, (instant_ms, place))

    def add_behind_barrier(self, entry: Entry) -> None:
        """Keep an entry until another barrier than now is the first one, or there is none."""
        self._behind.append(entry)

    def pop_group(self, group: int) -> list[Entry]:
        """Remove and return the entries that waited for the release of a group."""
        return self._by_group.pop(group, [])

    def pop_due(self, now_ms: int, written: bool) -> Iterator[Entry]:
        """Remove and yield entries whose instant has come, and if anything was `written`, those that waited for it."""
        while self._until and self._until[0][0] <= now_ms:
            yield heapq.heappop(self._until)[1]
        if written:
            entries, self._until_written = self._until_written, []
            yield from entries

    def pop_due_places(self, now_ms: int, written: bool) -> list[int]:
        """Remove and return, ascending, the places of messages that `pop_due` would yield if they were entries."""
        found = []
        while self._places and self._places[0][0] <= now_ms:
            found.append(heapq.heappop(self._places)[1])
        if written:
            found += self._places_until_written
            self._places_until_written = []
        return sorted(found)

    def instants_ms(self) -> list[int]:
        """Return the next instants for which any waits, ms since the epoch, and `NEVER` if one waits for a write."""
        known = [one for one, _ in (*self._until[:1], *self._places[:1])]
        return [*known, NEVER] if self._until_written or self._places_until_written else known

    def pop_behind_barrier(self, barrier: int | None) -> list[Entry] | None:
        """Return the entries that waited for another first barrier than the given place; None = it is the same one."""
        if barrier == self._barrier:
            return None
        self._barrier = barrier
        entries, self._behind = self._behind, []
        return entries
