"""Tombstones: notes of removed records, so that an older update that arrives late does not revive them (C46).

Only updates from different logs can arrive out of order: from several partitions, or from other deployments. A shard
keeps tombstones of deleted records in any case, since a first update of another deployment may arrive (C56). It keeps
those of expired records only if updates are known to come from several logs. All are kept for a limited time.
"""

from __future__ import annotations

import struct
from typing import Final, NamedTuple

from lapse.core.sow.arrival.origin import LogPosition

NO_SOURCE: Final = (1 << 32) - 1
"""The source of a command's tombstone. Every update with an equal timestamp is later."""

_LAYOUT: Final = struct.Struct(">qqqI")
_STAMP: Final = struct.Struct(">q")
_POSITION: Final = struct.Struct(">qq")
_BEHIND_PATH: Final = b"\0"


class Tombstone(NamedTuple):
    """The removal of a key's record.

    Attributes:
        until_ms: the instant at which the tombstone is forgotten, ms since the epoch.
        timestamp_ms: updates with earlier timestamps are ignored, ms since the epoch.
        offset: offset of the delete or of the expired record, which orders equal timestamps.
        source: source of the delete or of the expired record, which orders equal timestamps.
        path: deployments that the delete or the expired record passed through; empty if it was published here.
        replicated_ms: the timestamp that counts for updates of other deployments, which learn of the removal with it,
            ms since the epoch. It is later than `timestamp_ms` if the removed record had a later timestamp.
        position: where another deployment published the expired record; None = unknown.
    """

    until_ms: int
    timestamp_ms: int
    offset: int
    source: int
    path: bytes = b""
    replicated_ms: int = -1
    position: LogPosition | None = None

    def pack(self) -> bytes:
        """Return the journal's bytes."""
        packed = _LAYOUT.pack(*self[:4]) + self.path
        if self.replicated_ms <= self.timestamp_ms and self.position is None:
            return packed
        packed += _BEHIND_PATH + _STAMP.pack(self.replicated_ms)
        if self.position is None:
            return packed
        partition, topic, offset = self.position
        return packed + _POSITION.pack(partition, offset) + topic.encode()

    @classmethod
    def unpack(cls, data: bytes) -> Tombstone:
        """Read the journal's bytes."""
        until_ms, timestamp_ms, offset, source = _LAYOUT.unpack_from(data)
        path, _, more = data[_LAYOUT.size :].partition(_BEHIND_PATH)
        replicated_ms = _STAMP.unpack_from(more)[0] if more else timestamp_ms
        position = None
        if len(more) > _STAMP.size:
            partition, offset_there = _POSITION.unpack_from(more, _STAMP.size)
            position = partition, more[_STAMP.size + _POSITION.size :].decode(), offset_there
        return cls(until_ms, timestamp_ms, offset, source, path, replicated_ms, position)
