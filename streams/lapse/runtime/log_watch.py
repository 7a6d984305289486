"""The log watch: notices what happens to underlying topics while nobody reads them (C40, C42).

Kafka removes old records by itself, and people delete topics. Every so often a worker asks, in one request for all of
its shards, which topics there are and where their partitions begin.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Iterable
from typing import Final

from aiokafka.errors import KafkaError
from confluent_kafka import KafkaException

from lapse.runtime.payload import LogReader
from lapse.runtime.runner import Runner
from lapse.runtime.topic_id import TopicIds
from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

_EVERY_S: Final = 5.0
_DELETED_AFTER: Final = 3
"""A topic that is missing so many times in a row was deleted; a broker that has just started may not know all."""

_EVERYTHING: Final = 1 << 62


class LogWatch:
    """Looks at the logs of all shards of a worker.

    Args:
        runners: the shards, as they are now.
        topic_ids: tells which topics there are.
        log: tells where partitions begin.
    """

    def __init__(self, runners: Callable[[], Iterable[Runner]], topic_ids: TopicIds, log: LogReader) -> None:
        self._runners = runners
        self._topic_ids = topic_ids
        self._log = log
        self._missing: Counter[str] = Counter()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Begin to look."""
        self._task = asyncio.create_task(self._run(), name="log watch")

    def stop(self) -> None:
        """Look no longer."""
        if self._task is not None:
            self._task.cancel()

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(_EVERY_S)
            try:
                await self.look()
            except (KafkaError, KafkaException, TimeoutError) as error:
                logger.warning("could not look at the underlying topics, and will again in %g s: %s", _EVERY_S, error)

    async def look(self) -> None:
        """Look once.

        The process ends where a topic was created again: a shard closes what it knows of the old one when it is taken
        over, in the same order in which everything else happens then.
        """
        runners = list(self._runners())
        names = {runner: {*runner.topics.facts, *(tp.topic for tp in runner.sources)} for runner in runners}
        ids = await self._topic_ids.of(name for some in names.values() for name in some)
        for runner, some in names.items():
            for name in some & ids.keys():
                if name not in runner.topics.replaced and runner.topics.is_another(name, ids[name]):
                    end_process(
                        f"{runner.entity}, partition {runner.partition}: topic {name} was deleted and created again; "
                        "what is known of the old one is closed at the next start"
                    )
                runner.topics.learn(name, ids[name])
        held = {runner: runner.machine.held_sources() for runner in runners}
        sources = {tp for tps in held.values() for tp in tps}
        missing = {tp.topic for tp in sources} - ids.keys()
        self._missing = Counter({name: self._missing[name] + 1 for name in missing})
        begins = await self._log.begins(tp for tp in sources if tp.topic not in missing)
        begins.update({tp: _EVERYTHING for tp in sources if self._missing[tp.topic] >= _DELETED_AFTER})
        for runner, tps in held.items():
            for tp in tps:
                if tp in begins:
                    runner.log_begins(tp, begins[tp])
