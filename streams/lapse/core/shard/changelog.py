"""The contents of a changelog partition: the latest record of every key, of the epochs that count.

Every record has the number of the epoch that wrote it. An epoch begins with a claim. Records of a lower epoch behind a
higher claim are void: their writer had lost the shard without knowing it.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator, MutableMapping
from dataclasses import dataclass, field
from typing import Any, Final

from lapse.protocol import header

Items = list[tuple[bytes, bytes | None]]
"""Keys and values of a journal, in order; the value None removes the key."""

EPOCH_HEADER: Final = header.EPOCH
_OF_RUNTIME: Final = b"\x00"
CLAIM: Final = b"\x00e"
PROGRESS: Final = b"\x00p"
_EPOCH: Final = struct.Struct(">q")


def epoch_header(epoch: int) -> list[tuple[str, bytes]]:
    """Return the header of every record of an epoch."""
    return [(EPOCH_HEADER, _EPOCH.pack(epoch))]


def claim_key(epoch: int) -> bytes:
    """Return the key of an epoch's claim."""
    return CLAIM + _EPOCH.pack(epoch)


def progress_key(epoch: int) -> bytes:
    """Return the key of the record with an epoch's read positions."""
    return PROGRESS + _EPOCH.pack(epoch)


@dataclass(slots=True)
class Changelog:
    """The contents of one changelog partition.

    Attributes:
        latest: the latest value of every key of the shard, without void records.
        epoch: the highest claimed epoch; 0 if there is none.
        next_offset: the next offset to read.
        void: keys whose latest record is void.
        contested: the latest epoch that was claimed twice, so that nobody owns it; 0 if there is none.
        runtime: the latest value of each of the runtime's own keys, which begin with a zero byte. There are few of
            them.
    """

    latest: MutableMapping[bytes, bytes] = field(default_factory=dict)
    epoch: int = 0
    next_offset: int = 0
    void: set[bytes] = field(default_factory=set)
    contested: int = 0
    runtime: dict[bytes, bytes] = field(default_factory=dict)

    def take(self, key: bytes | None, value: bytes | None, headers: Iterable[tuple[str, bytes]]) -> bool:
        """Process the next record; return False if it is void."""
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
            self._of(key).pop(key, None)
        else:
            self._of(key)[key] = value
        return True

    def put(self, key: bytes, value: bytes) -> None:
        """Put a key and value from a copy of the changelog."""
        self._of(key)[key] = value

    def _of(self, key: bytes) -> MutableMapping[bytes, bytes]:
        return self.runtime if key.startswith(_OF_RUNTIME) else self.latest

    def take_all(self, records: Iterable[Any]) -> list[tuple[bytes, bytes | None]]:
        """Process the next records; return those that are not void, in order.

        This does the same as `take` for each, but is faster for records of the current epoch, which are nearly all.
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
        """Yield the shard's own keys and values, without those of the runtime."""
        return ((key, self.latest[key]) for key in self.latest)

    @property
    def first_epoch(self) -> int:
        """The first epoch that was claimed here; above 1 if deliveries or events of a former entity were found."""
        return min((_EPOCH.unpack(key[len(CLAIM) :])[0] for key in self.runtime if key.startswith(CLAIM)), default=0)

    def progress(self) -> bytes | None:
        """Return the read positions of the latest epoch that has written some; None if there are none."""
        keys = [key for key in self.runtime if key.startswith(PROGRESS)]
        return self.runtime[max(keys)] if keys else None
