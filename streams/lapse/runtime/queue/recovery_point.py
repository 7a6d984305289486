"""The recovery point: where a queue begins to read partitions that it does not know yet (Q16)."""

from __future__ import annotations

import logging
from collections.abc import Sequence

from lapse.config.recovery_point import RecoveryPoint
from lapse.protocol.bookmark import Bookmark
from lapse.runtime.shard.log import Log
from lapse.runtime.tp import TP

logger = logging.getLogger(__name__)


async def begin_offsets(queue: str, point: RecoveryPoint, new: Sequence[TP], log: Log) -> dict[TP, int]:
    """Return the first offset to read of new partitions. Those without an entry are read from the beginning.

    A bookmark names a point of the log. Its partition is read from that message on, and all others from the instant at
    which it arrived. With several bookmarks, the earliest of their instants counts.

    Args:
        queue: name of the queue, for warnings.
        point: the configured recovery point.
        new: the new partitions of underlying topics.
        log: a reader of the logs, other than the one for payloads.
    """
    if not new or point == "beginning":
        return {}
    if point == "end":
        return await log.ends(new)
    if isinstance(point, int):
        return await log.ends(new, point)
    named = {TP(one.topic, one.partition): one for one in point}
    offsets = {tp: await _offset(queue, named[tp], log) for tp in new if tp in named}
    others = [tp for tp in new if tp not in named]
    if others:
        instants = [instant for one in point if (instant := await _arrival_ms(one, log)) is not None]
        offsets |= await log.ends(others, min(instants, default=None))
    for tp in named:
        await log.release(tp.topic, tp.partition)
    return offsets


async def _offset(queue: str, bookmark: Bookmark, log: Log) -> int:
    """Return a bookmark's offset, limited to what the log has."""
    tp = TP(bookmark.topic, bookmark.partition)
    begin, end = (await log.begins([tp]))[tp], (await log.ends([tp]))[tp]
    if bookmark.offset < begin:
        logger.warning(
            "%s: recovery_point %s: Kafka has removed the records before offset %d, where the queue begins",
            queue,
            bookmark,
            begin,
        )
    elif bookmark.offset > end:
        logger.warning("%s: recovery_point %s: the log ends at %d, where the queue begins", queue, bookmark, end)
    return max(begin, min(bookmark.offset, end))


async def _arrival_ms(bookmark: Bookmark, log: Log) -> int | None:
    """Return when the message at a bookmark, or the next one, arrived, ms since the epoch; None without one."""
    records = await log.read(bookmark.topic, bookmark.partition, bookmark.offset, bookmark.offset)
    return int(records[0].timestamp) if records else None
