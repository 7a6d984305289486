"""Lost shards: another worker has taken them over, but the group has not told this worker yet."""

from __future__ import annotations

import asyncio
import logging
from typing import Final

from lapse.runtime.watch import end_process

logger = logging.getLogger(__name__)

_ANSWER_WITHIN_S: Final = 120.0
"""How long the group may take to say who has a shard, s: twice as long as a rebalance may take."""


class LostShards:
    """The shards of one entity that this worker has lost (Q16).

    A worker that was silent for a while learns from a shard's journal that another worker has the shard, perhaps before
    the group says so. Only that shard is given up, and all others go on.
    """

    def __init__(self) -> None:
        self._lost: dict[int, asyncio.TimerHandle] = {}

    def __contains__(self, partition: int) -> bool:
        return partition in self._lost

    def note(self, table: str, partition: int, why: Exception) -> None:
        """Note that a shard is lost.

        If the group does not confirm that in time, end the process, so that its successor asks.

        Args:
            table: the entity's table, for messages.
            partition: the shard's number.
            why: how the loss is known.
        """
        shown = f"{table}, partition {partition}: {why}"
        logger.warning("%s; it is given up", shown)
        untold = f"{shown}, and the group has not said so for {_ANSWER_WITHIN_S:g} s"
        if partition not in self._lost:
            loop = asyncio.get_running_loop()
            self._lost[partition] = loop.call_later(_ANSWER_WITHIN_S, end_process, untold)

    def settle(self) -> bool:
        """Forget all lost shards, because the group has assigned shards, or the worker is stopping.

        Returns:
            Whether there were any.
        """
        had_lost = bool(self._lost)
        for timer in self._lost.values():
            timer.cancel()
        self._lost.clear()
        return had_lost
