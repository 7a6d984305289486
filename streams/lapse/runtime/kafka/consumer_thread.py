"""The thread that fetches for a worker, and is its member of the group."""

from __future__ import annotations

import asyncio
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
from lapse.runtime.kafka.steady_subscription import SteadySubscriptions

FETCH_MAX_WAIT_MS: Final = 500

_COMMIT_S: Final = 2.0
"""How long to try before checking which topics exist; the next commit comes within a second."""


class ConsumerThread(driver.AIOKafkaConsumerThread):
    """Faust's consumer thread, reading committed records only (C41)."""

    def _create_worker_consumer(self, transport: Any) -> aiokafka.AIOKafkaConsumer:
        created = super()._create_worker_consumer(transport)
        # Faust passes these two as constants; aiokafka reads them when the consumer starts.
        created._isolation_level = "read_committed"
        created._fetch_max_wait_ms = FETCH_MAX_WAIT_MS
        created._subscription = SteadySubscriptions(loop=self.thread_loop)
        return created

    async def _commit(self, offsets: Mapping[TP, int]) -> bool:
        """Commit what is still assigned, of topics that are there.

        Faust crashes where nothing of it is: what is read changed (a queue was deleted) while it was about to commit.
        For a topic that was deleted aiokafka would try again for ever, and no other would be committed (C52). And Faust
        looks up the whole assignment for each partition.
        """
        assigned, asked = self.assignment(), self._ensure_consumer()
        if asked._coordinator._performed_join_prepare:
            return False  # the group rebalances: a commit of the old generation would have it do so once more
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
            return False  # the group has rebalanced; what the shards have made durable is in their journals
        except Exception as error:  # noqa: BLE001  # crash-only, as Faust's
            await self.crash(error)
            return False
        self.tp_last_committed_at.update(dict.fromkeys(there, time.monotonic()))
        return True

    @property
    def is_member(self) -> bool:
        """Whether the group knows this consumer, and it has partitions."""
        coordinator = None if self._consumer is None else self._consumer._coordinator
        return bool(getattr(coordinator, "member_id", "")) and bool(self.assignment())

    @property
    def is_balanced(self) -> bool:
        """Whether the group was balanced since the topics were chosen that are read."""
        consumer = self._consumer
        return consumer is not None and consumer._subscription.is_balanced

    async def rejoin(self) -> None:
        """Have the group balanced once more, if this member has the topics still that it had."""
        self._ensure_consumer()._coordinator.request_rejoin()

    async def look_again(self) -> None:
        """Learn now how many partitions the topics have; the group is balanced anew if that has changed."""
        await self._ensure_consumer()._client.force_metadata_update()

    async def leave(self) -> None:
        """Leave the group."""
        await self.call_thread(self._ensure_consumer().unsubscribe)

    async def seek_all(self, offsets: Mapping[TP, int]) -> set[TP]:
        """Read on at these offsets, where the partitions are assigned; returns those that are."""

        async def seek() -> set[TP]:
            asked, assigned = self._ensure_consumer(), self.assignment()
            for tp in offsets.keys() & assigned:
                asked.seek(driver.ensure_aiokafka_TP(tp), offsets[tp])
                asked.resume(driver.ensure_aiokafka_TP(tp))
            return offsets.keys() & assigned

        done: set[TP] = await self.call_thread(seek)
        return done

    async def leave_out(self, tps: Iterable[TP]) -> None:
        """Fetch these partitions no more, until they are sought."""

        async def pause() -> None:
            asked = self._ensure_consumer()
            left_out = [driver.ensure_aiokafka_TP(tp) for tp in set(tps) & self.assignment()]
            asked.pause(*left_out)
            for tp in left_out:
                asked.seek(tp, 0)  # else it would be looked up what is committed

        await self.call_thread(pause)

    @property
    def taken(self) -> int:
        """How often records were taken."""
        fetching = None if self._consumer is None else self._consumer._fetcher
        return 0 if fetching is None else int(fetching.taken)

    async def stands_at(self, tp: TP) -> tuple[int, int]:
        """What will be read next from a partition, and how often records were taken by then.

        Raises:
            IllegalStateError: the partition is not assigned.
        """

        async def asked() -> tuple[int, int]:
            where = int(await self._ensure_consumer().position(tp))
            return where, self.taken  # in this order: what was taken meanwhile makes the answer void, not wrong

        found: tuple[int, int] = await self.call_thread(asked)
        return found
