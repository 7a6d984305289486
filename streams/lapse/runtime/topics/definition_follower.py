"""The definition follower: applies changes of definitions in a running worker (Q23, C66).

The shards of an entity whose settings change are taken over anew, by the same workers. No other entity waits for that.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, Protocol

from lapse.config import Config
from lapse.config.decided_entities import DecidedEntities
from lapse.config.definition import (
    UNDEFINED,
    Definition,
    DefinitionChange,
    checked_settings,
    drop_entities,
    find_change,
    keep_entities,
    with_entities,
    with_entity,
    with_only_defined,
)
from lapse.protocol import topic as names
from lapse.runtime.topics.cluster import Cluster
from lapse.runtime.topics.definitions import DefinitionsTopic, OutdatedChange, understood
from lapse.runtime.topics.definitions_reader import note
from lapse.runtime.topics.topic_follower import TopicFollower, TopicIdentity
from lapse.runtime.topics.topology import Topology, TopologyError
from lapse.runtime.watch import end_process

if TYPE_CHECKING:
    from lapse.runtime.shard.served_entity import Entity
    from lapse.runtime.shard.services import Services
    from lapse.runtime.topics.late_entity import LateEntities

logger = logging.getLogger(__name__)

_AGAIN_S: Final = 0.2
_GONE: Final = (
    "what is served goes on, but workers that start now serve their own lapse.toml, and know no entity that was "
    "created at run time. Run `lapse apply`: it creates the topic, and defines what lapse.toml has. Then create the "
    "others again, with the same settings: what is in them stays"
)
_MOST_ENDED: Final = 10_000
"""Of how many deleted entities the last record is remembered, in case the topic is read again from its beginning."""

_TOGETHER_MS: Final = 300
"""Time from the writing of new definitions until all workers begin to read the new topics, ms. So the group
rebalances once for all workers, and not once for each (C90)."""

_EACH_MS: Final = 10
"""What each definition adds to that, ms, because workers look all of their topics up first."""


class FollowingWorker(Protocol):
    """The part of a worker that changes of definitions need.

    Attributes:
        entities: the served entities, by name.
        services: the objects that its entities share.
        late_entities: serves entities that cannot be served yet.
    """

    entities: dict[str, Entity]
    services: Services
    late_entities: LateEntities

    @property
    def tables(self) -> Any:
        """Faust's tables, including those of deleted entities."""

    def renew(self, entity: Entity, whole: Config | None = None, version: int = UNDEFINED) -> Awaitable[bool]:
        """Take over the shards of an entity anew, with the settings of a version; return whether that was possible."""

    def take_in(self, config: Config, topology: Topology, together_ms: int) -> Awaitable[bool]:
        """Serve the new entities of a topology, read from an instant on; return False if the worker is stopping."""


class DefinitionFollower:
    """Follows the definitions topic.

    Args:
        app: the worker.
        config: configuration of the cluster and the deployment.
        decided: the definitions with which the worker began.
        connection: aiokafka's settings: brokers and security.

    Attributes:
        on_served: called with the name of each entity whose new definition is served here.
        on_ended: called with the name of each entity whose definition was removed.
    """

    def __init__(
        self, app: FollowingWorker, config: Config, decided: DecidedEntities, connection: Mapping[str, Any]
    ) -> None:
        self._app = app
        self._config = config
        self._topic = DefinitionsTopic(config)
        self._beside = decided.beside
        self._serving: dict[str, Definition] = dict(decided.definitions)
        self._found: dict[str, bytes] = {}
        self._heard: dict[str, int] = dict(decided.offsets)
        """By entity, the offset of the last record. What the worker read at its start comes again, and is no news."""
        self._late: dict[str, Definition] = {}
        """Definitions that cannot be served yet, by entity."""
        self._served_by: dict[str, int] = dict(decided.offsets)
        """By entity, the offset of the last definition that was served, or that arrived while it was served."""
        self._conflicting: dict[str, tuple[DefinitionChange, str]] = {}
        """Changes that cannot be taken up beside the other definitions, and why, by entity."""
        identity = TopicIdentity(
            self._topic.name, lambda names: app.services.topic_ids.of(names, once=True), _GONE, self._begin_anew
        )
        self._follower = TopicFollower(
            self._topic.name, connection, self._follow, listed=app.services.topics, identity=identity
        )
        self._ended: dict[str, None] = {}
        """Entities whose definitions were removed, the earliest first."""
        self.on_served: Callable[[str], None] = _ignore
        self.on_ended: Callable[[str], None] = _ignore

    def start(self) -> None:
        """Start to follow."""
        self._follower.start()

    async def stop(self) -> None:
        """Stop following."""
        await self._follower.stop()

    @property
    def config(self) -> Config:
        """The configuration with the entities as they are defined now, those included that cannot be served yet."""
        return self._config

    def begin_late(self, entities: Collection[str]) -> None:
        """Note that entities are about to be served that could not be before: their shards claim the versions."""
        versions = {name: self._late[name].version for name in entities if name in self._late}
        self._app.services.versions.update(versions)

    def note_late(self, entities: Collection[str]) -> None:
        """Note that entities are served that could not be before."""
        for name in entities:
            self._note_served(name, self._late.pop(name, None) or self._serving.get(name))

    def version(self, name: str) -> int:
        """Return the version of an entity's definition that is served here; 0 if none."""
        served = self._serving.get(name)
        return 0 if served is None else served.version

    def topics_deleted_along(self, entities: Collection[str]) -> list[str]:
        """Return topics that are deleted with temporary entities: created with them, and used by no other (C65)."""
        others: dict[str, Definition] = {}
        for other, value in self._found.items():
            with contextlib.suppress(ValueError):
                others[other] = Definition.decode(other, value)
        made: dict[str, None] = {}
        for name in entities:
            own = others.pop(name, None) or self._serving.get(name)
            if own is not None and own.settings.get("auto_delete_on_idle"):
                # Letters in a topic with another name stay, and so do the events to which they belong.
                stays = names.events(name) if isinstance(own.settings.get("dead_letter"), str) else ""
                made.update(dict.fromkeys(topic for topic in own.made if topic != stays))
        if not made:
            return []
        config = with_only_defined(self._config, others.values(), self._beside)
        written: set[str | None] = {config.forward_topic(name) for name in config.queue}
        written.update(one.dead_letter_topic(name) for name, one in (*config.queue.items(), *config.sow.items()))
        served = {*config.queue, *config.sow, *entities}
        strange = [value for name, value in self._found.items() if name not in served]
        return [
            topic
            for topic in made
            if topic not in written and not config.readers(topic) and not any(_may_use(one, topic) for one in strange)
        ]

    async def defined_anew(self, entities: Collection[str]) -> set[str]:
        """Return those of deleted entities that were defined again since, perhaps unread here so far.

        If the definitions cannot be read, every one may be.
        """
        try:
            contents = await asyncio.to_thread(self._topic.read_if_there)
        except TopologyError as error:
            logger.warning("%s: what was created with it stays: %s", ", ".join(entities), error)
            return set(entities)
        offsets = {} if contents is None else {name: contents.offsets[name] for name in contents.found}
        return {name for name in entities if offsets.get(name, -1) > self._served_by.get(name, -1)}

    async def unfinished(self, topics: Callable[[], Awaitable[AbstractSet[str]]]) -> list[str]:
        """Return deleted temporary entities that are still defined, because the worker that ended them was killed.

        Args:
            topics: returns the topics on the cluster. We ask after we have read the definitions: the topics of an
                entity are created before its definition is written, so a new one is not taken for a deleted one.
        """
        if not any(one.made and name not in self._app.entities for name, one in self._serving.items()):
            return []
        contents = await asyncio.to_thread(self._topic.read_if_there)
        found, offsets = ({}, {}) if contents is None else (contents.found, contents.offsets)
        there = await topics()
        needed = {
            name: {*names.entity_topics(self._config.lapse.app_id, name), *one.made}
            for name, one in understood(found).items()
            if one.made and one.settings.get("auto_delete_on_idle") and name not in self._app.entities
        }
        gone = [name for name in needed if not there & {*names.entity_topics(self._config.lapse.app_id, name)}]
        if gone:
            # Without the right to see an entity's topics, we do not know whether it is deleted.
            asked = [topic for name in gone for topic in needed[name] - there]
            hidden = await asyncio.to_thread(Cluster(self._config).hidden, asked)
            gone = [name for name in gone if not hidden & needed[name]]
        self._found = {**found, **self._found}
        for name in gone:
            self._served_by[name] = offsets[name]
        return gone

    async def revoke(self, entities: Collection[str], gone: Collection[str]) -> None:
        """Revoke the rights on topics of temporary entities. Their names are unique, so rights would pile up.

        The rights of one that was defined again since belong to the new one.

        Args:
            entities: the deleted entities.
            gone: the topics that were deleted with them, besides their own.
        """
        temporary = [name for name in entities if (one := self._serving.get(name)) is not None and one.made]
        users = self._config.users
        if not temporary or all(one.principal is None for one in users.values()):
            return
        anew = await self.defined_anew(temporary)
        temporary = [name for name in temporary if name not in anew]
        own = [topic for name in temporary for topic in names.entity_topics(self._config.lapse.app_id, name)]
        private = [names.deliveries(name, user) for name in temporary for user in users]
        try:
            await asyncio.to_thread(Cluster(self._config).revoke, [*own, *private, *gone])
        except TopologyError as error:
            logger.warning("%s: %s", ", ".join(temporary), error)

    async def withdraw(self, entities: Iterable[str]) -> None:
        """Remove the definitions of entities whose topics were deleted."""
        served = {name: self._served_by.get(name, -1) for name in entities}
        try:
            await self._topic.retry_if_outdated(lambda: asyncio.to_thread(self._topic.withdraw, served))
        except (OutdatedChange, TopologyError) as error:
            logger.warning("deleted, but the definition remains: %s: %s", ", ".join(served), error)

    def _begin_anew(self) -> None:
        """Forget the offsets of a topic that was deleted, and created again."""
        self._found.clear()
        self._heard.clear()
        self._served_by.clear()  # else a definition that we have not read yet would seem to be an older one

    async def _follow(self, records: Sequence[Any]) -> None:
        named: set[str] = set()
        for record in records:
            name = note(self._found, record.key, record.value)
            if name is not None and record.offset > self._heard.get(name, -1):
                self._heard[name] = record.offset
                named.add(name)
                if name not in self._found:
                    self._ended[name] = None
        new: list[Definition] = []
        written_ms = min((record.timestamp for record in records), default=0)
        together_ms = written_ms + _TOGETHER_MS + _EACH_MS * len(records)
        gone = named - self._found.keys()
        if gone:  # the whole configuration is checked, which takes long with many entities (C90)
            self._config = await asyncio.to_thread(drop_entities, self._config, gone)
        for name in gone:
            self._forget(name)
        for name in named - gone:
            anew = name in self._ended
            self._ended.pop(name, None)
            new += await self._hear(name, self._found[name], anew)
        if new:
            await self._begin(new, together_ms)
        if gone or new:
            await self._follow_targets()
        if named:
            await self._take_up_conflicting(named)

    def _forget(self, name: str) -> None:
        """Forget an entity whose definition was removed."""
        self._app.late_entities.remove([name])
        self._late.pop(name, None)
        self._conflicting.pop(name, None)
        if name not in self._app.entities:  # else it is compared with what is created in its place
            self._serving.pop(name, None)
            self._app.services.versions.pop(name, None)
        self.on_ended(name)
        if len(self._ended) > _MOST_ENDED:  # names of temporary entities are used once
            oldest = next(iter(self._ended))
            del self._ended[oldest]
            self._heard.pop(oldest, None)
            self._served_by.pop(oldest, None)

    async def _hear(self, name: str, value: bytes, anew: bool) -> list[Definition]:
        """Apply a new definition, `anew` if the entity was deleted before; return it if that is not served yet.

        Its version may be no higher than the served one if Kafka no longer knows of the deletion.
        """
        serving = self._serving.get(name)
        here = name in self._app.entities
        self._conflicting.pop(name, None)
        if here:
            self._served_by[name] = self._heard[name]
        try:
            after = Definition.decode(name, value)
            differs = find_change(serving, after, self._beside)
            if differs is not None and "on_expire" in differs.keys:
                await asyncio.to_thread(checked_settings, after, self._beside)  # imports the function that it names
        except ValueError as error:
            logger.error("%s; what was served goes on. Mend it, or use the same version of lapse everywhere", error)
            return []
        if not here:
            return [after]
        if differs is None:
            self._serving[name] = after
            self.on_served(name)
        elif not differs.at_run_time and serving is not None and (anew or after.version <= serving.version):
            end_process(
                f"{name}: was deleted and created again while this worker started. It starts anew to serve that"
            )
        elif not differs.at_run_time:
            what = ", ".join(differs.keys) or "it as a whole"
            logger.warning(
                "%s: version %d changes %s; it counts from the worker's next start on", name, after.version, what
            )
        else:
            await self._take_up(differs)
        return []

    async def _begin(self, new: list[Definition], together_ms: int) -> None:
        """Serve new entities whose topics exist. Topics are created before an entity is defined.

        Args:
            new: their definitions.
            together_ms: when all workers begin to read their topics, ms since the epoch.
        """
        # A deleted entity with the same name may have been of the other kind.
        others = await asyncio.to_thread(drop_entities, self._config, {one.name for one in new})
        whole, understood, faults = await asyncio.to_thread(with_entities, others, new, self._beside)
        for name, fault in faults.items():
            logger.error("%s is defined, and cannot be served: %s", name, fault)
        self._config, late = whole, self._app.late_entities
        late.remove(understood)
        self._late.update(understood)
        try:
            topology = await asyncio.to_thread(
                lambda: Cluster(keep_entities(whole, understood)).topology(served=True, few=True)
            )
        except TopologyError as error:
            logger.error("%s: defined, and cannot be served; trying again: %s", ", ".join(understood), error)
            late.add({name: [str(error)] for name in understood})
            return
        barred = topology.barred()
        for name, why in barred.items():
            logger.warning(
                "%s is defined, and cannot be served: %s. Run `lapse apply`; it is taken up once that is mended",
                name,
                "; ".join(why),
            )
        late.add(barred)
        topology = topology.without(barred)
        if not topology.entities():
            return
        self.begin_late(topology.entities())
        if not await self._app.take_in(whole, topology, together_ms):
            return
        for name in topology.entities():
            if (one := self._late.pop(name, None)) is not None:
                self._note_served(name, one)

    def _note_served(self, name: str, one: Definition | None) -> None:
        """Note the definition by which an entity is served from now on; None if it was deleted meanwhile."""
        if one is None:
            return
        self._serving[name] = one
        if name in self._heard:
            self._served_by[name] = self._heard[name]
        logger.info("%s: version %d is served: new, by %s", name, one.version, one.origin)
        self.on_served(name)

    async def _take_up(self, differs: DefinitionChange) -> None:
        after = differs.after
        try:
            whole = await asyncio.to_thread(with_entity, self._config, after, self._beside)
        except ValueError as error:
            self._conflicting[after.name] = differs, str(error)
            return
        entity = self._app.entities.get(after.name)
        if entity is None or not await self._renewed(entity, whole, after.version):
            return
        self._serving[after.name], self._config = after, whole
        logger.info(
            "%s: version %d is served: %s changed, by %s",
            after.name,
            after.version,
            ", ".join(differs.keys),
            after.origin,
        )
        self.on_served(after.name)
        await self._follow_targets()

    async def _follow_targets(self) -> None:
        """Take over anew the queues that forward to a queue if they now write to another topic.

        That queue has another publish target, was deleted, or was created.
        """
        for other in list(self._app.entities.values()):
            if other.name in self._config.queue and other.forward != self._config.forward_topic(other.name):
                await self._renewed(other, self._config)

    async def _take_up_conflicting(self, named: Collection[str]) -> None:
        """Take up changes that conflicted with others before these were taken up; log conflicts that are new."""
        before = len(self._conflicting) + 1
        while 0 < len(self._conflicting) < before:
            before = len(self._conflicting)
            for differs, _ in list(self._conflicting.values()):
                del self._conflicting[differs.after.name]
                await self._take_up(differs)
        for name in self._conflicting.keys() & named:
            differs, why = self._conflicting[name]
            logger.error("%s: version %d conflicts: %s; what was served goes on", name, differs.after.version, why)

    async def _renewed(self, entity: Entity, whole: Config, version: int = UNDEFINED) -> bool:
        """Take over the shards of an entity anew, once that is possible; return False if it was deleted meanwhile.

        Until then a rebalance takes shards over with the old settings, so these are the version that they claim.
        """
        while self._app.entities.get(entity.name) is entity:
            if await self._app.renew(entity, whole, version):
                return True
            await asyncio.sleep(_AGAIN_S)  # a rebalance is under way
        return False


def _may_use(value: bytes, topic: str) -> bool:
    """Return whether a definition that cannot be used here may be of an entity that uses a topic."""
    return topic.encode() in value or b'"topic_pattern"' in value


def _ignore(entity: str) -> None:
    """Do nothing."""
