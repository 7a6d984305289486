"""Topic ids: a topic that is deleted and created again bears its name, and is another one (C42).

Positions, bookmarks and state are about one topic. Which one, is written down with the read positions, in the same
record: the two cannot disagree.
"""

from __future__ import annotations

import asyncio
import logging
import math
import threading
import time
from collections.abc import Iterable, Mapping
from concurrent.futures import Future
from typing import Any, Final, NamedTuple

from confluent_kafka import KafkaError, KafkaException, TopicCollection
from confluent_kafka.admin import AdminClient

from lapse.runtime.kafka.together import Together

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 15.0
_MOST_PATIENCE_S: Final = 120.0
"""How long an answer is waited for, s: at first, and at most once brokers have turned out to be slow."""

_AGAIN_S: Final = 0.5
_GIVE_UP_S: Final = 300.0
"""How long is asked without an answer, s; brokers that are away for longer are waited for by a new worker."""

_LATE: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT}
    | {KafkaError._ALL_BROKERS_DOWN}
)


class Shape(NamedTuple):
    """What a topic is now.

    Attributes:
        id: which one it is of its name.
        partitions: how many it has.
    """

    id: str
    partitions: int


class TopicIds:
    """Asks the brokers for the ids of topics, and which topics there are.

    A cluster may have thousands of topics. What is made of the answers is made in threads, so that shards have their
    turns meanwhile (C90).

    Args:
        settings: librdkafka's: brokers and security.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {"log_level": 0, **settings}
        self._admin: AdminClient | None = None
        self._together = Together(self._ask)
        self._patience_s = _PATIENCE_S
        self._listed: dict[str, int] = {}
        self._listed_at = -math.inf
        self._listing = asyncio.Lock()
        self._connecting = threading.Lock()

    async def listed(self, at_most_s: float = 0.0) -> Mapping[str, int]:
        """Every topic that this worker may know of, with the number of its partitions.

        Args:
            at_most_s: an answer that was asked for so many seconds ago is good enough.

        Raises:
            KafkaException: no answer in time, or a refusal.
        """
        wanted = time.monotonic() - at_most_s
        async with self._listing:
            if self._listed_at < wanted:
                asked_at = time.monotonic()
                self._listed = await asyncio.to_thread(self._list)
                self._listed_at = asked_at
            return self._listed

    def _list(self) -> dict[str, int]:
        found = self._connected().list_topics(timeout=_PATIENCE_S)
        return {name: len(topic.partitions) for name, topic in found.topics.items() if topic.error is None}

    async def of(self, topics: Iterable[str], *, once: bool = False) -> dict[str, str]:
        """The ids of topics; those that do not exist are left out.

        Args:
            topics: their names.
            once: see `shapes`.

        Raises:
            KafkaException: no answer in time, or a refusal.
        """
        return {name: shape.id for name, shape in (await self.shapes(topics, once=once)).items()}

    async def shapes(self, topics: Iterable[str], *, once: bool = False) -> dict[str, Shape]:
        """The ids of topics, and their partitions; those that do not exist are left out.

        Brokers that are only slow, as after thousands of topics were made, are asked again with more patience: nobody
        who owns a shard can go on without the answer.

        Args:
            topics: their names.
            once: ask once, for the next look comes soon in any case.

        Raises:
            KafkaException: no answer in time, or a refusal.
        """
        wanted, since = set(topics), time.monotonic()
        while True:
            try:
                return await self._together.of(wanted)
            except KafkaException as error:
                if once or error.args[0].code() not in _LATE or time.monotonic() - since > _GIVE_UP_S:
                    raise
                await asyncio.sleep(_AGAIN_S)

    async def _ask(self, names: list[str]) -> dict[str, Shape]:
        return await asyncio.to_thread(self._describe, names)

    def _describe(self, names: list[str]) -> dict[str, Shape]:
        patience_s, asked = self._patience_s, self._connected()
        try:
            found = _shapes(asked.describe_topics(TopicCollection(names), request_timeout=patience_s))
        except KafkaException as error:
            if error.args[0].code() in _LATE:
                self._part_with(asked)
                self._patience_s = min(2 * patience_s, _MOST_PATIENCE_S)
                logger.warning(
                    "the brokers have not described %d topics within %g s: %s",
                    len(names),
                    patience_s,
                    error.args[0].str(),
                )
            raise
        self._patience_s = _PATIENCE_S
        return found

    def _connected(self) -> AdminClient:
        with self._connecting:
            if self._admin is None:
                self._admin = AdminClient(self._settings)
            return self._admin

    def _part_with(self, asked: AdminClient) -> None:
        """Ask by another connection from now on.

        librdkafka waits for a controller for ever once it has heard that there is none, as for a moment after brokers
        stood still; a new client hears at once who it is.
        """
        with self._connecting:
            if self._admin is asked:
                self._admin = None


def _shapes(asked: Mapping[str, Future[Any]]) -> dict[str, Shape]:
    """Wait for the answers, which come together."""
    found: dict[str, Shape] = {}
    for name, answer in asked.items():
        try:
            described = answer.result()
        except KafkaException as error:
            if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                raise
        else:
            found[name] = Shape(str(described.topic_id), len(described.partitions))
    return found


class KnownTopics:
    """The topics that the state of one shard is about.

    Args:
        progress: what the journal says of read positions; names without a colon are topics.
        ids: the ids of topics now.

    Attributes:
        replaced: names of topics that are others than the state knows.
        absent: positions of partitions whose topics are missing now; they may be the same once they are there.
        facts: id of each topic, and the epoch since which it is the topic of its name (0 = it always was), as the
            journal holds them; as for replaced topics, those of the old ones.
    """

    def __init__(self, progress: Mapping[str, Any], ids: Mapping[str, str]) -> None:
        self.facts: dict[str, list[Any]] = {name: fact for name, fact in progress.items() if ":" not in name}
        self._now = dict(ids)
        self.absent = {
            place: int(offset)
            for place, offset in progress.items()
            if ":" in place and place.rpartition(":")[0] not in ids
        }
        self.replaced = sorted(name for name, found in ids.items() if self.is_another(name, found))
        for name, found in ids.items():
            self.learn(name, found)

    def is_another(self, name: str, topic_id: str) -> bool:
        """Whether a topic is another one than the state knows under its name."""
        return name in self.facts and self.facts[name][0] != topic_id

    def learn(self, name: str, topic_id: str) -> None:
        """Know a topic that is new here."""
        self.facts.setdefault(name, [topic_id, 0])

    def since(self, name: str) -> int:
        """The epoch since which a topic is the one of its name; 0 = it always was."""
        return int(self.facts[name][1]) if name in self.facts else 0

    def settle(self, epoch: int) -> None:
        """What was known of the replaced topics is closed: the new ones count from this epoch on."""
        for name in self.replaced:
            self.facts[name] = [self._now[name], epoch]
        self.replaced = []
