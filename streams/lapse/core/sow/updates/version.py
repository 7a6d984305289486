"""Scheduled versions: updates that take effect at a stated instant (L5, C47)."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from lapse.core.sow import journal
from lapse.core.swept_heap import SweptHeap

_HEAD: Final = struct.Struct(">qqqqIBII")
_DELTA: Final = 1
_DELETE: Final = 2


class Version(NamedTuple):
    """An update of a key that waits for its instant.

    Attributes:
        enqueue_at_ms: the instant at which it takes effect, ms since the epoch.
        deadline_ms: its deadline, ms since the epoch; if not after `enqueue_at_ms`, it leaves without taking effect.
        timestamp_ms: its arrival, ms since the epoch.
        offset: its offset in the source.
        source: number of the underlying partition.
        delta: whether it is merged into the record stored then.
        key: the record's key.
        headers: its packed headers.
        payload: its payload; None = a delete.
    """

    enqueue_at_ms: int
    deadline_ms: int
    timestamp_ms: int
    offset: int
    source: int
    delta: bool
    key: bytes
    headers: bytes
    payload: bytes | None

    def pack(self) -> bytes:
        """Return the journal's bytes."""
        flags = _DELTA * self.delta | _DELETE * (self.payload is None)
        head = _HEAD.pack(
            self.enqueue_at_ms,
            self.deadline_ms,
            self.timestamp_ms,
            self.offset,
            self.source,
            flags,
            len(self.key),
            len(self.headers),
        )
        return head + self.key + self.headers + (self.payload or b"")

    @classmethod
    def unpack(cls, data: bytes) -> Version:
        """Read the journal's bytes."""
        enqueue_at_ms, deadline_ms, timestamp_ms, offset, source, flags, key_bytes, headers_bytes = _HEAD.unpack_from(
            data
        )
        key_end = _HEAD.size + key_bytes
        headers_end = key_end + headers_bytes
        return cls(
            enqueue_at_ms,
            deadline_ms,
            timestamp_ms,
            offset,
            source,
            bool(flags & _DELTA),
            data[_HEAD.size : key_end],
            data[key_end:headers_end],
            None if flags & _DELETE else data[headers_end:],
        )


class Schedule:
    """The scheduled versions of a shard, in the order of C11: instant, then bookmark.

    Args:
        acts_on_deadlines: whether a version leaves at a deadline before its instant.
        sources: topic and partition by number of the source.

    Attributes:
        by_key: the versions' journal keys by the record's key, for reading only.
    """

    __slots__ = ("_acts_on_deadlines", "_due", "_sources", "_versions", "by_key")

    def __init__(self, acts_on_deadlines: bool, sources: Sequence[tuple[str, int]]) -> None:
        self._acts_on_deadlines = acts_on_deadlines
        self._sources = sources
        self._versions: dict[bytes, Version] = {}
        self.by_key: dict[bytes, set[bytes]] = {}
        self._due = SweptHeap[tuple[int, str, int, int, bytes]](lambda entry: entry[4] in self._versions)

    def __len__(self) -> int:
        return len(self._versions)

    def __iter__(self) -> Iterator[tuple[bytes, Version]]:
        return iter(self._versions.items())

    def versions(self) -> list[Version]:
        """Return a list of the current versions, in any order."""
        return list(self._versions.values())

    def names(self) -> list[bytes]:
        """Return a list of the current versions' journal keys, in any order."""
        return list(self._versions)

    def put(self, journal_key: bytes, version: Version) -> None:
        """Add a version under its journal key."""
        self._versions[journal_key] = version
        self.by_key.setdefault(version.key, set()).add(journal_key)
        self._due.push((*self._sort_key(version), journal_key))
        self._due.sweep(len(self._versions))

    def discard(self, journal_key: bytes) -> None:
        """Remove a version, if it is there."""
        version = self._versions.pop(journal_key, None)
        if version is not None:
            siblings = self.by_key[version.key]
            siblings.discard(journal_key)
            if not siblings:
                del self.by_key[version.key]
            self._due.sweep(len(self._versions))

    def get(self, journal_key: bytes) -> Version | None:
        """Return a version; None if it is not there."""
        return self._versions.get(journal_key)

    def next_due(self) -> tuple[int, bytes] | None:
        """Return when the next version is due, ms since the epoch, and its journal key; None without one."""
        while (first := self._due.first) is not None:
            due_ms, *_, journal_key = first
            if journal_key in self._versions:
                return due_ms, journal_key
            self._due.pop()
        return None

    def is_due(self, at_ms: int) -> bool:
        """Return whether a version is due by an instant, ms since the epoch."""
        next_due = self.next_due() if self._versions else None
        return next_due is not None and next_due[0] <= at_ms

    def next_due_of(self, key: bytes) -> tuple[int, bytes] | None:
        """Do the same for the versions of one key."""
        siblings = self.by_key.get(key)
        if not siblings:
            return None
        turns = ((*self._sort_key(self._versions[journal_key]), journal_key) for journal_key in siblings)
        due_ms, *_, journal_key = min(turns)
        return due_ms, journal_key

    def _sort_key(self, version: Version) -> tuple[int, str, int, int]:
        due_ms = min(version.enqueue_at_ms, version.deadline_ms) if self._acts_on_deadlines else version.enqueue_at_ms
        return due_ms, *self._sources[version.source], version.offset


def journal_key(source: int, offset: int) -> bytes:
    """Return the journal key of the version at an offset of a source."""
    return journal.SCHEDULED + struct.pack(">Iq", source, offset)
