"""Tables that restore themselves, so that Faust's own recovery has nothing to do."""

from __future__ import annotations

import asyncio
import contextlib
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, KeysView
from typing import Any, Final

from aiokafka.errors import IllegalStateError
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.tables.table import Table
from faust.types import TP

from lapse.runtime.kafka.lean_service import LeanService
from lapse.runtime.watch import end_process

_FIRST: Final = 10
"""How many shards are taken over side by side until the first is served: one of ten is sooner than one of a hundred."""

_FIRST_S: Final = 0.5
"""How long the others wait for that at most, s: the broker of these ten may be away."""

_AT_ONCE: Final = 100
"""How many after that, while no shard was served before."""

_BESIDE: Final = 5
"""The same while others are served: each turn of the loop has a portion of every one of them (C90)."""


class NoRecovery(Recovery):
    """Faust's recovery, which finds nothing left to do.

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
        """Nothing: changelogs are left out of the fetch."""

    def active_remaining(self) -> Counter[TP]:
        """Nothing."""
        return Counter()


class SelfRestoredTable(LeanService, Table[Any, Any]):
    """Faust's table; `lapse apply` has made its changelog, and so nothing is declared."""

    async def on_start(self) -> None:
        """Start the store."""
        await self.add_runtime_dependency(self.data)


class SelfRestoredTables(TableManager):
    """Faust's tables with `NoRecovery`; a take-over that has begun is finished before the worker gives shards up.

    Shards are taken over beside Faust, which has its flow begin at once: each serves as soon as it is restored.
    """

    def __init__(self, app: Any, **more: Any) -> None:
        super().__init__(app, **more)
        self._rebalancing = asyncio.Lock()
        self._closed = False
        self._begun: set[asyncio.Task[None]] = set()
        self._over = asyncio.Event()
        """Set whenever the last take-over that had begun has ended."""
        self._places = asyncio.Semaphore(_FIRST)
        self._further_places = 0

    async def on_start(self) -> None:
        """As Faust's, which waits for a second, lest tables are still to come; here all are there from the first."""
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Give up the shards that went, take over those that came; nothing once the worker is ending."""
        async with self._rebalancing:
            await self.restored()
            if self._closed:
                return
            self._recovery_started.set()  # as Faust does: no tables can be added
            consumer: Any = self.app.consumer
            if not consumer.flow_active:
                consumer.flows.clear()
            # Faust goes on to the next table when one is ready. Side by side, what all of them ask of the brokers is
            # asked at once (`Together`).
            by_topic: dict[str, set[TP]] = {}
            for tp in assigned:
                by_topic.setdefault(tp.topic, set()).add(tp)
            concerned = (
                (table, by_topic.get(table.changelog_topic.get_topic_name(), set())) for table in self.values()
            )
            await asyncio.gather(
                *(table.on_rebalance(mine, revoked, newly_assigned, generation_id) for table, mine in concerned)
            )
            # What is not assigned any more: the group rebalances once more already.
            with contextlib.suppress(AssertionError, IllegalStateError):
                changelogs = (table.changelog_topic.get_topic_name() for table in self.values())
                await consumer.leave_out(tp for name in changelogs for tp in by_topic.get(name, ()))
            await self._update_channels()
            await asyncio.sleep(0)
            await self.recovery.on_rebalance(assigned, revoked, newly_assigned, generation_id)

    async def _update_channels(self) -> None:
        """Start the tables. Faust has a channel for each changelog, too; here `WorkerAgent` has them assigned."""
        self._tables_finalized.set()
        for table in list(self.values()):
            if await table.maybe_start():
                await asyncio.sleep(0)
        consumer: Any = self.app.consumer
        consumer.pause_partitions({tp for tp in consumer.assignment() if tp.topic in self._changelogs})
        self._tables_registered.set()

    def begin(self, name: str, take_over: Coroutine[Any, Any, None]) -> None:
        """Take a shard over beside Faust, and not too many at once: the first are not to wait for the last."""
        if not self._begun:
            app: Any = self.app
            serves = any(entity.runners for entity in app.entities.values())
            self._places = asyncio.Semaphore(_BESIDE if serves else _FIRST)
            self._further_places = 0 if serves else _AT_ONCE - _FIRST
            asyncio.get_running_loop().call_later(_FIRST_S, self._widen, self._places)
        self._over.clear()
        task = asyncio.create_task(self._in_turn(take_over), name=f"take-over {name}")
        self._begun.add(task)
        task.add_done_callback(lambda done: self._ended(name, done))

    async def _in_turn(self, take_over: Coroutine[Any, Any, None]) -> None:
        places = self._places
        async with places:
            await take_over
        self._widen(places)

    def _widen(self, places: asyncio.Semaphore) -> None:
        """Have as many places as there are to be, unless these are those of an earlier time."""
        if places is self._places:
            for _ in range(self._further_places):
                places.release()
            self._further_places = 0

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._begun.discard(task)
        if not self._begun:
            self._over.set()
        if not task.cancelled() and (error := task.exception()) is not None:
            end_process(f"{name}: could not be taken over: {error}", error)

    async def restored(self) -> None:
        """Wait for all take-overs that have begun."""
        while self._begun:  # fifty that wait for fifty tasks would add 2,500 callbacks
            await self._over.wait()

    @contextlib.asynccontextmanager
    async def still(self) -> AsyncIterator[bool]:
        """Have no shard taken over or given up meanwhile; False = the worker is ending."""
        async with self._rebalancing:
            await self.restored()
            yield not self._closed

    async def grow(self, declared: Iterable[object]) -> bool:
        """Have further tables, although Faust thinks it is too late.

        Args:
            declared: declares one each time that it is asked; others have their turn in between (C90).

        Returns:
            whether it was done; False = the worker is ending.
        """
        async with self.still() as open_:
            if open_:
                self._tables_finalized.clear()
                try:
                    for _ in declared:
                        await asyncio.sleep(0)
                finally:
                    self._tables_finalized.set()
                await self._update_channels()
        return open_

    async def drop(self, name: str) -> None:
        """Know a table no more, so that there can be another one of its name; its shards are given up."""
        table = self.pop(name, None)
        if table is not None:
            self._changelogs.pop(table.changelog_topic.get_topic_name(), None)
            await table.stop()

    async def close(self) -> None:
        """Take over nothing any more, and wait for what is being taken over."""
        self._closed = True
        async with self._rebalancing:
            await self.restored()

    @property
    def changelog_topics(self) -> KeysView[str]:  # type: ignore[override]  # Faust only looks names up in it
        """The topics of all tables. Faust makes a set of them whenever it looks one up: a thousand times a thousand."""
        return self._changelogs.keys()

    @property
    def recovery(self) -> Recovery:
        """The recovery, made when it is first asked for."""
        if self._recovery is None:
            self._recovery = NoRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
