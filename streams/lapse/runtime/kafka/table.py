"""Tables that have restored themselves by the time Faust looks: its recovery has nothing to wait for."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator
from typing import Any

from aiokafka.errors import IllegalStateError
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.types import TP


class NoRecovery(Recovery):
    """Faust's recovery, told that nothing is left.

    Faust notes how far a table is when it is assigned, and asks for the changelog's end later. A shard that has begun
    its epoch writes between the two, and Faust would wait for a record that nobody reads: for ever, with every shard
    of the worker at a standstill.
    """

    def need_recovery(self) -> bool:
        """Never: `JournalStore.on_rebalance` has read the changelog to its end."""
        return False

    async def _build_highwaters(self, consumer: Any, tps: Any, destination: Counter[TP], title: str) -> None:
        """Nothing: nobody waits for the changelogs' ends, and that of a deleted entity would not be answered."""
        destination.clear()

    async def _build_offsets(self, consumer: Any, tps: Any, destination: Counter[TP], title: str) -> None:
        """Nothing: reading begins nowhere."""

    async def _seek_offsets(self, consumer: Any, tps: Any, offsets: Counter[TP], title: str) -> None:
        """Stand at the changelogs' ends, so that they are not fetched."""
        # What is not assigned any more: the group rebalances once more already.
        with contextlib.suppress(AssertionError, IllegalStateError):
            await super()._seek_offsets(consumer, tps, offsets, title)

    def active_remaining(self) -> Counter[TP]:
        """Nothing."""
        return Counter()


class SelfRestoredTables(TableManager):
    """Faust's tables with `NoRecovery`; a take-over that has begun is finished before the worker gives shards up."""

    def __init__(self, app: Any, **more: Any) -> None:
        super().__init__(app, **more)
        self._rebalancing = asyncio.Lock()
        self._closed = False

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Give up the shards that went, take over those that came; nothing once the worker is ending."""
        async with self._rebalancing:
            if self._closed:
                return
            self._recovery_started.set()  # as Faust does: no tables can be added
            # Faust goes on to the next table when one is ready. Side by side, what all of them ask of the brokers is
            # asked at once (`Together`).
            await asyncio.gather(
                *(table.on_rebalance(assigned, revoked, newly_assigned, generation_id) for table in self.values())
            )
            await asyncio.sleep(0)
            await self._update_channels()
            await asyncio.sleep(0)
            await self.recovery.on_rebalance(assigned, revoked, newly_assigned, generation_id)

    @contextlib.asynccontextmanager
    async def still(self) -> AsyncIterator[bool]:
        """Have no shard taken over or given up meanwhile; False = the worker is ending."""
        async with self._rebalancing:
            yield not self._closed

    async def close(self) -> None:
        """Take over nothing any more, and wait for what is being taken over."""
        self._closed = True
        async with self._rebalancing:
            pass

    @property
    def recovery(self) -> Recovery:
        """The recovery, made when it is first asked for."""
        if self._recovery is None:
            self._recovery = NoRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
