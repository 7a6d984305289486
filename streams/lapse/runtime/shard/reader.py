"""The part of the reading consumer that a shard uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.tp import TP


class Reader(Protocol):
    """The part of a consumer that a shard uses."""

    @property
    def waiting(self) -> WorkerBytes:
        """How many bytes wait for all shards of the worker."""

    def received(self, reader: object, tp: TP, offset: int) -> None:
        """Note that a shard has received everything below `offset`, and reads on from there."""

    def finished(self, reader: object, offsets: Mapping[TP, int]) -> None:
        """Note that a shard has made everything before these offsets durable."""

    def saturate(self, reader: object, tp: TP) -> None:
        """Leave a partition out of the fetch, because a shard cannot keep up with it."""

    def fetch_caught_up(self, reader: object, tp: TP | None = None) -> None:
        """Fetch one partition, or all, for a shard that has caught up."""

    def forget(self, reader: object) -> None:
        """Forget a shard that is given up."""

    async def next_offset(self, tp: TP) -> int:
        """Return the offset that will be read next."""
