"""The commands that wait in an inbox: no more are fetched while they take much memory."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any, Final

from lapse.runtime.shard.waiting_sizes import WorkerBytes

MOST_BYTES: Final = 32 << 20
"""No more commands are fetched while so many bytes of them wait, for example for earlier messages (C1)."""

_LEAST_BYTES: Final = 1 << 20
"""The same once much waits for all shards of the worker together."""

_RECORD_BYTES: Final = 300
"""About what a record takes in memory besides its value."""


class WaitingCommands:
    """Counts the bytes that wait.

    Args:
        saturate: leaves the commands out of the fetch.
        fetch_caught_up: fetches them again.
        of_worker: counts what waits for all shards.
    """

    def __init__(
        self, saturate: Callable[[], None], fetch_caught_up: Callable[[], None], of_worker: WorkerBytes
    ) -> None:
        self._saturate = saturate
        self._fetch_caught_up = fetch_caught_up
        self._of_worker = of_worker
        self._bytes = 0
        self._full = False

    def add(self, records: Iterable[Any]) -> None:
        """Count received commands."""
        self._count(sum(map(_size, records)))
        if self._bytes > self._most_bytes() and not self._full:
            self._full = True
            self._saturate()

    def stay(self) -> None:
        """Leave the commands out of the fetch again, after all partitions were put back."""
        if self._full:
            self._saturate()

    def done(self, record: Any) -> None:
        """Count a command off that is carried out."""
        self._count(-_size(record))

    def look(self, all_needed: bool) -> None:
        """Have more commands fetched if few wait.

        Args:
            all_needed: whether more are needed at once: while the shard waits for the ends of its logs, messages may
                wait for commands that are not received yet (L11).
        """
        if self._full and (all_needed or self._bytes < self._most_bytes() // 2):
            self._full = False
            self._fetch_caught_up()

    def close(self) -> None:
        """Count nothing any more, because the shard is given up."""
        self._count(-self._bytes)

    def _count(self, size_bytes: int) -> None:
        self._bytes += size_bytes
        self._of_worker.count += size_bytes

    def _most_bytes(self) -> int:
        return _LEAST_BYTES if self._of_worker.are_many else MOST_BYTES


def _size(record: Any) -> int:
    return _RECORD_BYTES + len(record.value or b"")
