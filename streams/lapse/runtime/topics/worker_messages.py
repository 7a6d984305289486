"""Messages between workers about definitions: which version is served, what is live (C65, C66).

They are records of the topic of commands about definitions, like shard messages on an entity's commands topic. Each
worker reads all of them from its start on. If users are configured, they are sealed with the workers' key.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol
from uuid import uuid4

import orjson
from aiokafka.errors import KafkaError

from lapse.protocol import topic as names
from lapse.runtime.authorization.authorizer_memory import remembering
from lapse.runtime.authorization.command_authorizer import CommandAuthorizer, Guard
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard.services import Services
from lapse.runtime.shard.shard_message import SHARD_MESSAGE_KEY
from lapse.runtime.topics.topic_follower import TopicFollower
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

_SERVED: Final = "served"
_LIVE: Final = "live"
_ASK_SERVED: Final = "who serves"
_ASK_LIVE: Final = "what is live"

_CLOCK_KEY: Final = b"\x00clock"
"""Key of a record that is written to measure the broker's clock."""

_AGAIN_S: Final = 0.5
"""The interval between repeated questions, s. Shards move between workers, and a worker may just have started."""


class LocalShards(Protocol):
    """What a worker knows of its own shards."""

    def served(self, entity: str) -> tuple[int, list[int]]:
        """Return the version that is served here, and the shards that serve it."""

    async def live(self, entity: str) -> dict[int, dict[str, int]]:
        """Return the numbers of live messages or records of each shard of this worker, by underlying topic."""


class WorkerMessages:
    """Sends messages to the other workers, asks questions, and answers theirs.

    Args:
        definer: the definer's name, which forms the topic's name like an entity's.
        services: the objects that the worker's entities share.
        guard: the keys for seals; None if no users are configured, so that messages are not sealed.
        local: this worker's own shards.
    """

    def __init__(self, definer: str, services: Services, guard: Guard | None, local: LocalShards) -> None:
        self._topic = names.commands(definer)
        self._services = services
        self._guard = guard
        self._local = local
        self._authorizer: CommandAuthorizer | None = None
        self._listens = False
        self._served: dict[str, tuple[int, set[int]]] = {}
        self._live: dict[str, dict[int, dict[str, int]]] = {}
        self._news = asyncio.Event()
        self._follower = TopicFollower(self._topic, services.connection, self._take, from_end=True)

    async def start(self) -> None:
        """Start to listen."""
        await self._measure_clock()
        if self._guard is not None:
            tp = TP(self._topic, 0)
            end = (await self._services.log_reader.ends([tp]))[tp]
            now_ms = self._services.clock.now_ms()
            self._authorizer = await remembering(self._guard, tp, end, self._services.log_reader, now_ms)
        self._follower.start()
        self._listens = True

    async def _measure_clock(self) -> None:
        """Measure the broker's clock, which a worker without shards does not know yet."""
        clock = self._services.clock
        began = time.monotonic()
        if not clock.is_measured:
            written = await self._services.output_producer.send_one(self._topic, 0, _CLOCK_KEY, b"")
            clock.measured(began, time.monotonic(), written.timestamp)

    async def stop(self) -> None:
        """Stop listening."""
        await self._follower.stop()

    def forget(self, entity: str) -> None:
        """Forget what is served of an entity, because it is deleted: a new one may have versions of the same number."""
        self._served.pop(entity, None)

    async def announce_served(self, entity: str) -> None:
        """Tell the others which shards of an entity are served here, and in which version."""
        version, shards = self._local.served(entity)
        if shards:
            await self._send(_SERVED, entity=entity, version=version, shards=shards)

    async def await_served(self, entity: str, version: int, shards: int, timeout_s: float) -> list[int]:
        """Wait until all shards of an entity serve a version.

        Args:
            entity: name of the entity.
            version: version of its definition.
            shards: its number of shards.
            timeout_s: how long to wait, s.

        Returns:
            The shards that were not reported in time.
        """

        def late() -> list[int]:
            known, ready = self._served.get(entity, (0, set()))
            return [one for one in range(shards) if known != version or one not in ready]

        await self._ask(_ASK_SERVED, entity, lambda: not late(), timeout_s)
        return late()

    async def live(self, entity: str, shards: int, timeout_s: float) -> dict[str, int] | None:
        """Return how many messages or records all shards have, by topic; None if one did not answer in time.

        The topic `""` stands for an unknown one.
        """
        question = uuid4().hex
        live_by_shard = self._live[question] = {}
        try:
            await self._ask(_ASK_LIVE, entity, lambda: len(live_by_shard) >= shards, timeout_s, question)
            return dict(sum(map(Counter, live_by_shard.values()), Counter())) if len(live_by_shard) >= shards else None
        finally:
            del self._live[question]

    async def _ask(
        self, kind: str, entity: str, done: Callable[[], bool], timeout_s: float, question: str = ""
    ) -> None:
        loop = asyncio.get_running_loop()
        give_up = loop.time() + timeout_s
        ask_at = loop.time()
        while not done() and (now := loop.time()) < give_up:
            if now >= ask_at:
                await self._send(kind, entity=entity, question=question)
                ask_at = now + _AGAIN_S
            self._news.clear()
            try:
                async with asyncio.timeout(min(give_up, ask_at) - now):
                    await self._news.wait()
            except TimeoutError:
                continue

    async def _send(self, kind: str, **what: Any) -> None:
        if not self._listens:
            return  # the topic may not exist
        value = orjson.dumps({"kind": kind, **what})
        seal = [] if self._authorizer is None else self._authorizer.seal(0, value)
        output = Output(self._topic, 0, SHARD_MESSAGE_KEY, value, seal)
        try:
            for safe in await self._services.output_producer.send([output]):
                await safe
        except KafkaError as error:  # the asker gets no answer, and reports that
            logger.warning("%s: could not be written: %s", self._topic, error)

    async def _take(self, records: Sequence[Any]) -> None:
        for record in records:
            if record.key != SHARD_MESSAGE_KEY:
                continue
            if self._authorizer is not None and not self._authorizer.is_sealed(record):
                logger.warning("%s, offset %d: a message that no worker has sealed", self._topic, record.offset)
                continue
            try:
                await self._hear(orjson.loads(record.value))
            except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
                logger.warning("%s, offset %d: no message of a worker: %r", self._topic, record.offset, error)

    async def _hear(self, facts: Mapping[str, Any]) -> None:
        kind, entity = facts["kind"], str(facts["entity"])
        if kind == _SERVED:
            version, shards = int(facts["version"]), {int(one) for one in facts["shards"]}
            known, ready = self._served.get(entity, (0, set()))
            self._served[entity] = (version, ready | shards if known == version else shards)
        elif kind == _LIVE:
            live_by_shard = self._live.get(facts["question"])
            if live_by_shard is not None:
                by_topic = facts.get("topics", {})  # older versions send the numbers of all topics together
                for shard, count in facts["live"].items():
                    live_by_shard[int(shard)] = dict(by_topic.get(shard, {"": int(count)}))
        elif kind == _ASK_SERVED:
            await self.announce_served(entity)
        elif kind == _ASK_LIVE:
            topics = {str(shard): counts for shard, counts in (await self._local.live(entity)).items()}
            if topics:
                live = {shard: sum(counts.values()) for shard, counts in topics.items()}
                await self._send(_LIVE, entity=entity, question=facts["question"], live=live, topics=topics)
        self._news.set()
