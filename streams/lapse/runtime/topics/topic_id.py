"""Topic ids: a topic that is deleted and created again has the same name, but is another topic (C42).

Positions, bookmarks and state belong to one topic. Its id is stored in the same record as the read positions, so that
the two cannot disagree.
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

from lapse.controller import admin_client
from lapse.runtime.kafka.shared_question import SharedQuestion

logger = logging.getLogger(__name__)

_PATIENCE_S: Final = 15.0
_MOST_PATIENCE_S: Final = 120.0
"""How long to wait for an answer, s: at first, and at most once brokers have turned out to be slow."""

_AGAIN_S: Final = 0.5
_GIVE_UP_S: Final = 300.0
"""How long to ask without an answer, s. After that the worker ends, and the next one waits for the brokers."""

_LATE: Final = frozenset(
    {KafkaError._TIMED_OUT, KafkaError._TIMED_OUT_QUEUE, KafkaError.REQUEST_TIMED_OUT, KafkaError._TRANSPORT}
    | {KafkaError._ALL_BROKERS_DOWN}
)


class Shape(NamedTuple):
    """The current facts about a topic.

    Attributes:
        id: the id, which distinguishes topics with the same name.
        partitions: the number of partitions.
    """

    id: str
    partitions: int


class TopicIds:
    """Asks the brokers for the ids of topics, and which topics exist.

    A cluster may have thousands of topics, so answers are processed in threads, and shards have their turns meanwhile
    (C90).

    Args:
        settings: librdkafka's settings: brokers and security.
    """

    def __init__(self, settings: Mapping[str, Any]) -> None:
        self._settings = {"log_level": 0, **settings}
        self._admin: AdminClient | None = None
        self._together = SharedQuestion(self._ask)
        self._patience_s = _PATIENCE_S
        self._listed: dict[str, int] = {}
        self._listed_at = -math.inf
        self._listing = asyncio.Lock()
        self._connecting = threading.Lock()

    async def listed(self, at_most_s: float = 0.0) -> Mapping[str, int]:
        """Return every topic that this worker may see, with its number of partitions.

        Args:
            at_most_s: the greatest age of an earlier answer that may be returned, s.

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
        """Return the ids of topics, without topics that do not exist.

        Args:
            topics: their names.
            once: see `shapes`.

        Raises:
            KafkaException: no answer in time, or a refusal.
        """
        return {name: shape.id for name, shape in (await self.shapes(topics, once=once)).items()}

    async def shapes(self, topics: Iterable[str], *, once: bool = False) -> dict[str, Shape]:
        """Return the ids of topics, and their numbers of partitions, without topics that do not exist.

        Brokers may only be slow, for example after the creation of thousands of topics. They are asked again with more
        patience, because the owner of a shard cannot go on without the answer.

        Args:
            topics: their names.
            once: ask only once, because the caller asks again soon in any case.

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
                self._replace_connection(asked)
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
                self._admin = admin_client(self._settings)
            return self._admin

    def _replace_connection(self, asked: AdminClient) -> None:
        """Use another connection from now on.

        librdkafka waits for a controller for ever once it has heard that there is none, which can be so for a moment
        after brokers stood still. A new client finds the controller at once.
        """
        with self._connecting:
            if self._admin is asked:
                self._admin = None


def _shapes(asked: Mapping[str, Future[Any]]) -> dict[str, Shape]:
    """Wait for all answers."""
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
    """The topics to which the state of one shard belongs.

    Args:
        progress: the read positions in the journal. Names without a colon are topics.
        ids: the current ids of the topics.

    Attributes:
        replaced: names that belong to other topics than the state knows.
        absent: positions of partitions whose topics are missing now. They are valid again if the same topics return.
        facts: by name, the topic's id and the epoch since which its deliveries count (0 if always), as in the journal.
            For a replaced topic they are those of the old one.
    """

    def __init__(self, progress: Mapping[str, Any], ids: Mapping[str, str]) -> None:
        self.facts: dict[str, list[Any]] = {name: fact for name, fact in progress.items() if ":" not in name}
        self._now = dict(ids)
        self.absent = {
            source_key: int(offset)
            for source_key, offset in progress.items()
            if ":" in source_key and source_key.rpartition(":")[0] not in ids
        }
        self.replaced = sorted(name for name, found in ids.items() if self.is_another(name, found))
        for name, found in ids.items():
            self.learn(name, found)

    def is_another(self, name: str, topic_id: str) -> bool:
        """Return whether the name belongs to another topic than the state knows."""
        return name in self.facts and self.facts[name][0] != topic_id

    def learn(self, name: str, topic_id: str) -> None:
        """Note a topic that is not known yet."""
        self.facts.setdefault(name, [topic_id, 0])

    def count_from(self, epoch: int) -> None:
        """Note that deliveries of earlier epochs are those of a deleted entity of the same name (C13)."""
        self.facts = {name: [topic_id, epoch] for name, (topic_id, _) in self.facts.items()}

    def since(self, name: str) -> int:
        """Return the epoch since which deliveries of a topic's messages count; 0 if always."""
        return int(self.facts[name][1]) if name in self.facts else 0

    def settle(self, epoch: int) -> None:
        """Note that the state of the replaced topics is closed, and that the new topics count from this epoch on."""
        for name in self.replaced:
            self.facts[name] = [self._now[name], epoch]
        self.replaced = []
