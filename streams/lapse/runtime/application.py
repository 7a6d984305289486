"""The Faust application of a worker: serves entities, and goes through rebalances. `assembly` makes it."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine
from typing import Any, cast

from faust.types import TP

from lapse.config import Config
from lapse.config.definition import UNDEFINED
from lapse.core.expression import grammar
from lapse.runtime.health import Readiness, readiness
from lapse.runtime.kafka.agent import WorkerAgent
from lapse.runtime.kafka.group.membership import Membership
from lapse.runtime.kafka.group.steady_app import SteadyApp
from lapse.runtime.kafka.table import SelfRestoredTables
from lapse.runtime.kafka.transport import BatchConsumer
from lapse.runtime.key_watch import KeyWatch
from lapse.runtime.metrics import MetricsServer
from lapse.runtime.shard.runner import Runner
from lapse.runtime.shard.served_entity import Entity
from lapse.runtime.shard.services import Services
from lapse.runtime.topics.advice import deletion_advice
from lapse.runtime.topics.definer import Definer
from lapse.runtime.topics.definition_follower import DefinitionFollower
from lapse.runtime.topics.entity_cleanup import EntityCleanup
from lapse.runtime.topics.late_entity import LateEntities
from lapse.runtime.topics.log_watch import LogWatch
from lapse.runtime.topics.topology import Topology
from lapse.runtime.watch import end_process, start_task

logger = logging.getLogger(__name__)


class LapseApp(SteadyApp):
    """A Faust app with the entities that it serves.

    Attributes:
        entities: the served entities, by name.
        reading: the agent that reads their topics.
        services: the objects that they share.
        warnings: probable mistakes in the configuration, logged at start.
        log_watch: watches their underlying topics.
        metrics: exports their figures to Prometheus.
        metrics_address: its host and port; with port 0 nothing is exported.
        entity_cleanup: removes deleted entities.
        not_served: entities of the configuration that were deleted before.
        users: the line about users for the log (X4).
        barred: entities that could not be served at the start, with the reasons (C52).
        late_entities: serves those later.
        key_watch: puts changed keys of users into force; None without users.
        membership: removes this worker's dead predecessor from the group.
        definitions: follows the definitions topic; None if `lapse.toml` decides about entities.
        definer: carries out clients' commands about definitions; None if `lapse.toml` decides.
    """

    entities: dict[str, Entity]
    reading: WorkerAgent
    services: Services
    warnings: list[str]
    log_watch: LogWatch
    metrics: MetricsServer
    metrics_address: tuple[str, int]
    entity_cleanup: EntityCleanup
    not_served: list[str]
    users: str
    barred: dict[str, list[str]]
    late_entities: LateEntities
    key_watch: KeyWatch | None
    _renewing: asyncio.Lock
    _make: Callable[..., Entity]
    membership: Membership
    definitions: DefinitionFollower | None
    definer: Definer | None
    _beside: set[asyncio.Task[None]]

    async def on_start(self) -> None:
        """Connect what the entities share, before Faust assigns their shards."""
        logger.info("%s", self.users)
        for warning in self.warnings:
            logger.warning("%s", warning)
        if self.not_served:
            logger.warning("Not served: %s", deletion_advice(self.not_served))
        for name, why in self.barred.items():
            logger.warning(
                "%s cannot be served: %s. Run `lapse apply`; it is taken up once that is mended", name, "; ".join(why)
            )
        await self.services.start()
        self.services.reads_ahead = not await self.membership.leave_for_the_dead()
        host, port = self.metrics_address
        if port:
            self.metrics.start(host, port)
        self.services.watch.start()
        self.log_watch.start()
        if self.definitions is not None:
            self.definitions.start()
        if self.definer is not None:
            self.definer.start()
        self.run_beside(self._finish_cleanup())
        self.late_entities.start()
        if self.key_watch is not None:
            self.run_beside(self.key_watch.run())
        self.run_beside(cast("BatchConsumer", self.consumer).end_if_refused())
        await super().on_start()

    async def _finish_cleanup(self) -> None:
        """Finish what a killed worker has left, once this one serves its entities: it reads all topics."""
        tables = self.tables
        assert isinstance(tables, SelfRestoredTables)
        await self.entity_cleanup.balanced()
        await tables.restored()
        await self.entity_cleanup.finish()

    def readiness(self) -> Readiness:
        """Return whether the worker serves what it should."""
        given: set[TP] = set()
        behind: dict[str, int] = {}
        if self.membership.joined:
            consumer = self.consumer
            assert isinstance(consumer, BatchConsumer)
            given, behind = consumer.assignment(), consumer.behind()
        joined = self.membership.joined or not self.entities  # a worker without entities is in no group
        return readiness(self.entities, given, joined, self.late_entities.barred, self.log_watch.away_s, behind)

    async def pause_shards(self, *_: Any, **__: Any) -> None:
        """Pause every shard, because after the rebalance another worker may have it."""
        await self.finish_take_overs()
        async with self._renewing:
            for runner in self._runners():
                await runner.pause()

    async def finish_take_overs(self) -> None:
        """Wait for the take-overs that have begun."""
        consumer, tables = self.consumer, self.tables
        assert isinstance(consumer, BatchConsumer)
        assert isinstance(tables, SelfRestoredTables)
        consumer.flows.set()  # take-overs need not wait for the flow any more
        await tables.restored()
        async with self._renewing:
            pass

    async def resume_shards(self, *_: Any, **__: Any) -> None:
        """Resume the shards that this worker kept."""
        for runner in self._runners():
            runner.resume()
        self.run_beside(self._after_take_overs())

    async def _after_take_overs(self) -> None:
        """Close the connections for take-overs, once none is under way, and stop serving what is deleted.

        That reads all topics, so that shards would be taken over later.
        """
        tables = self.tables
        assert isinstance(tables, SelfRestoredTables)
        await tables.restored()
        self.services.needed.settle()
        await self.services.changelog_reader.rest()
        await self.entity_cleanup.withdraw()
        await asyncio.to_thread(grammar)  # load it now, and not in the step with the first filter (C60)

    async def renew(self, entity: Entity, whole: Config | None = None, version: int = UNDEFINED) -> bool:
        """Take over the shards of an entity anew, because a topic that it reads or writes is another one now.

        This is not possible during a rebalance, after which another worker may have the shards. A rebalance waits for
        its end.

        Args:
            entity: the entity.
            whole: a configuration with new settings for it; None if only its topics have changed.
            version: the version of its definition that has these settings; `UNDEFINED` if that stays as it was.

        Returns:
            Whether it was done.
        """
        tables = self.tables
        assert isinstance(tables, SelfRestoredTables)
        async with self._renewing, tables.still() as open_:
            if open_ and not self.rebalancing and self.entities.get(entity.name) is entity:
                if whole is None:
                    logger.warning("%s: its topics have changed; its shards are taken over anew", entity.name)
                else:
                    entity.use_config(whole)
                    if version != UNDEFINED:
                        self.services.versions[entity.name] = version
                try:
                    await entity.renew()
                except Exception as error:  # noqa: BLE001  # crash-only
                    end_process(f"{entity.name}: its shards could not be taken over anew: {error}", error)
                return True
        return False

    async def take_in(self, config: Config, topology: Topology, together_ms: int) -> bool:
        """Serve the entities of a topology, which were defined while the worker runs (Q23).

        Args:
            config: everything that is served from now on.
            topology: the topics of the new entities on the cluster.
            together_ms: when all workers begin to read their topics, ms since the epoch.

        Returns:
            Whether they are served; False if the worker is stopping.
        """
        make = self._make
        return await self.late_entities.take_up(
            topology.entities(), topology, lambda name, there: make(name, there, config), together_ms
        )

    def run_beside(self, work: Coroutine[Any, Any, None]) -> None:
        """Run a task beside the shards. If it fails, the process ends."""
        start_task(work, "beside the shards", self._beside)

    async def release_shards(self, *_: Any, **__: Any) -> None:
        """Finish the steps under way, give up every shard, and disconnect."""
        consumer, tables = self.consumer, self.tables
        assert isinstance(consumer, BatchConsumer)
        assert isinstance(tables, SelfRestoredTables)
        consumer.flows.set()  # take-overs need not wait for the flow any more
        await tables.close()
        self.log_watch.stop()
        if self.definitions is not None:
            await self.definitions.stop()
        if self.definer is not None:
            await self.definer.stop()
        await self.late_entities.stop()
        for task in self._beside:
            task.cancel()
        for entity in self.entities.values():
            for partition in list(entity.runners):
                await entity.release(partition)
            await entity.close()
        self.services.watch.stop()
        self.metrics.stop()
        self.membership.close()
        await self.services.stop()

    def _runners(self) -> list[Runner]:
        return [runner for entity in self.entities.values() for runner in list(entity.runners.values())]
