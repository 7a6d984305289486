"""The contents of a changelog partition: the latest record of every key, of the epochs that count.

Every record bears the number of the epoch that wrote it. An epoch begins with a claim; what a lower epoch writes behind
a higher claim is void: its author had lost the shard and did not know it yet.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

Items = list[tuple[bytes, bytes | None]]
"""Keys and values of a journal, in order; None = the key is gone."""

EPOCH_HEADER: Final = "lapse-epoch"
CLAIM: Final = b"\x00e"
PROGRESS: Final = b"\x00p"
_EPOCH: Final = struct.Struct(">q")


def epoch_header(epoch: int) -> list[tuple[str, bytes]]:
    """The header that every record of an epoch bears."""
    return [(EPOCH_HEADER, _EPOCH.pack(epoch))]


def claim_key(epoch: int) -> bytes:
    """Key of the record with which an epoch begins."""
    return CLAIM + _EPOCH.pack(epoch)


def progress_key(epoch: int) -> bytes:
    """Key of the record that says how far an epoch has read."""
    return PROGRESS + _EPOCH.pack(epoch)


@dataclass(slots=True)
class Changelog:
    """What one changelog partition holds.

    Attributes:
        latest: the latest value of every key, void records left out.
        epoch: the highest epoch claimed; 0 = none.
        next_offset: everything before it was read.
        void: keys whose latest record is void.
        contested: the latest epoch that was claimed twice; it belongs to nobody. 0 = none.
    """

    latest: MutableMapping[bytes, bytes] = field(default_factory=dict)
    epoch: int = 0
    next_offset: int = 0
    void: set[bytes] = field(default_factory=set)
    contested: int = 0

    def take(self, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> bool:
        """Take in the next record; False if it is void."""
        if key is None:
            return False
        epoch = 0
        for name, raw in headers:
            if name == EPOCH_HEADER and len(raw) == _EPOCH.size:
                (epoch,) = _EPOCH.unpack(raw)
        if epoch < self.epoch:
            self.void.add(key)
            return False
        if epoch > self.epoch:
            self.epoch = epoch
        elif key.startswith(CLAIM):
            self.contested = epoch
        self.void.discard(key)
        if value is None:
            self.latest.pop(key, None)
        else:
            self.latest[key] = value
        return True

    def take_all(self, records: Iterable[Any]) -> list[tuple[bytes, bytes | None]]:
        """Take in the next records; returns those that are not void, in order.

        The same as `take` for each, but what the current epoch has written, which is nearly everything, goes quickly.
        """
        current = epoch_header(self.epoch)
        latest, void = self.latest, self.void
        taken: list[tuple[bytes, bytes | None]] = []
        for record in records:
            key, value, headers = record.key, record.value, record.headers
            if headers == current and key and key[0]:
                if void:
                    void.discard(key)
                if value is None:
                    latest.pop(key, None)
                else:
                    latest[key] = value
            elif not self.take(key, value, headers):
                continue
            else:
                current = epoch_header(self.epoch)
            taken.append((key, value))
        return taken

    def items(self) -> Iterator[tuple[bytes, bytes]]:
        """The shard's own records, one after the other: without claims and progress."""
        return ((key, self.latest[key]) for key in self.latest if not key.startswith(b"\x00"))

    def progress(self) -> bytes | None:
        """How far the latest epoch that said so had read."""
        keys = [key for key in self.latest if key.startswith(PROGRESS)]
        return self.latest[max(keys)] if keys else None
