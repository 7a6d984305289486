"""Refused shards: Kafka refuses what a running shard writes, or cannot let it read its logs (C52).

A right was withdrawn, a topic takes no record of that size, or it is gone. Or a partition has no leader for long. That
concerns the entity alone. So the shard is given up as in a crash, and taken over again until Kafka takes what it writes
and its leaders answer. All others go on.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable
from typing import Any

from lapse.runtime.journal.store import Fenced, JournalStore
from lapse.runtime.kafka.refusals import REFUSALS
from lapse.runtime.shard.log import SilentLog
from lapse.runtime.watch import end_process, start_task

logger = logging.getLogger(__name__)

_tasks: set[asyncio.Task[None]] = set()


def check(shown: str, failed: Iterable[BaseException]) -> None:
    """End the process if it is unknown what a refused shard has written.

    Its other step under way is waited for first: in this process it would go on beside the next epoch.

    Args:
        shown: the shard, for messages.
        failed: why its steps under way were not written.
    """
    for error in failed:
        if not isinstance(error, (*REFUSALS, Fenced)):
            end_process(f"{shown}: {str(error) or type(error).__name__}", error)


def begin(store: JournalStore, partition: int, why: Exception) -> None:
    """Give a shard up, which has stopped, once no rebalance is under way.

    If its logs are silent, it waits for their leaders before it is taken over again.

    Args:
        store: keeps its journal.
        partition: its number.
        why: what Kafka has answered, or that it has not.
    """
    silent = isinstance(why, SilentLog)
    logger.error(
        "%s, partition %d: %s. It is given up, and taken over again %s",
        store.table_name,
        partition,
        why if silent else f"Kafka refuses what it writes: {str(why) or type(why).__name__}",
        "once they answer" if silent else "until that is mended",
    )
    start_task(_give_up(store, partition, why), f"give up {store.table_name}-{partition}", _tasks)


async def _give_up(store: JournalStore, partition: int, why: Exception) -> None:
    tables: Any = store.app.tables
    async with tables.still() as open_:
        if open_:
            await store.give_up(partition, why)
