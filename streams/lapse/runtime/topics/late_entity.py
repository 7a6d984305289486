"""Late entities: serves entities that could not be served at first, once they can be (C52).

Their topics were missing or misshapen, or no broker answered, at the worker's start or when they were defined. Each
worker looks every few seconds, and only while there is such an entity. It declares the entity's table to Faust, and
subscribes to its topics too. The group then rebalances, as after a deletion.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import TYPE_CHECKING, Final, Protocol

from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException

from lapse.protocol import topic as names
from lapse.runtime.topics.entity_cleanup import EntityCleanup, ServingWorker
from lapse.runtime.topics.standing import Standing
from lapse.runtime.topics.topology import Topology, TopologyError
from lapse.runtime.watch import end_process

if TYPE_CHECKING:
    from lapse.runtime.shard.served_entity import Entity

logger = logging.getLogger(__name__)

_EVERY_S: Final = 3.0
_LONGEST_S: Final = 1.0
"""The longest wait for a common instant, s, in case a clock is stepped meanwhile."""

_ANYWAY: Final = 20
"""One look in this number examines the whole cluster, even if no topic is new. Other looks only compare the topics'
names."""


class GrowingWorker(ServingWorker, Protocol):
    """The part of a worker that late entities need.

    Attributes:
        entity_cleanup: removes entities. Its lock ensures that only one of both changes the served entities.
    """

    entity_cleanup: EntityCleanup

    @property
    def is_alone(self) -> bool:
        """Whether no other worker was in the group at the last rebalance."""


class LateDefinitions(Protocol):
    """The part of the definitions that late entities need."""

    def begin_late(self, entities: Collection[str]) -> None:
        """Note that entities are about to be served."""

    def note_late(self, entities: Collection[str]) -> None:
        """Note that entities are served."""


class LateEntities:
    """Serves entities that could not be served at first.

    Args:
        app: the worker.
        barred: the entities, with the reasons why they could not be served.
        look: looks at the cluster for the entities as they are defined now; it blocks.
        make: makes an entity for the cluster as it is, and adds it to the worker's.
        definitions: is notified; None if `lapse.toml` decides.
    """

    def __init__(
        self,
        app: GrowingWorker,
        barred: Mapping[str, list[str]],
        look: Callable[[], Topology],
        make: Callable[[str, Topology], Entity],
        definitions: LateDefinitions | None = None,
    ) -> None:
        self._app = app
        self._definitions = definitions
        self._barred = dict(barred)
        self._look_at_cluster = look
        self._make = make
        self._seen: set[str] = set()
        self._looks = 0
        self._task: asyncio.Task[None] | None = None

    @property
    def barred(self) -> Mapping[str, list[str]]:
        """The entities that cannot be served so far, with the reasons."""
        return self._barred

    def add(self, barred: Mapping[str, list[str]]) -> None:
        """Add entities, with the reasons why they cannot be served so far."""
        self._barred |= barred
        self._seen = set()
        self.start()

    def remove(self, entities: Iterable[str]) -> None:
        """Remove entities, because they are served, defined anew, or deleted."""
        for name in entities:
            self._barred.pop(name, None)

    def start(self) -> None:
        """Start to look for their topics, if there is any such entity."""
        if self._barred and (self._task is None or self._task.done()):
            self._task = asyncio.create_task(self._run(), name="late entities")

    async def stop(self) -> None:
        """Stop looking. An entity whose service is being started is not waited for."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        try:
            while self._barred:
                await asyncio.sleep(_EVERY_S)
                try:
                    await self._look()
                except (KafkaError, KafkaException, TopologyError, TimeoutError) as error:
                    logger.warning("could not look for the topics of %s: %s", ", ".join(self._barred), error)
        except Exception as error:  # noqa: BLE001  # crash-only: an entity may be only half declared
            end_process(f"{', '.join(self._barred)}: could not be taken up: {error}", error)

    async def _look(self) -> None:
        there = await self._app.services.topics()
        self._looks += 1
        if there == self._seen and self._looks % _ANYWAY:
            return
        # `lapse apply` may just be creating them: wait until all topics of an entity exist.
        own = {one: {names.changelog(self._app.conf.id, one), names.commands(one)} for one in self._barred}
        if not any(some <= there for some in own.values()):
            self._seen = there
            return
        topology = await asyncio.to_thread(self._look_at_cluster)
        self._seen = there
        barred = topology.barred()
        whole = [
            one
            for one in self._barred
            if one in topology.entities() and one not in barred and topology.standing(one) is Standing.WHOLE
        ]
        if not whole:
            return
        if self._definitions is not None:
            self._definitions.begin_late(whole)
        if await self.take_up(whole, topology, self._make):
            for one in whole:
                logger.warning("%s: what it lacked is there now, and it is served", one)
            self.remove(whole)
            if self._definitions is not None:
                self._definitions.note_late(whole)

    async def take_up(
        self,
        entities: Collection[str],
        topology: Topology,
        make: Callable[[str, Topology], Entity],
        together_ms: int = 0,
    ) -> bool:
        """Serve these entities as well, while all others go on; the group rebalances once for all of them.

        Args:
            entities: their names.
            topology: the cluster, as far as they are concerned.
            make: makes an entity, and adds it to the worker's.
            together_ms: when all workers begin to read their topics, ms since the epoch; 0 for at once.

        Returns:
            Whether they are served; False if the worker is stopping.
        """
        app, cleanup = self._app, self._app.entity_cleanup

        async with cleanup.busy:
            await cleanup.balanced()
            entities = [name for name in entities if name not in app.entities]
            if not entities:
                return True
            if not await app.tables.grow(make(name, topology) for name in entities):
                return False
            topics = await app.reading.to_read()
            clock = app.services.clock
            if together_ms and clock.is_measured and not app.is_alone:
                await asyncio.sleep(min(_LONGEST_S, clock.seconds_until(together_ms)))
            await cleanup.read(topics)
        return True
