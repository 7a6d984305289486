"""The definition follower: has a running worker take up changes of definitions, with no restart (Q23, C66).

An entity whose settings change has its shards taken over anew, at this worker alone; no other entity waits for that.
What decides which shards there are, or what they read, waits for the worker's next start, and the log says so.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition

from lapse.config import Config, QueueConfig, SowConfig
from lapse.config.definition import Decided, Definition, DefinitionChange, change, only, with_entity
from lapse.protocol import topic as names
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definitions import DefinitionsTopic, OutdatedChange, note
from lapse.runtime.topics.topology import Topology, TopologyError
from lapse.runtime.watch import end_process

if TYPE_CHECKING:
    from lapse.runtime.shard.entity import Entity

logger = logging.getLogger(__name__)

_WAIT_MS: Final = 500
_AGAIN_S: Final = 0.2


class FollowingWorker(Protocol):
    """A worker, as far as changes of definitions concern it.

    Attributes:
        entities: what it serves, by name.
    """

    entities: dict[str, Entity]

    @property
    def tables(self) -> Any:
        """Faust's, which keep those of entities that are deleted."""

    def renew(self, entity: Entity, config: QueueConfig | SowConfig | None = None) -> Awaitable[bool]:
        """Take the shards of an entity over anew, with these settings; whether that was possible now."""

    def take_in(self, config: Config, topology: Topology) -> Awaitable[bool]:
        """Serve new entities: those of the topology; False = the worker is ending."""


class DefinitionFollower:
    """Follows the definitions topic.

    Args:
        app: the worker's.
        config: where the cluster is, and whose deployment it is.
        decided: what the worker began with.
        connection: aiokafka's settings: brokers and security.
    """

    def __init__(self, app: FollowingWorker, config: Config, decided: Decided, connection: Mapping[str, Any]) -> None:
        self._app = app
        self._config = config
        self._topic = DefinitionsTopic(config)
        self._beside = decided.beside
        self._serving: dict[str, Definition] = dict(decided.definitions)
        self._connection = connection
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to follow."""
        self._task = asyncio.create_task(self._run(), name="definitions")
        self._task.add_done_callback(_ended)

    async def stop(self) -> None:
        """Follow no longer."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def withdraw(self, name: str) -> None:
        """Take out the definition of an entity whose topics were removed."""
        try:
            await asyncio.to_thread(self._topic.withdraw, name)
        except (OutdatedChange, TopologyError) as error:
            logger.warning("%s is deleted, and still defined: %s. `lapse apply` creates it anew", name, error)

    async def _run(self) -> None:
        while True:
            consumer = AIOKafkaConsumer(
                **self._connection, isolation_level="read_committed", enable_auto_commit=False, group_id=None
            )
            try:
                await consumer.start()
                consumer.assign([TopicPartition(self._topic.name, 0)])
                await consumer.seek_to_beginning()
                await self._follow(consumer)
            except (KafkaError, OSError) as error:
                logger.warning("could not read %s, and will try again: %s", self._topic.name, error)
                await asyncio.sleep(_WAIT_MS / 1000)
            finally:
                await consumer.stop()

    async def _follow(self, consumer: AIOKafkaConsumer) -> None:
        found: dict[str, bytes] = {}
        while True:
            batches = await consumer.getmany(timeout_ms=_WAIT_MS)
            named = {note(found, record.key, record.value) for records in batches.values() for record in records}
            new: list[Definition] = []
            for name in named:
                if name is None:
                    continue
                if name in found:
                    new += await self._hear(name, found[name])
                else:
                    self._serving.pop(name, None)
            if new:
                await self._begin(new)

    async def _hear(self, name: str, value: bytes) -> list[Definition]:
        """Take up what a definition says now, if it is news; one that is not served yet is returned."""
        serving = self._serving.get(name)
        try:
            after = Definition.decode(name, value)
            if serving is not None and after.version <= serving.version:
                return []
            differs = change(serving, after, self._beside)
        except ValueError as error:
            logger.error("%s; what was served goes on. Mend it, or use the same version of lapse everywhere", error)
            return []
        if differs is None:
            self._serving[name] = after
        elif serving is None and name not in self._app.entities:
            if names.table(name) not in self._app.tables:
                return [after]
            logger.warning(
                "%s is defined again: it was deleted here before, and is served from the next start on", name
            )
        elif name not in self._app.entities or not differs.at_run_time:
            what = ", ".join(differs.keys) or "it as a whole"
            logger.warning(
                "%s: version %d changes %s; it counts from the worker's next start on", name, after.version, what
            )
        else:
            await self._take_up(differs)
        return []

    async def _begin(self, new: list[Definition]) -> None:
        """Serve new entities, as far as the cluster has their topics: `lapse apply` creates these first."""
        whole, understood = self._config, dict[str, Definition]()
        for one in new:
            try:
                whole = with_entity(whole, one, self._beside)
                understood[one.name] = one
            except ValueError as error:
                logger.error("%s is defined, and cannot be served: %s", one.name, error)
        try:
            topology = await asyncio.to_thread(lambda: Cluster(only(whole, understood)).topology(served=True))
        except TopologyError as error:
            logger.error("%s: defined, and cannot be served: %s", ", ".join(understood), error)
            return
        barred = topology.barred()
        for name, why in barred.items():
            logger.warning("%s is defined, and cannot be served: %s. Run `lapse apply`", name, "; ".join(why))
        topology = topology.without(barred)
        if not topology.entities():
            return
        self._config = whole
        if not await self._app.take_in(whole, topology):
            return
        for name in topology.entities():
            one = self._serving[name] = understood[name]
            logger.info("%s: version %d is served: new, by %s", name, one.version, one.origin)

    async def _take_up(self, differs: DefinitionChange) -> None:
        after = differs.after
        config = after.config(self._beside)
        entity = self._app.entities[after.name]
        while self._app.entities.get(after.name) is entity:
            if await self._app.renew(entity, config):
                self._serving[after.name] = after
                logger.info(
                    "%s: version %d is served: %s changed, by %s",
                    after.name,
                    after.version,
                    ", ".join(differs.keys),
                    after.origin,
                )
                return
            await asyncio.sleep(_AGAIN_S)  # the group rebalances


def _ended(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(f"following definitions: {error}", error)  # crash-only
