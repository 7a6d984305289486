"""Unread records that prevent the end of a shard: what transfers have put, and what is for a shard that waits.

Beyond its target depth a shard reads nothing, so its state does not know what transfers have put there (C77, Q13). A
new shard that waits for older ones reads nothing at all (C81). Before either says whether its queue may be deleted, it
looks into the logs. It takes nothing in.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.arrival import transfers_of
from lapse.core.queue.shard import QueueShard
from lapse.core.shard.retirement import ShardMessage, ShardMessageKind
from lapse.runtime.shard.log import AT_ONCE_RECORDS
from lapse.runtime.shard.payload import PayloadWindow
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)

_PART: Final = 10 * AT_ONCE_RECORDS
"""How many records to ask for at a time."""


class UnreadRecords:
    """Looks for unread records when a shard checks whether it can end.

    Args:
        shard: the shard.
        payloads: reads the logs.

    Attributes:
        waits_from: returns from which offsets on a new shard will read that waits, by partition; None = not known yet.
    """

    def __init__(self, shard: QueueShard, payloads: PayloadWindow) -> None:
        self.waits_from: Callable[[], Mapping[TP, int] | None] = lambda: None
        self._shard = shard
        self._payloads = payloads
        self._then: Callable[[], None] | None = None

    def begin(self, heard: ShardMessage, then: Callable[[], None]) -> bool:
        """Begin to look if a shard message depends on them: if the shard has not read on to the logs' ends.

        Args:
            heard: the message.
            then: processes it; called at the end of the step, when they are known.

        Returns:
            Whether the message waits for them.
        """
        agreement = self._shard.agreement
        checks = heard.kind is ShardMessageKind.CHECK and agreement.checking
        if not checks or agreement.frozen or (self._shard.room() and not self._shard.settings.waits):
            return False
        self._then = then
        return True

    async def look(self) -> bool:
        """Look for them, and process the message that waits; return whether one waited.

        If the leader of a partition does not answer, the message is dropped. The shard is asked again then.
        """
        then, self._then = self._then, None
        if then is None:
            return False
        try:
            found = Counter[str]() if self._shard.settings.waits else await self._find()
            self._shard.retirable.has_unread = self._shard.settings.waits and await self._has_any()
        except TimeoutError as error:
            logger.warning("%s: whether it may be deleted is not known: %s", self._shard.settings.name, error)
            return True
        self._shard.transfer_target.unread = found
        then()
        self._shard.transfer_target.unread = {}
        return True

    async def _find(self) -> Counter[str]:
        """Return how many unread records each transfer has put."""
        name, found = self._shard.settings.name, Counter[str]()
        unread = {TP(one.topic, one.partition): one.next_offset for one in self._shard.state.sources.current()}
        ends = await self._payloads.log.offset_at(unread, NEVER)
        for tp, end in ends.items():
            first = unread[tp]
            while first < end:
                records = await self._payloads.read(tp.topic, tp.partition, first, min(first + _PART, end) - 1)
                if not records:
                    break
                found.update(transfers_of(records, name))
                first = records[-1].offset + 1
                await asyncio.sleep(0)  # other shards have their turn
        return found

    async def _has_any(self) -> bool:
        """Return whether there are records for a shard that waits; true if it is not known yet where it will begin."""
        unread = self.waits_from()
        if unread is None:
            return True
        ends = await self._payloads.log.offset_at(unread, NEVER)
        for tp, end in ends.items():
            if unread[tp] < end and await self._payloads.read(tp.topic, tp.partition, unread[tp], unread[tp]):
                return True
        return False
