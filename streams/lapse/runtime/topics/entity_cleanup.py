"""Entity clean-up: workers stop reading a deleted entity, and its own topics are removed (C4, Q18).

All shards are stopped by then, so nothing more is written. First, the worker of shard 0 removes these topics from its
subscription, and the group rebalances. If other workers still read them, the shards are theirs now. These find that all
is done, stop reading likewise, and so on. The last worker removes the topics, so that nobody reads a missing topic. A
worker with nothing left to serve leaves the group for that. The changelog is removed last: as long as it exists, it
shows that the other topics are gone for good.

Underlying topics and dead letters belong to the user and stay. The events stay too, since they say what became of every
message. Topics that were created with a temporary entity, and that nobody else reads, are deleted with it: underlying
topics, and its events if it leaves no dead letters.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import struct
import time
from collections.abc import Awaitable, Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from typing import TYPE_CHECKING, Any, Final, Protocol

from aiokafka.admin import AIOKafkaAdminClient
from aiokafka.errors import KafkaError, for_code
from confluent_kafka import KafkaException

from lapse.protocol import topic as names
from lapse.runtime.kafka.group.member import subscribed_topics
from lapse.runtime.topics.patience import Patience
from lapse.runtime.topics.topology import TopologyError
from lapse.runtime.tp import TP

if TYPE_CHECKING:
    from lapse.runtime.kafka.agent import WorkerAgent
    from lapse.runtime.shard.served_entity import Entity
    from lapse.runtime.shard.services import Services

logger = logging.getLogger(__name__)

_UNKNOWN_TOPIC: Final = 3
_BALANCED: Final = frozenset({"Stable", "Empty", "Dead"})
"""States of a group in which no rebalance is under way. The last two are those of a group without members."""

_LOOK_S: Final = 0.02
"""The interval between two looks whether this worker's rebalance is over, s. Who creates or deletes waits for it."""

_PAUSE_S: Final = 0.1
"""The interval between two questions to the brokers, s."""

_NEXT_END_S: Final = 1.0
"""How long an entity that has ended waits for the next one that is about to end, s."""

_LAST_END_S: Final = 4.0
"""How long it waits for all of these, s."""

_PATIENCE_S: Final = 30.0
_AT_ONCE: Final = 50
"""How many topics one request deletes. Kafka answers once all of them are deleted."""


def unneeded(deleted: Iterable[Entity], left: Iterable[Entity]) -> set[str]:
    """Return the topics of deleted entities that stay on the cluster, and that no entity which is left names.

    Somebody may remove them, too. The worker's clients would then log for ever that they are missing.
    """

    def named(entities: Iterable[Entity]) -> set[str]:
        each = ((names.events(one.name), one.forward, *one.targets, *one.shapes) for one in entities)
        return {topic for some in each for topic in some if topic}

    return named(deleted) - named(left)


class ServingWorker(Protocol):
    """The part of a worker that the end of an entity needs.

    Attributes:
        conf: Faust's settings.
        entities: the served entities, by name.
        reading: the agent that reads their topics.
        services: the objects that they share.
        rebalancing: whether a rebalance is under way.
        rebalancing_count: the number of rebalances so far.
    """

    conf: Any
    entities: dict[str, Entity]
    reading: WorkerAgent
    services: Services
    rebalancing: bool
    rebalancing_count: int

    @property
    def consumer(self) -> Any:
        """Faust's consumer."""

    @property
    def tables(self) -> Any:
        """Faust's tables."""


class EndedDefinitions(Protocol):
    """The part of the definitions that the end of entities needs."""

    def topics_deleted_along(self, entities: Collection[str]) -> list[str]:
        """Return the topics that are deleted with entities, besides their own."""

    async def defined_anew(self, entities: Collection[str]) -> AbstractSet[str]:
        """Return those of the entities that were defined again since they ended."""

    async def unfinished(self, topics: Callable[[], Awaitable[AbstractSet[str]]]) -> list[str]:
        """Return entities without own topics of which other topics are left; `topics` returns all existing topics."""

    async def revoke(self, entities: Collection[str], gone: Collection[str]) -> None:
        """Revoke the rights on topics of temporary entities that were not defined again, and on what went with them."""

    async def withdraw(self, entities: Iterable[str]) -> None:
        """Remove the definitions of entities whose topics were removed."""


class EntityCleanup:
    """Removes entities from a worker, and their topics from the cluster.

    Args:
        app: the worker.
        connection: aiokafka's settings: brokers and security.
        definitions: knows what goes with an entity, and is notified of its end; None if `lapse.toml` decides.

    Attributes:
        busy: held while the set of served entities changes.
    """

    def __init__(
        self, app: ServingWorker, connection: Mapping[str, Any], definitions: EndedDefinitions | None = None
    ) -> None:
        self._definitions = definitions
        self._app = app
        self._connection = connection
        self.busy = asyncio.Lock()
        self._ended: list[Entity] = []

    async def clean_up(self, entity: Entity) -> None:
        """Stop serving an entity whose shards are all stopped, and remove its topics unless others still read them.

        Entities that end meanwhile are handled together, because each time the whole group rebalances (C90).
        """
        self._ended.append(entity)
        async with self.busy:
            await self._others_end()
            await self.balanced()
            ended, self._ended = self._ended, []
            ended = [one for one in ended if self._app.entities.get(one.name) is one]
            if not ended:
                return
            member = self._app.consumer.member
            await self._let_go(ended)
            admin = AIOKafkaAdminClient(**self._connection)
            try:
                await admin.start()
                read = await self._read_elsewhere(admin, member)
                for one in ended:
                    if names.commands(one.name) in read:
                        logger.info("%s is deleted; other workers are still giving it up", one.name)
                if left := [one.name for one in ended if names.commands(one.name) not in read]:
                    await self._remove(admin, left)
            except (KafkaError, OSError) as error:  # deleted in any case, so the worker goes on
                deleted = ", ".join(one.name for one in ended)
                logger.error("Deleted, but not all of their topics are removed: %s: %s. %s", deleted, error, _AGAIN)
            finally:
                await admin.close()

    async def _others_end(self) -> None:
        """Wait for the other entities that are about to end at this worker, as long as one after the other does.

        Each clean-up makes the group rebalance, and takes as long for one entity as for many.
        """
        patience, give_up = Patience(_NEXT_END_S), time.monotonic() + _LAST_END_S
        while not patience.is_over(len(self._ended)) and time.monotonic() < give_up:
            first = (one.runners.get(0) for one in self._app.entities.values())
            if not any(runner is not None and runner.machine.is_ending for runner in first):
                return
            await asyncio.sleep(_LOOK_S)

    async def withdraw(self) -> None:
        """Stop serving entities whose changelog no longer exists, whoever deleted it."""
        app = self._app
        async with self.busy:
            there = await self._there()
            gone = [one for one in app.entities.values() if names.changelog(app.conf.id, one.name) not in there]
            if gone:
                await self._let_go(gone)

    async def finish(self) -> None:
        """Remove what is left of entities whose removal was interrupted because a worker was killed (C4, C65).

        This reads all topics of the cluster, so call it after the worker serves its entities.
        """
        if self._definitions is None:
            return
        await self.balanced()
        async with self.busy:
            try:
                if left := await self._definitions.unfinished(self._there):
                    await self._finish(left)
            except (KafkaError, KafkaException, OSError, TopologyError) as error:
                logger.error("cannot remove what is left of deleted entities: %s. The next worker tries again", error)

    async def _finish(self, entities: list[str]) -> None:
        admin = AIOKafkaAdminClient(**self._connection)
        try:
            await admin.start()
            await self._end(admin, entities)
        finally:
            await admin.close()

    async def _there(self) -> set[str]:
        """Return every topic on the cluster, once a broker answers."""
        while True:
            try:
                return await self._app.services.topics()
            except KafkaException as error:
                logger.debug("cannot look for topics, and tries again: %s", error)
                await asyncio.sleep(_PAUSE_S)

    async def _let_go(self, entities: list[Entity]) -> None:
        app = self._app
        await self.balanced()
        own = {name for entity in entities for name in names.entity_topics(app.conf.id, entity.name)}
        own |= {name for entity in entities for name in entity.deliveries}
        for entity in entities:
            logger.warning(
                "%s was deleted and is not served any more. Take it out of lapse.toml; or `lapse apply` creates it "
                'anew. Workers serve it then at once; with definitions = "file" once they are started again',
                entity.name,
            )
            del app.entities[entity.name]
            for partition in list(entity.runners):
                await entity.release(partition)
            await entity.forget_copies()
            await entity.close()
            await asyncio.sleep(0)  # a turn for others after each entity (C90)
        app.services.forget(own | unneeded(entities, app.entities.values()))
        for entity in entities:
            app.reading.remove(entity.name)
        await self._read_what_is_left()
        for entity in entities:
            await app.tables.drop(names.table(entity.name))
            await asyncio.sleep(0)

    async def _read_what_is_left(self) -> None:
        left = await self._app.reading.to_read()
        if left:
            await self.read(left)
        else:
            await self._app.consumer.leave()
            logger.warning("nothing is left to serve")

    async def read(self, topics: list[str]) -> None:
        """Subscribe to these topics only; return when the group is balanced, and the shards run."""
        app = self._app
        begun, done = app.rebalancing_count, app.consumer.balanced_count
        await app.consumer.subscribe(topics)
        give_up = time.monotonic() + _PATIENCE_S
        while app.rebalancing_count == begun and time.monotonic() < give_up:
            # A rebalance that had begun before may take the topics in as well, and none follows it. Faust may say that
            # none is under way: the end of the previous one then counts for both.
            if app.consumer.is_balanced and app.consumer.balanced_count != done:
                break
            await asyncio.sleep(_LOOK_S)
        await self.balanced()

    async def balanced(self) -> None:
        """Wait until the group is balanced and the worker's shards run; Faust has no event for both."""
        app, tables = self._app, self._app.tables
        if not app.entities and not app.consumer.balanced_count:
            return  # it has served nothing so far, and is in no group
        while app.rebalancing or not tables.recovery.completed.is_set():  # noqa: ASYNC110
            await asyncio.sleep(_LOOK_S)

    async def _read_elsewhere(self, admin: AIOKafkaAdminClient, member: str) -> set[str]:
        """Return the topics that workers of the group still read.

        Args:
            admin: asks the broker.
            member: this worker's id before it stopped reading. It leaves the group if it has nothing left to read.
        """
        leaves = not self._app.entities
        conf = self._app.conf
        give_up = time.monotonic() + rebalance_patience_s(conf.broker_session_timeout, conf.broker_rebalance_timeout)
        while time.monotonic() < give_up:
            (answer,) = await admin.describe_consumer_groups([self._app.conf.id])
            group = answer.to_object()["groups"][0]
            members = {one["member_id"]: one["member_metadata"] for one in group["members"]}
            if group["state"] in _BALANCED and not (leaves and member in members):
                return {name for metadata in members.values() for name in subscribed_topics(metadata)}
            await asyncio.sleep(_PAUSE_S)
        return set()

    async def _remove(self, admin: AIOKafkaAdminClient, entities: list[str]) -> None:
        there = await self._there()
        own = {
            name: (*names.private_deliveries(name, there), *names.entity_topics(self._app.conf.id, name))
            for name in entities
        }
        left = list(entities)
        for part in (slice(None, -1), slice(-1, None)):  # the changelogs are removed last
            refused = await self._delete_topics(
                admin, [one for name in left for one in own[name][part] if one in there]
            )
            for name in left.copy():
                if refusals := ", ".join(f"{one}: {refused[one]}" for one in own[name] if one in refused):
                    logger.error("%s is deleted, but its topics could not be removed: %s. %s", name, refusals, _AGAIN)
                    left.remove(name)
            if part.stop is not None:  # what comes next removes the changelogs
                left = await self._without_new(left)
        for name in left:
            logger.info("%s is deleted; removed %s", name, ", ".join(one for one in own[name] if one in there))
        if left:
            await self._end(admin, left)

    async def _without_new(self, entities: list[str]) -> list[str]:
        """Return entities without those that were created again since they ended: the topics are the new ones' now.

        Whoever creates an entity does not wait for ever for a worker that removes the old one's topics.
        """
        anew = set[str]() if self._definitions is None else await self._definitions.defined_anew(entities)
        for name in sorted(anew):
            logger.info("%s was created again, so its topics stay", name)
        return [name for name in entities if name not in anew]

    async def _end(self, admin: AIOKafkaAdminClient, entities: list[str]) -> None:
        """Remove what goes with entities whose own topics are removed, and then their definitions."""
        if self._definitions is not None:
            gone = await self._take_along(admin, entities, self._definitions)
            await self._definitions.revoke(entities, gone)
            await self._definitions.withdraw(entities)

    async def _delete_topics(self, admin: AIOKafkaAdminClient, topics: list[str]) -> dict[str, str]:
        """Delete topics in several requests; return those that are refused, each with the reason."""
        refused: dict[str, str] = {}
        for batch in (topics[first : first + _AT_ONCE] for first in range(0, len(topics), _AT_ONCE)):
            answer = await admin.delete_topics(batch)
            refused |= {
                name: for_code(code).__name__
                for name, code in answer.topic_error_codes
                if code not in (0, _UNKNOWN_TOPIC)
            }
        return refused

    async def _take_along(
        self, admin: AIOKafkaAdminClient, entities: list[str], definitions: EndedDefinitions
    ) -> list[str]:
        """Remove topics that were created with temporary entities and that nobody else reads (C65); return them.

        Topics with dead letters stay, and so do the events of such an entity, which say where the letters come from. If
        the brokers are slow, an entity may have been created anew meanwhile. Then its topics belong to the new one.
        """
        topics = definitions.topics_deleted_along(entities)
        if not topics:
            return []
        read = (await self._read_by_groups(admin)).intersection(topics)
        shown = ", ".join(entities)
        for topic in sorted(read):
            logger.info("%s is deleted; topic %s, which was created with it, stays: others read it", shown, topic)
        there = await self._there()
        going = there.intersection(topics) - read
        for name in entities:
            letters = names.dead_letters(name)
            if letters in going and await self._holds_something(admin, letters):
                going.remove(letters)
            if letters in there - going:
                going.discard(names.events(name))
        if anew := await definitions.defined_anew(entities):
            logger.info("%s was created again; what was created with it stays", ", ".join(sorted(anew)))
            going.intersection_update(definitions.topics_deleted_along([one for one in entities if one not in anew]))
        if not going:
            return []
        self._app.services.forget(going)
        refused = await self._delete_topics(admin, sorted(going))
        gone = sorted(going - refused.keys())
        if gone:
            logger.info("%s is deleted; removed %s, which was created with it", shown, ", ".join(gone))
        if refused:
            why = ", ".join(f"{topic}: {one}" for topic, one in refused.items())
            logger.error("%s is deleted; what was created with it could not be removed: %s", shown, why)
        return gone

    async def _holds_something(self, admin: AIOKafkaAdminClient, topic: str) -> bool:
        """Return whether records were ever written to a topic; True if that cannot be found out."""
        (described,) = await admin.describe_topics([topic])
        tps = [TP(topic, one["partition"]) for one in described["partitions"]]
        ends = await self._app.services.aside_reader.existing_ends(tps)
        return not tps or len(ends) < len(tps) or any(ends.values())

    async def _read_by_groups(self, admin: AIOKafkaAdminClient) -> set[str]:
        """Return the topics that other consumer groups read, or have read."""
        found: set[str] = set()
        for group, *_ in await admin.list_consumer_groups():
            if group == self._app.conf.id:
                continue
            found |= {tp.topic for tp in await admin.list_consumer_group_offsets(group)}
            for answer in await admin.describe_consumer_groups([group]):
                for one in answer.to_object()["groups"]:
                    with contextlib.suppress(ValueError, TypeError, struct.error):  # not a consumer group
                        for member in one["members"]:
                            found.update(subscribed_topics(member["member_metadata"]))
        return found


def rebalance_patience_s(session_s: float, rebalance_s: float) -> float:
    """Return how long a rebalance may take, s: until Kafka has removed a worker that is frozen.

    Until then that worker may wake up, and read topics that are removed.

    Args:
        session_s: the group's session timeout, s.
        rebalance_s: the group's rebalance timeout, s. A member that has not joined by then is removed as well.
    """
    return min(session_s, rebalance_s) + _PATIENCE_S


_AGAIN: Final = (
    "Give the worker's user the right to Delete lapse's topics; the next worker that starts with it in lapse.toml "
    "tries again"
)
