"""A changelog partition as the broker keeps it: what was written by whom, claims of epochs, compaction."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from lapse.core.queue.journal import queue_journal as journals


@dataclass
class Changelog:
    """A changelog partition: who wrote, key, value; a claim has no key."""

    records: list[tuple[int, int, bytes, bytes | None]] = field(default_factory=list)
    claims: dict[int, int] = field(default_factory=dict)
    end: int = 0

    def claim(self, epoch: int) -> None:
        self.claims[epoch] = self.end
        self.append(epoch, [(b"", b"")])

    def append(self, epoch: int, items: Iterable[tuple[bytes, bytes | None]]) -> None:
        for key, value in items:
            self.records.append((self.end, epoch, key, value))
            self.end += 1

    def latest(self) -> dict[bytes, bytes]:
        """Return what counts: a lower epoch's writes behind a higher one's claim do not. Steps are in a ring."""
        current, latest = 0, dict[bytes, bytes]()
        for _, epoch, key, value in self.records:
            if epoch < current:
                continue
            current = epoch
            latest.pop(key, None)
            if key and value is not None:
                latest[key] = value
        assert all(0 <= int.from_bytes(key[9:]) < journals.RING for key in latest if key[:1] == b"d")
        return latest

    def compact(self, below: int, tombstones_too: bool) -> None:
        """Keep the last record of each key, whoever wrote it; the broker knows nothing of epochs."""
        last = {key: at for at, _, key, _ in self.records if at < below}
        self.records = [
            (at, epoch, key, value)
            for at, epoch, key, value in self.records
            if not key or at >= below or (last[key] == at and not (tombstones_too and value is None))
        ]
