"""What fetches for a worker, and is its member of the group. It runs in the worker's event loop.

Faust runs it in a thread with a loop of its own. Each batch then changes threads twice, and waits both times for
Python's lock, while shards work. In one loop deliveries come a third sooner.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from typing import Any, Final

import aiokafka
from aiokafka.errors import CommitFailedError
from aiokafka.structs import OffsetAndMetadata
from faust.transport.drivers import aiokafka as driver
from faust.types import TP

from lapse.runtime.kafka import (
    connection,  # noqa: F401  # every client of the process connects as it says
    fetcher,  # noqa: F401  # every consumer of the process fetches as it says
)
from lapse.runtime.kafka.group import (
    steady_coordinator,  # noqa: F401  # every member of a group computes assignments as it says
)
from lapse.runtime.kafka.group.steady_subscription import SteadySubscriptions
from lapse.runtime.kafka.metadata import ensure_group_metadata
from lapse.runtime.kafka.offsets_asked import next_read

logger = logging.getLogger(__name__)

FETCH_MAX_WAIT_MS: Final = 500

_COMMIT_S: Final = 2.0
"""How long to try to commit before checking which topics exist, s. The next commit comes within a second."""


class _TaskOfLoop:
    """Takes the place of Faust's thread: runs the service as a task of the loop that starts it."""

    def __init__(self, service: Any) -> None:
        self._service = service
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        """Start the service."""
        self._task = asyncio.get_running_loop().create_task(self._service._serve())
        self._task.add_done_callback(self._end)

    def stop(self) -> None:
        """Do nothing, because Faust has waited until the service had shut down. A thread would be joined here."""

    def _end(self, task: asyncio.Task[None]) -> None:
        """Let nobody wait for a service that has failed while it shut down. Faust has reported other errors."""
        self._service.set_shutdown()
        if not task.cancelled() and (error := task.exception()) is not None:
            logger.debug("the member of the group ended: %s", error)


class GroupMember(driver.AIOKafkaConsumerThread):
    """Faust's consumer thread, without the thread, which reads committed records only (C41).

    Args:
        consumer: Faust's consumer, which passes calls on.
        loop: the worker's event loop.
        beacon: Faust's node for the consumer.
    """

    Worker: Any = _TaskOfLoop

    def __init__(self, consumer: Any, *, loop: asyncio.AbstractEventLoop, beacon: Any) -> None:
        super().__init__(consumer, loop=loop, thread_loop=loop, beacon=beacon)

    async def _keepalive2(self) -> None:
        """Do nothing. Faust's wakes the thread's loop every second."""

    def _get_tasks(self) -> Iterable[Any]:
        """Return no tasks. Faust's only one keeps the thread's loop awake, and would report that it was late."""
        return ()

    async def _gather_remaining_tasks(self) -> None:
        """Do nothing. Faust's cancels all tasks of the thread's loop, which are the worker's here."""

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        created = super()._create_worker_consumer(transport)
        # Faust passes these two as constants; aiokafka reads them when the consumer starts.
        created._isolation_level = "read_committed"
        created._fetch_max_wait_ms = FETCH_MAX_WAIT_MS
        created._subscription = SteadySubscriptions(loop=self.thread_loop)
        # Faust takes another assignor if the worker has no entities yet. That one shares out partitions without regard
        # to shards, and a group whose members have different assignors refuses new members.
        self._assignor = self.app.assignor
        created._partition_assignment_strategy = (self._assignor,)
        return created

    async def getmany(self, active_partitions: Any, timeout: float) -> Any:  # noqa: ASYNC109  # as Faust's
        """Fetch like Faust's, without its queue of calls to a thread."""
        asked = self._ensure_consumer()
        return await self._fetch_records(asked, active_partitions, timeout=timeout, max_records=asked._max_poll_records)

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commit offsets of partitions that are still assigned and whose topics exist; return whether that succeeded.

        Faust crashes if none of them is assigned any more, because the topics changed (a queue was deleted) just before
        the commit. For a deleted topic aiokafka would try again for ever, and no other partition would be committed
        (C52). Faust also looks up the whole assignment for each partition.
        """
        assigned, asked = self.assignment(), self._ensure_consumer()
        if asked._coordinator._performed_join_prepare:
            return False  # a commit of the old generation would cause another rebalance
        known = asked._client.cluster.partitions_for_topic
        there = {
            driver.ensure_aiokafka_TP(tp): OffsetAndMetadata(offset, "")
            for tp, offset in offsets.items()
            if tp in assigned and known(tp.topic)
        }
        if not there:
            return False
        try:
            async with asyncio.timeout(_COMMIT_S):
                await asked.commit(there)
        except TimeoutError:
            await asked._client.force_metadata_update()
            return False
        except CommitFailedError:
            return False  # after a rebalance; the positions are in the journals in any case
        except Exception as error:  # noqa: BLE001  # crash-only, like Faust's
            await self.crash(error)
            return False
        self.tp_last_committed_at.update(dict.fromkeys(there, time.monotonic()))
        return True

    @property
    def member_id(self) -> str:
        """The name that the group gave this consumer; empty while it is in no group."""
        coordinator = None if self._consumer is None else self._consumer._coordinator
        return str(getattr(coordinator, "member_id", ""))

    @property
    def is_member(self) -> bool:
        """Whether the group knows this consumer, and partitions are assigned to it."""
        return bool(self.member_id) and bool(self.assignment())

    async def subscribe(self, topics: Iterable[str]) -> None:
        """Subscribe like Faust's. Ask for the metadata of added topics first, because aiokafka would ask for all."""
        asked, topics = self._ensure_consumer(), set(topics)
        if before := asked.subscription():
            await ensure_group_metadata(asked._client, topics, topics - before)
        await super().subscribe(topics)

    def topics(self) -> set[str]:
        """Return the topics that this member reads."""
        return set(self._ensure_consumer().subscription())

    @property
    def refusal(self) -> Exception | None:
        """Why the group refuses this member; None if it does not. aiokafka waits until somebody takes the error."""
        coordinator = None if self._consumer is None else self._consumer._coordinator
        return getattr(coordinator, "_pending_exception", None)

    @property
    def is_balanced(self) -> bool:
        """Whether the group has rebalanced since the last change of the subscription."""
        consumer = self._consumer
        return consumer is not None and bool(consumer._subscription.is_balanced)

    def rejoin(self) -> None:
        """Start another rebalance."""
        self._ensure_consumer()._coordinator.request_rejoin()

    async def look_again(self) -> None:
        """Ask now for the topics' numbers of partitions. A change starts a rebalance."""
        await self._ensure_consumer()._client.force_metadata_update()

    def leave(self) -> None:
        """Leave the group."""
        self._ensure_consumer().unsubscribe()

    def seek_all(self, offsets: Mapping[TP, int]) -> set[TP]:
        """Set the positions of partitions that are assigned, and resume them; return these partitions."""
        asked, assigned = self._ensure_consumer(), self.assignment()
        for tp in offsets.keys() & assigned:
            asked.seek(driver.ensure_aiokafka_TP(tp), offsets[tp])
            asked.resume(driver.ensure_aiokafka_TP(tp))
        return offsets.keys() & assigned

    def leave_out(self, tps: Iterable[TP]) -> None:
        """Do not fetch these partitions until their positions are set."""
        asked = self._ensure_consumer()
        left_out = [driver.ensure_aiokafka_TP(tp) for tp in set(tps) & self.assignment()]
        asked.pause(*left_out)
        for tp in left_out:
            asked.seek(tp, 0)  # otherwise aiokafka would ask for the committed offset

    @property
    def taken(self) -> int:
        """How often records were taken."""
        fetching = None if self._consumer is None else self._consumer._fetcher
        return 0 if fetching is None else int(fetching.taken)

    def stands_at(self, tp: TP) -> tuple[int, int]:
        """Return the next offset to read of a partition, -1 while unknown, and how often records were taken by then.

        Raises:
            IllegalStateError: the partition is not assigned.
        """
        return next_read(self._ensure_consumer(), driver.ensure_aiokafka_TP(tp)), self.taken
