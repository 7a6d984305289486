"""Tombstones: notes of deleted records, so that an older update that comes late does not revive them (C46).

Only two logs can come out of order. So a shard keeps tombstones for deleted records, since older updates of another
deployment may come (C56), and for all records where keys are taken from payloads; and only for a while.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

NO_SOURCE: Final = (1 << 32) - 1
"""Source of a tombstone that a command dug: of equal stamps, every update is later."""

_LAYOUT: Final = struct.Struct(">qqqI")
_STAMP: Final = struct.Struct(">q")
_BEHIND_PATH: Final = b"\0"


class Tombstone(NamedTuple):
    """The last thing that happened to a key.

    Attributes:
        until_ms: when it is forgotten, ms since the epoch.
        timestamp_ms: updates that count as of an earlier instant are ignored, ms since the epoch.
        offset: of the delete or of the expired record; orders equal instants.
        source: of the same; orders equal instants.
        path: the deployments that the delete or the expired record came through; empty if it was published here.
        replicated_ms: the same for updates of other deployments, which learn of the removal as of this instant. It is
            later than `timestamp_ms` if what was removed had a later stamp.
    """

    until_ms: int
    timestamp_ms: int
    offset: int
    source: int
    path: bytes = b""
    replicated_ms: int = -1

    def pack(self) -> bytes:
        """Write it as it stands in the journal."""
        packed = _LAYOUT.pack(*self[:4]) + self.path
        return (
            packed + _BEHIND_PATH + _STAMP.pack(self.replicated_ms)
            if self.replicated_ms > self.timestamp_ms
            else packed
        )

    @classmethod
    def unpack(cls, data: bytes) -> Tombstone:
        """Read what `pack` wrote."""
        until_ms, timestamp_ms, offset, source = _LAYOUT.unpack_from(data)
        path, _, stamp = data[_LAYOUT.size :].partition(_BEHIND_PATH)
        replicated_ms = _STAMP.unpack(stamp)[0] if stamp else timestamp_ms
        return cls(until_ms, timestamp_ms, offset, source, path, replicated_ms)
