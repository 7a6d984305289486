"""What brings records to an inbox in memory."""

from __future__ import annotations

from collections.abc import Mapping

from lapse.runtime.tp import TP
from lapse.testing.cluster import Cluster


class MemoryReader:
    """What an inbox asks of the consumer that fills it: in memory, nothing is ever too much.

    Args:
        cluster: where the records are.
    """

    def __init__(self, cluster: Cluster) -> None:
        self._cluster = cluster

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """See `Reader`."""

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """See `Reader`."""

    def saturate(self, reader: object, tp: TP) -> None:
        """See `Reader`."""

    def relieve(self, reader: object, tp: TP | None = None) -> None:
        """See `Reader`."""

    def forget(self, reader: object) -> None:
        """See `Reader`."""

    async def next_offset(self, tp: TP) -> int:
        """See `Reader`."""
        return len(self._cluster.log(*tp))
