"""The log watch: notices changes of the topics that entities name (C40, C42, C52, C81).

Kafka removes old records by itself, and people delete and create topics and add partitions. A worker regularly asks, in
one request for all of its shards, which topics exist and where their partitions begin. A missing topic is logged once
for each entity that needs it. When the topic exists, the shards of an entity that cannot use it otherwise are taken
over anew.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Final

from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException

from lapse.protocol import topic as names
from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.shard.runner import Runner
from lapse.runtime.topics.topic_id import Shape, TopicIds
from lapse.runtime.tp import TP

if TYPE_CHECKING:
    from lapse.runtime.shard.served_entity import Entity

logger = logging.getLogger(__name__)

_EVERY_S: Final = 5.0
_AT_ONCE: Final = 20
"""How many shards are looked at in one turn of the loop (C90)."""

_AT_REST: Final = 12
"""One look in this number includes the beginnings of logs of shards without messages. No message of theirs can be
lost, and unread records are about to be read."""

_TOPICS_A_SECOND: Final = 200
"""With more topics than can be looked up in five seconds at this rate, a look is less frequent."""

_DELETED_AFTER: Final = 3
"""A topic that is missing this many times in a row is deleted. A broker that has just started may not know all
topics."""


class LogWatch:
    """Watches the logs of all shards of a worker.

    Args:
        entities: returns the current entities of the worker.
        renew: takes over the shards of an entity anew.
        topic_ids: knows which topics exist.
        log: knows where partitions begin.
    """

    def __init__(
        self,
        entities: Callable[[], Iterable[Entity]],
        renew: Callable[[Entity], Awaitable[object]],
        topic_ids: TopicIds,
        log: LogReader,
    ) -> None:
        self._entities = entities
        self._renew = renew
        self._topic_ids = topic_ids
        self._log = log
        self._missing: Counter[str] = Counter()
        self._topics = 0
        self._looks = 0
        self._task: asyncio.Task[None] | None = None
        self._away_since: float | None = None

    @property
    def away_s(self) -> float | None:
        """For how long the brokers have not answered, s; None if they answer."""
        return None if self._away_since is None else time.monotonic() - self._away_since

    def start(self) -> None:
        """Start to look."""
        self._task = asyncio.create_task(self._run(), name="log watch")

    def stop(self) -> None:
        """Stop looking."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(max(_EVERY_S, self._topics / _TOPICS_A_SECOND))
            try:
                await self.look()
                self._away_since = None
            except (KafkaError, KafkaException, TimeoutError) as error:
                self._away_since = self._away_since or time.monotonic()
                logger.warning("could not look at the underlying topics; trying again soon: %s", error)
            except Exception:
                # Go on in any case, because nothing else notices what Kafka removes.
                logger.exception("looking at the underlying topics failed; trying again soon")

    async def look(self) -> None:
        """Look once.

        If a topic was created again, its shards are taken over anew. A shard then closes what it knows of the old
        topic, in order with everything else that happens to it.
        """
        known = list(self._entities())
        entities = [entity for entity in known if entity.runners]
        runners = [runner for entity in entities for runner in list(entity.runners.values())]
        bears: dict[Runner, set[str]] = {}
        for runner in runners:
            bears[runner] = {*runner.topics.facts, *(tp.topic for tp in runner.sources)}
            await _turn(len(bears))
        targets = {topic for entity in entities for topic in entity.targets}
        elsewhere = {names.commands(entity.name): entity for entity in known if not entity.runners}
        topics = targets.union(elsewhere, *bears.values())
        self._topics = len(topics)
        # A worker without shards must know as well whether the brokers answer (`away_s`).
        shapes = await self._topic_ids.shapes(topics or {names.commands(one.name) for one in known[:1]}, once=True)
        replaced: set[str] = set()
        reads = {entity.name: entity.reads for entity in entities}
        for number, (runner, some) in enumerate(bears.items(), 1):
            await _turn(number)
            for name in some & shapes.keys():
                is_another = runner.topics.is_another(name, shapes[name].id)
                if is_another and name not in runner.topics.replaced and reads[runner.entity](name):
                    replaced.add(runner.entity)
                runner.topics.learn(name, shapes[name].id)
        renewed = set()
        for number, entity in enumerate(entities, 1):
            await _turn(number)
            entity.apart |= entity.name in replaced
            if entity.attend(shapes) or entity.name in replaced or await entity.has_new_shards():
                renewed.add(entity.name)
                await self._renew(entity)
        for commands, entity in elsewhere.items():
            if commands in shapes and shapes[commands].partitions > entity.partitions:
                await self._see_shards(entity)
        await self._look_at_unread(entities)
        await self._look_at_beginnings([one for one in runners if one.entity not in renewed], shapes)

    async def _see_shards(self, entity: Entity) -> None:
        """Have new shards assigned of an entity that has no shard here: this worker may lead the group (C81).

        Only the leader assigns shards, and it asks for the numbers of partitions every five minutes by itself.
        """
        before = entity.partitions
        await entity.look_at_size()
        if entity.partitions > before:
            worker: Any = entity.app
            await worker.consumer.look_again()

    async def _look_at_unread(self, entities: Iterable[Entity]) -> None:
        """Count the records in added partitions that no shard reads (C81)."""
        for entity in entities:
            unread = entity.unread_partitions()
            if not unread and not entity.unread:
                continue
            ends = await self._log.existing_ends(unread)
            begins = await self._log.begins(ends)
            entity.note_unread({tp: end - begins[tp] for tp, end in ends.items()})

    async def _look_at_beginnings(self, runners: Iterable[Runner], shapes: Mapping[str, Shape]) -> None:
        """Tell the shards where the logs begin that they read or have messages of."""
        held: dict[Runner, set[TP]] = {}
        for runner in runners:
            held[runner] = set(runner.machine.held_sources())
            await _turn(len(held))
        all_ = self._looks % _AT_REST == 0
        self._looks += 1
        read = {runner: {*runner.sources, *tps} for runner, tps in held.items() if tps or all_}
        missing = {tp.topic for tps in held.values() for tp in tps} - shapes.keys()
        self._missing = Counter({name: self._missing[name] + 1 for name in missing})
        there = {name: shape.partitions for name, shape in shapes.items()}
        begins = await self._log.begins(
            {tp for tps in read.values() for tp in tps if tp.partition < there.get(tp.topic, 0)}
        )
        for runner, tps in read.items():
            for tp in tps & begins.keys():
                await runner.log_begins(tp, begins[tp])
        for runner, tps in held.items():
            for tp in tps:
                if self._missing[tp.topic] >= _DELETED_AFTER:
                    runner.log_is_deleted(tp)


async def _turn(number: int) -> None:
    """Let others have a turn after every `_AT_ONCE` steps of a loop."""
    if not number % _AT_ONCE:
        await asyncio.sleep(0)
