"""Saturation: when so many messages of a partition wait for a shard that it is left out of the fetch (C60)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lapse.runtime.shard.waiting_sizes import WaitingSizes, WorkerBytes
from lapse.runtime.tp import TP

_SATURATED_RECORDS: Final = 50_000
_SATURATED_BYTES: Final = 64 << 20
_LEAST_SATURATED_RECORDS: Final = 2_000
_LEAST_SATURATED_BYTES: Final = 1 << 20


class Saturation:
    """The waiting messages of a shard, counted against the most that may wait.

    Args:
        waiting: counts the bytes that wait for all shards of the worker.
        processed: per source, the next offset to process; the commands are one of the sources.
        apart: whether each partition has a share of its own, because messages of one may wait for those of others.
    """

    __slots__ = ("_apart", "_counts", "_of_worker", "_processed", "_sizes")

    def __init__(self, waiting: WorkerBytes, processed: Mapping[TP, int], apart: bool) -> None:
        self._sizes = WaitingSizes(waiting)
        self._of_worker = waiting
        self._processed = processed
        self._apart = apart
        self._counts: Counter[TP] = Counter()

    def add(self, tp: TP, records: Sequence[Any]) -> None:
        """Count messages that were received."""
        self._counts[tp] += len(records)
        self._sizes.add(tp, records)

    def take(self, tp: TP, count: int) -> None:
        """Count messages that wait no longer; their bytes are known from the processed offset."""
        self._counts[tp] -= count

    def is_reached(self, tp: TP) -> bool:
        """Return whether to leave a partition out of the fetch."""
        return self._records(tp) > self._most_records() or self._bytes(tp) > self._most_bytes()

    def is_over(self, tp: TP | None = None) -> bool:
        """Return whether few enough messages are left to fetch again: a partition, or None for all together."""
        return self._records(tp) < self._most_records() // 2 and self._bytes(tp) <= self._most_bytes() // 2

    def close(self) -> None:
        """Count nothing any more, because the shard is given up."""
        self._sizes.close()

    def _records(self, tp: TP | None) -> int:
        """Return how many messages wait: of one partition if they have shares, else of all."""
        return self._counts[tp] if self._apart and tp is not None else self._counts.total()

    def _bytes(self, tp: TP | None) -> int:
        """Return about how many bytes wait, counted like `_records`."""
        return self._sizes.waiting(self._processed, tp if self._apart else None)

    def _most_records(self) -> int:
        return self._share(_SATURATED_RECORDS, _LEAST_SATURATED_RECORDS)

    def _most_bytes(self) -> int:
        if self._of_worker.are_many:
            return _LEAST_SATURATED_BYTES
        return self._share(_SATURATED_BYTES, _LEAST_SATURATED_BYTES)

    def _share(self, most: int, least: int) -> int:
        return max(most // (len(self._processed) - 1), least) if self._apart else most
