"""The outside view of a queue shard: its figures, its oldest message, and its messages as a table."""

from __future__ import annotations

from collections.abc import Iterator

import orjson

from lapse.core.lifetime import NO_TIMESTAMP
from lapse.core.queue.shard import QueueShard
from lapse.protocol.bookmark import Bookmark
from lapse.runtime.shard.payload import PayloadWindow


class QueueView:
    """The outside view of one shard.

    Args:
        shard: the shard.
        payloads: the records behind its messages.
    """

    def __init__(self, shard: QueueShard, payloads: PayloadWindow) -> None:
        self._shard = shard
        self._payloads = payloads
        self._oldest: tuple[tuple[str, int, int], int | None] | None = None

    def gauges(self, now_ms: int = -1) -> dict[str, int]:
        """Return messages by state, subscriptions and their leases (Q15), and where the segments are (Q16).

        With an instant, count only messages that have not expired by then, and add what is held up (C48, C87), as
        `depth` does.
        """
        segments = self._shard.state.segments
        leased = [one.outstanding for one in self._shard.state.subscriptions.values() if one.outstanding]
        return {
            **self._shard.depth(now_ms=now_ms),
            **(self._shard.held_up(now_ms) if now_ms >= 0 else {}),
            "paused": int(self._shard.state.paused),
            "holders": len(leased),
            "most_leased": max(leased, default=0),
            "subscriptions": len(self._shard.state.subscriptions),
            "segments_memory": segments.in_memory,
            "segments_disk": len(segments) - segments.in_memory,
            "segment_loads": segments.loads,
        }

    async def oldest_ms(self, now_ms: int) -> int | None:
        """Return the arrival of the first message that has not expired, ms since the epoch (Q15).

        If Kafka no longer has its record, the arrival of the next one. None without a message, or if the record has no
        timestamp, so that the age is not known (C6).
        """
        place = self._shard.oldest(now_ms)
        bookmark = None if place is None else self._shard.bookmark_of(place)
        if bookmark is None:
            return None
        if self._oldest is None or self._oldest[0] != bookmark:
            stamp_ms = await self._payloads.timestamp_ms(*bookmark)
            self._oldest = bookmark, None if stamp_ms == NO_TIMESTAMP else stamp_ms
        return self._oldest[1]

    def messages(self, now_ms: int) -> Iterator[tuple[bytes, bytes]]:
        """Yield the bookmark of every message that has not expired, and its state as JSON."""
        for one in self._shard.peek(0, 1 << 62):
            if one.deadline_ms is None or one.deadline_ms > now_ms or not self._shard.settings.expiration.enabled:
                yield (
                    str(Bookmark(one.topic, one.partition, one.offset)).encode(),
                    orjson.dumps({"state": one.state_name}),
                )
