"""The logs behind a shard, as it reads them back: payloads that memory does not hold, and where logs begin and end."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, Final, Protocol, TypeAlias

from lapse.runtime.tp import TP

READ_AHEAD_RECORDS: Final = 5_000
"""What is so near to a record that is read back is read along with it, and not looked for anew."""

AT_ONCE_RECORDS: Final = 1_000
"""How many records are taken from a fetch before others have a turn (C60)."""

Record: TypeAlias = Any
"""aiokafka's `ConsumerRecord`, which has no types, or what looks like it."""


class Log(Protocol):
    """Reads records of any partition; `LogReader` reads them from Kafka."""

    async def read(self, topic: str, partition: int, first: int, last: int) -> Sequence[Record]:
        """Read from `first` on, at least until a record at or behind `last` was seen or the log has no more.

        Returns:
            Records with offsets from `first` on, ascending; empty if the log has none left there, or the topic is gone.
        """

    async def one(self, topic: str, partition: int, offset: int) -> Record | None:
        """Read one record; None where the log no longer has it."""

    async def begins(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Where partitions begin now: what stood before was removed."""

    async def ends(self, tps: Iterable[TP], instant_ms: int | None = None) -> dict[TP, int]:
        """Where partitions end now; or where they stood at an instant, ms since the epoch."""

    async def ends_there(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Where partitions end now, those left out whose topics are missing."""

    async def release(self, topic: str, partition: int) -> None:
        """Disconnect from a partition."""
