"""Follows a topic with one partition, from its beginning or from its current end, as every worker does by itself."""

from __future__ import annotations

import asyncio
import logging
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


class TopicFollower:
    """Reads a topic with one partition while the worker runs.

    Args:
        topic: name of the topic.
        connection: aiokafka's settings: brokers and security.
        take: called with the records that were read, in order. Reading goes on when it returns.
        from_end: whether to begin with records that are written from now on. Otherwise it begins with the topic's first
            record, and does so again after each loss of the connection.
        listed: returns the topics on the cluster, if this topic may not exist yet; None if it exists.
    """

    def __init__(
        self,
        topic: str,
        connection: Mapping[str, Any],
        take: Callable[[Sequence[Any]], Awaitable[None]],
        *,
        from_end: bool = False,
        listed: Callable[[], Awaitable[Container[str]]] | None = None,
    ) -> None:
        self._topic = topic
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
        place = TopicPartition(self._topic, 0)
        repeated = RepeatedError(logger, f"{self._topic} could not be read, and is tried again")
        while True:
            consumer = AIOKafkaConsumer(
                **self._connection, isolation_level="read_committed", enable_auto_commit=False, group_id=None
            )
            try:
                await consumer.start()
                consumer.assign([place])
                await (consumer.seek_to_end if self._from_end else consumer.seek_to_beginning)()
                open_transaction = OpenTransaction(self._topic)
                while True:
                    batches = await consumer.getmany(timeout_ms=_WAIT_MS)
                    await self._take(batches.get(place, ()))
                    open_transaction.look(
                        consumer.last_stable_offset(place), consumer.highwater(place), time.monotonic()
                    )
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
