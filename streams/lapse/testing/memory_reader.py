"""The reader that fills an inbox in memory."""

from __future__ import annotations

from collections.abc import Mapping

from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.tp import TP
from lapse.testing.cluster import Cluster


class MemoryReader:
    """The consumer that an inbox expects. In memory, every shard keeps up.

    Args:
        cluster: the cluster with the records.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster
        self.waiting = WorkerBytes()

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """See `Reader`."""

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """See `Reader`."""

    def saturate(self, reader: object, tp: TP) -> None:
        """See `Reader`."""

    def fetch_caught_up(self, reader: object, tp: TP | None = None) -> None:
        """See `Reader`."""

    def forget(self, reader: object) -> None:
        """See `Reader`."""

    async def next_offset(self, tp: TP) -> int:
        """See `Reader`."""
        return len(self._cluster.log(*tp))
