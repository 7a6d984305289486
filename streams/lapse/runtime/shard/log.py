"""The interface by which a shard reads logs: payloads that memory no longer holds, and where logs begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from lapse.runtime.tp import TP

READ_AHEAD_RECORDS: Final = 5_000
"""If a record is at most this many offsets ahead, the reader reads on to it instead of seeking."""

AT_ONCE_RECORDS: Final = 1_000
"""How many records of a fetch are taken before other tasks have a turn (C60)."""

Record: TypeAlias = Any
"""aiokafka's `ConsumerRecord`, which has no types, or an object with the same attributes."""


class SilentLog(TimeoutError):
    """The leader of an existing partition does not answer for long."""


class Log(Protocol):
    """Reads records of any partition; `LogReader` reads them from Kafka."""

    async def read(self, topic: str, partition: int, first: int, last: int) -> Sequence[Record]:
        """Read records from `first` on, at least up to the first one at or behind `last`, or to the log's end.

        Returns:
            Records with ascending offsets from `first` on; empty if the log has none there, or the topic is deleted.

        Raises:
            SilentLog: no broker answers.
        """

    async def one(self, topic: str, partition: int, offset: int) -> Record | None:
        """Read one record; return None if the log no longer has it."""

    async def begins(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Return the first offset that the log still has, by partition."""

    async def ends(self, tps: Iterable[TP], instant_ms: int | None = None) -> dict[TP, int]:
        """Return where partitions end now, or the offsets that belong to an instant in ms since the epoch."""

    async def existing_ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Return where partitions end now, without those whose topics are missing.

        Raises:
            SilentLog: no leader of a partition answers.
        """

    async def offset_at(self, tps: Iterable[TP], instant_ms: int) -> dict[TP, int]:
        """Return the first offset at or after an instant, ms since the epoch, or the log's end; skip missing topics.

        Raises:
            TimeoutError: no answer within some seconds.
        """

    async def release(self, topic: str, partition: int) -> None:
        """Disconnect from a partition."""
