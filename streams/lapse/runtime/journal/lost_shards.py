"""Lost shards: another worker has taken them over, and the group has not told this one yet."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

_ANSWER_WITHIN_S: Final = 120.0
"""How long the group may take to tell who has a shard, s: twice as long as a rebalance may take."""


class LostShards:
    """The shards of one entity that this worker has lost (Q16).

    A worker that was not heard of for a while learns from a shard's journal that another one has it, perhaps before the
    group says so. Only that shard is given up: all others go on.
    """

    def __init__(self) -> None:
        self._lost: dict[int, asyncio.TimerHandle] = {}

    def __contains__(self, partition: int) -> bool:
        return partition in self._lost

    def note(self, table: str, partition: int, why: Exception) -> None:
        """Note that a shard is lost. If the group says nothing of it, the process ends, and its successor asks anew.

        Args:
            table: the entity's, for people.
            partition: the shard's.
            why: how it is known.
        """
        shown = f"{table}, partition {partition}: {why}"
        logger.warning("%s; it is given up", shown)
        untold = f"{shown}, and the group has not said so for {_ANSWER_WITHIN_S:g} s"
        if partition not in self._lost:
            loop = asyncio.get_running_loop()
            self._lost[partition] = loop.call_later(_ANSWER_WITHIN_S, end_process, untold)

    def settle(self) -> None:
        """Forget all of them: the group has said who has which shard, or the worker is ending."""
        for timer in self._lost.values():
            timer.cancel()
        self._lost.clear()
