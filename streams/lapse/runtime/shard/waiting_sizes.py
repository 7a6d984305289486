"""How much memory the records take that wait for a shard (C60)."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from typing import Any, Final

from lapse.core.lifetime import NEVER
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.tp import TP

_MANY: Final = 512
"""Of so many objects that were taken at once, only some are measured: a take has a limit of its own."""


class WaitingSizes:
    """The sizes of the batches that were received and are not processed yet."""

    __slots__ = ("_batches", "_bytes")

    def __init__(self) -> None:
        self._batches: dict[TP, deque[tuple[int, int]]] = {}
        """Per source, the last offset of each batch, and its bytes."""
        self._bytes: Counter[TP] = Counter()

    def add(self, tp: TP, records: Sequence[Any]) -> None:
        """Note a batch that was received."""
        size = _size_bytes(records)
        self._bytes[tp] += size
        self._batches.setdefault(tp, deque()).append((records[-1].offset, size))

    def waiting(self, processed: Mapping[TP, int], of: TP | None = None) -> int:
        """Return about how many bytes wait.

        Args:
            processed: per source, the next offset to process.
            of: count those of this source; None for all.
        """
        for tp in self._batches if of is None else self._batches.keys() & {of}:
            batches = self._batches[tp]
            at = processed.get(tp, NEVER)  # a source that is not read any more
            while batches and batches[0][0] < at:
                self._bytes[tp] -= batches.popleft()[1]
        return self._bytes.total() if of is None else self._bytes[of]


def _size_bytes(records: Sequence[Any]) -> int:
    if isinstance(records, FetchedRows):
        return records.size_bytes()
    step = 1 + len(records) // _MANY
    return step * sum(len(one.value or b"") for one in records[::step])
