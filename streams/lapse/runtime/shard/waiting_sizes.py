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


_RECORD_BYTES: Final = 256
"""About what a record takes as an object, beside its value."""

_WORKER_BYTES: Final = 256 << 20


class WorkerBytes:
    """How many bytes wait for all shards of a worker together, or are kept for them.

    A worker may have a thousand shards. Each of them may wait for room below its target depth for days, and memory is
    one (X7).

    Args:
        most: from how many bytes on each shard should keep little; None for the usual number.

    Attributes:
        count: how many bytes there are.
        most: see `Args`.
    """

    __slots__ = ("count", "most")

    def __init__(self, most: int | None = None) -> None:
        self.count = 0
        self.most = _WORKER_BYTES if most is None else most

    @property
    def are_many(self) -> bool:
        """Whether no shard should keep more than little."""
        return self.count > self.most


class WaitingSizes:
    """The sizes of the batches that were received and are not processed yet.

    Args:
        of_worker: counts the same for all shards.
    """

    __slots__ = ("_batches", "_bytes", "_of_worker")

    def __init__(self, of_worker: WorkerBytes) -> None:
        self._batches: dict[TP, deque[tuple[int, int]]] = {}
        """Per source, the last offset of each batch, and its bytes."""
        self._bytes: Counter[TP] = Counter()
        self._of_worker = of_worker

    def add(self, tp: TP, records: Sequence[Any]) -> None:
        """Note a batch that was received."""
        size = _size_bytes(records)
        self._bytes[tp] += size
        self._of_worker.count += size
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
                size = batches.popleft()[1]
                self._bytes[tp] -= size
                self._of_worker.count -= size
        return self._bytes.total() if of is None else self._bytes[of]

    def close(self) -> None:
        """Count nothing any more, because the shard is given up."""
        self._of_worker.count -= self._bytes.total()
        self._batches.clear()
        self._bytes.clear()


def _size_bytes(records: Sequence[Any]) -> int:
    if isinstance(records, FetchedRows):
        return records.size_bytes()
    step = 1 + len(records) // _MANY
    return step * sum(_RECORD_BYTES + len(one.value or b"") for one in records[::step])
