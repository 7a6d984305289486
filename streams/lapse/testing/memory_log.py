"""The logs behind the shards of a test, and a way to run a machine's coroutines at once."""

from __future__ import annotations

from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from lapse.runtime.shard.log import Record
from lapse.runtime.tp import TP
from lapse.testing.cluster import Cluster

T = TypeVar("T")


class MemoryLog:
    """Reads records of a cluster in memory; a `lapse.runtime.shard.log.Log`.

    Args:
        cluster: the cluster.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    async def read(self, topic: str, partition: int, first: int, last: int) -> list[Record]:
        """See `Log`."""
        log = self._cluster.log(topic, partition)
        found = [*log[first : last + 1]]
        if not found or found[-1].offset < last:  # a recording may lack offsets
            found += log[last + 1 :][:1]
        return found

    async def one(self, topic: str, partition: int, offset: int) -> Record | None:
        """See `Log`."""
        found = self._cluster.log(topic, partition)[offset : offset + 1]
        return found[0] if found else None

    async def begins(self, tps: Iterable[TP]) -> dict[TP, int]:
        """See `Log`; no record is ever removed."""
        return dict.fromkeys(tps, 0)

    async def ends(self, tps: Iterable[TP], instant_ms: int | None = None) -> dict[TP, int]:
        """See `Log`."""
        if instant_ms is not None:
            return {tp: self._cluster.offset_at(*tp, instant_ms) for tp in tps}
        return {tp: len(self._cluster.log(*tp)) for tp in tps}

    async def existing_ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """See `Log`."""
        return {tp: len(self._cluster.log(*tp)) for tp in tps if self._cluster.has(*tp)}

    async def offset_at(self, tps: Iterable[TP], instant_ms: int) -> dict[TP, int]:
        """See `Log`."""
        return {tp: self._cluster.offset_at(*tp, instant_ms) for tp in tps if self._cluster.has(*tp)}

    async def release(self, topic: str, partition: int) -> None:
        """See `Log`."""


def at_once(task: Coroutine[Any, Any, T]) -> T:
    """Run a coroutine that waits for nothing but its turn, since in memory everything is available at once.

    Raises:
        RuntimeError: it waits for something outside.
    """
    while True:
        try:
            awaited = task.send(None)
        except StopIteration as ended:
            result: T = ended.value
            return result
        if awaited is not None:
            raise RuntimeError(f"the shard waits for {awaited!r}, and in memory there is nothing to wait for")
