"""Tables that restore themselves, so that Faust's own recovery has nothing to do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections import Counter
from collections.abc import AsyncIterator, Coroutine, Iterable, Iterator, KeysView
from typing import Any, Final

from aiokafka.errors import IllegalStateError
from faust.tables.manager import TableManager
from faust.tables.recovery import Recovery
from faust.tables.table import Table
from faust.types import TP

from lapse.runtime.kafka.lean_service import LeanService
from lapse.runtime.watch import end_process_if_failed

logger = logging.getLogger(__name__)

_FIRST: Final = 10
"""How many shards are taken over at a time until the first one serves, because ten are restored sooner than a
hundred."""

_FIRST_S: Final = 0.5
"""The longest wait of the other shards for that, s. The broker of these ten may be away."""

_AT_ONCE: Final = 100
"""The same number after that, while no shard was served before."""

_ENDS_WITHIN_S: Final = 5.0
"""How long a stopping worker waits for a rebalance or a take-over under way, s. A broker may not answer for minutes."""

_BESIDE: Final = 5
"""The same number while other shards are served. Each turn of the loop has a portion of every take-over (C90)."""


class NoRecovery(Recovery):
    """Faust's recovery, with nothing to do.

    Faust notes a table's position when it is assigned, and asks for the changelog's end later. A shard that has begun
    its epoch writes in between. Faust would then wait for ever for a record that nobody reads, and all shards of the
    worker would stand still.
    """

    def need_recovery(self) -> bool:
        """Return False, because `JournalStore` reads the changelog to its end."""
        return False

    async def _build_highwaters(self, consumer: Any, tps: Any, destination: Counter[TP], title: str) -> None:
        """Do nothing. The ends are not needed, and the request for a deleted entity's changelog would get no answer."""
        destination.clear()

    async def _build_offsets(self, consumer: Any, tps: Any, destination: Counter[TP], title: str) -> None:
        """Do nothing, because Faust reads no changelog."""

    async def _seek_offsets(self, consumer: Any, tps: Any, offsets: Counter[TP], title: str) -> None:
        """Do nothing, because changelogs are not fetched."""

    def active_remaining(self) -> Counter[TP]:
        """Return that nothing remains."""
        return Counter()


class SelfRestoredTable(LeanService, Table[Any, Any]):
    """Faust's table. It declares no changelog, because `lapse apply` has created it."""

    async def on_start(self) -> None:
        """Start the store."""
        await self.add_runtime_dependency(self.data)

    def _get_tasks(self) -> Iterator[Any]:
        """Return nothing: Faust's only task removes the old keys of windows, and this table has no windows."""
        return iter(())


class SelfRestoredTables(TableManager):
    """Faust's tables with `NoRecovery`. Take-overs that have begun are finished before shards are given up.

    Shards are taken over beside Faust, whose flow begins at once. So each shard serves as soon as it is restored.
    """

    def __init__(self, app: Any, **more: Any) -> None:
        super().__init__(app, **more)
        self._rebalancing = asyncio.Lock()
        self._closed = False
        self._begun: dict[asyncio.Task[None], str] = {}
        """The take-overs under way, each with its table's name."""
        self._over = asyncio.Event()
        """Set when no take-over is under way."""
        self._places = asyncio.Semaphore(_FIRST)
        self._further_places = 0

    async def on_start(self) -> None:
        """Start like Faust's, without its second of waiting for further tables."""
        if not self.should_stop:
            await self._update_channels()
            await self.recovery.start()

    async def on_rebalance(
        self, assigned: set[TP], revoked: set[TP], newly_assigned: set[TP], generation_id: int = 0
    ) -> None:
        """Give up shards that are no longer assigned, and take over new ones; do nothing once the worker stops."""
        async with self._rebalancing:
            await self.restored()
            if self._closed:
                return
            self._recovery_started.set()  # like Faust: no tables can be added
            consumer: Any = self.app.consumer
            if not consumer.flow_active:
                consumer.flows.clear()
            # Faust waits for one table before it goes on to the next. If all run at the same time, their requests to
            # the brokers are joined (`SharedQuestion`).
            by_topic: dict[str, set[TP]] = {}
            for tp in assigned:
                by_topic.setdefault(tp.topic, set()).add(tp)
            concerned = (
                (table, by_topic.get(table.changelog_topic.get_topic_name(), set())) for table in self.values()
            )
            await asyncio.gather(
                *(table.on_rebalance(mine, revoked, newly_assigned, generation_id) for table, mine in concerned)
            )
            # Partitions may no longer be assigned, because another rebalance has begun.
            with contextlib.suppress(AssertionError, IllegalStateError):
                changelogs = (table.changelog_topic.get_topic_name() for table in self.values())
                await consumer.leave_out(tp for name in changelogs for tp in by_topic.get(name, ()))
            await self._update_channels()
            await asyncio.sleep(0)
            await self.recovery.on_rebalance(assigned, revoked, newly_assigned, generation_id)

    async def _update_channels(self) -> None:
        """Start the tables. Unlike Faust, make no channels for changelogs: `WorkerAgent` has them assigned."""
        self._tables_finalized.set()
        for table in list(self.values()):
            if await table.maybe_start():
                await asyncio.sleep(0)
        consumer: Any = self.app.consumer
        consumer.pause_partitions({tp for tp in consumer.assignment() if tp.topic in self._changelogs})
        self._tables_registered.set()

    def begin(self, name: str, take_over: Coroutine[Any, Any, None]) -> None:
        """Start to take a shard over beside Faust.

        Their number is limited, so that the first need not wait for the last. Nothing is begun once the worker stops.
        """
        if self._closed:
            take_over.close()
            return
        if not self._begun:
            app: Any = self.app
            serves = any(entity.runners for entity in app.entities.values())
            self._places = asyncio.Semaphore(_BESIDE if serves else _FIRST)
            self._further_places = 0 if serves else _AT_ONCE - _FIRST
            asyncio.get_running_loop().call_later(_FIRST_S, self._widen, self._places)
        self._over.clear()
        task = asyncio.create_task(self._in_turn(take_over), name=f"take-over {name}")
        self._begun[task] = name
        task.add_done_callback(lambda done: self._ended(name, done))

    async def _in_turn(self, take_over: Coroutine[Any, Any, None]) -> None:
        places = self._places
        async with places:
            await take_over
        self._widen(places)

    def _widen(self, places: asyncio.Semaphore) -> None:
        """Raise the limit of take-overs at a time, unless these belong to an earlier rebalance."""
        if places is self._places:
            for _ in range(self._further_places):
                places.release()
            self._further_places = 0
            app: Any = self.app
            app.services.needed.widen()

    def _ended(self, name: str, task: asyncio.Task[None]) -> None:
        self._begun.pop(task, None)
        if not self._begun:
            self._over.set()
        end_process_if_failed(task, f"{name}: could not be taken over")

    async def restored(self) -> None:
        """Wait for all take-overs that have begun."""
        while self._begun:  # not on the tasks: fifty waiters for fifty tasks would add 2,500 callbacks
            await self._over.wait()

    async def restored_of(self, name: str) -> None:
        """Wait for the take-overs of one table that have begun."""
        while mine := [task for task, of in self._begun.items() if of == name]:
            await asyncio.wait(mine)

    @contextlib.asynccontextmanager
    async def still(self) -> AsyncIterator[bool]:
        """Prevent take-overs and releases meanwhile; yield False if the worker is stopping."""
        async with self._rebalancing:
            await self.restored()
            yield not self._closed

    async def grow(self, declared: Iterable[object]) -> bool:
        """Add tables, although Faust does not allow it after the start.

        Args:
            declared: declares one table at each step. Other tasks have turns in between (C90).

        Returns:
            Whether it was done; False if the worker is stopping.
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
        """Remove a table whose shards are given up, so that there can be another one with its name."""
        table = self.pop(name, None)
        if table is not None:
            self._changelogs.pop(table.changelog_topic.get_topic_name(), None)
            await table.stop()

    async def close(self) -> None:
        """Take over no more shards, and wait for take-overs that have begun, but not long.

        A shard whose take-over is broken off belongs to nobody, as after a crash.
        """
        self._closed = True
        try:
            async with asyncio.timeout(_ENDS_WITHIN_S), self._rebalancing:
                await self.restored()
        except TimeoutError:
            logger.warning("the worker stops during a take-over: the brokers do not answer what it asks")
            for task in self._begun:
                task.cancel()

    @property
    def changelog_topics(self) -> KeysView[str]:  # type: ignore[override]  # Faust only looks names up in it
        """The changelog topics of all tables.

        Faust would make a set of them for each lookup: a thousand times a thousand.
        """
        return self._changelogs.keys()

    @property
    def recovery(self) -> Recovery:
        """The recovery, made at first use."""
        if self._recovery is None:
            self._recovery = NoRecovery(self.app, self, beacon=self.beacon, loop=self.loop)
        return self._recovery
