"""Follows a topic with one partition, from its beginning or from its current end, as every worker does by itself."""

from __future__ import annotations

import asyncio
import logging
import math
import time
from collections.abc import Awaitable, Callable, Container, Mapping, Sequence
from typing import Any, Final

from aiokafka import AIOKafkaConsumer
from aiokafka.errors import KafkaError
from aiokafka.structs import TopicPartition
from confluent_kafka import KafkaException

from lapse.runtime.kafka.open_transaction import OpenTransaction
from lapse.runtime.repeated_error import RepeatedError
from lapse.runtime.watch import end_process_if_failed

logger = logging.getLogger(__name__)

_WAIT_MS: Final = 500
_LOOK_S: Final = 1.0
_IDENTITY_S: Final = 2.0
"""Time between two looks whether the topic is still the same one, s."""


class TopicIdentity:
    """Notices that a followed topic was deleted, or deleted and created again (C42). Offsets then begin anew.

    Args:
        topic: name of the topic.
        ids: returns the ids of topics, without topics that do not exist.
        missing: the warning when the topic is gone, for people.
        anew: called when the topic was created again, before it is read from its beginning.
    """

    def __init__(
        self,
        topic: str,
        ids: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]],
        missing: str,
        anew: Callable[[], None],
    ) -> None:
        self._topic = topic
        self._ids = ids
        self._missing = missing
        self._anew = anew
        self._id = ""
        self._gone = False
        self._next_s = -math.inf

    async def has_changed(self, now_s: float) -> bool:
        """Return whether the name belongs to another topic than before. The brokers are asked now and then only.

        Args:
            now_s: a monotonic clock, s.
        """
        if now_s < self._next_s:
            return False
        self._next_s = now_s + _IDENTITY_S
        try:
            found = (await self._ids([self._topic])).get(self._topic, "")
        except KafkaException as error:
            logger.debug("cannot look for %s, and tries again: %s", self._topic, error)
            return False
        if not found:
            if not self._gone and self._id:
                logger.warning("%s is gone: %s", self._topic, self._missing)
            self._gone = True
            return False
        changed = self._id not in ("", found)
        if self._gone and self._id:
            logger.warning("%s is there again%s", self._topic, ", and is read from its beginning" if changed else "")
        self._id, self._gone = found, False
        if changed:
            self._anew()
        return changed


class TopicFollower:
    """Reads a topic with one partition while the worker runs.

    Args:
        topic: name of the topic.
        connection: aiokafka's settings: brokers and security.
        take: called with the records that were read, in order. Reading goes on when it returns.
        from_end: whether to begin with records that are written from now on. Otherwise it begins with the topic's first
            record, and does so again after each loss of the connection.
        listed: returns the topics on the cluster, if this topic may not exist yet; None if it exists.
        identity: notices that the topic was deleted, or created again; None = nobody asks.
    """

    def __init__(
        self,
        topic: str,
        connection: Mapping[str, Any],
        take: Callable[[Sequence[Any]], Awaitable[None]],
        *,
        from_end: bool = False,
        listed: Callable[[], Awaitable[Container[str]]] | None = None,
        identity: TopicIdentity | None = None,
    ) -> None:
        self._topic = topic
        self._identity = identity
        self._connection = connection
        self._take = take
        self._from_end = from_end
        self._listed = listed
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start to read."""
        self._task = asyncio.create_task(self._run(), name=f"following {self._topic}")
        self._task.add_done_callback(self._ended)

    async def stop(self) -> None:
        """Stop reading."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)

    async def _run(self) -> None:
        await self._wait_for_topic()
        tp = TopicPartition(self._topic, 0)
        repeated = RepeatedError(logger, f"{self._topic} could not be read, and is tried again")
        while True:
            consumer = AIOKafkaConsumer(
                **self._connection, isolation_level="read_committed", enable_auto_commit=False, group_id=None
            )
            try:
                await consumer.start()
                consumer.assign([tp])
                await (consumer.seek_to_end if self._from_end else consumer.seek_to_beginning)()
                open_transaction = OpenTransaction(self._topic)
                while self._identity is None or not await self._identity.has_changed(time.monotonic()):
                    batches = await consumer.getmany(timeout_ms=_WAIT_MS)
                    await self._take(batches.get(tp, ()))
                    open_transaction.look(consumer.last_stable_offset(tp), consumer.highwater(tp), time.monotonic())
            except (KafkaError, OSError) as error:
                repeated.note(error)
                await asyncio.sleep(_WAIT_MS / 1000)
            finally:
                await consumer.stop()

    async def _wait_for_topic(self) -> None:
        while self._listed is not None:
            try:
                if self._topic in await self._listed():
                    return
            except KafkaException as error:
                logger.debug("cannot look for %s, and tries again: %s", self._topic, error)
            await asyncio.sleep(_LOOK_S)

    def _ended(self, task: asyncio.Task[None]) -> None:
        end_process_if_failed(task, f"following {self._topic}")  # crash-only
