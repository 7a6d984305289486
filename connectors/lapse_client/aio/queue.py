"""A queue as a whole, for asyncio: the same calls, as coroutines (Q8, Q15, Q21, X3)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any, Literal

from lapse.protocol.bookmark import Bookmark, BookmarkLike
from lapse_client.aio.client import AsyncClient
from lapse_client.queue import queue as sync_queue

if TYPE_CHECKING:
    from collections.abc import Iterable

    from lapse.protocol.answer import OpenSubscription, QueuedMessage
    from lapse_client.kafka.connection import Connection
    from lapse_client.subscriber.settlement import SettlementResult
    from lapse_client.subscriber.settler import Settling


class Queue(AsyncClient[sync_queue.Queue]):
    """Inspects and manages a queue as a whole; see `lapse_client.Queue`, whose arguments these are."""

    def __init__(self, name: str, *, connection: Connection | None = None, timeout_s: float = 30.0) -> None:
        super().__init__(sync_queue.Queue(name, connection=connection, timeout_s=timeout_s))

    async def depth(self, *, filter: str | None = None) -> dict[str, Any]:  # noqa: A002  # the command's word
        """Return figures over all shards: messages by state, `depth`, `subscriptions`, `oldest_age_ms`."""
        return await asyncio.to_thread(self._twin.depth, filter=filter)

    async def peek(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        top_n: int | None = None,
        skip: int = 0,
        state: str = "",
    ) -> list[QueuedMessage]:
        """Return the queue's messages, shard by shard in order, without a lease."""
        return await asyncio.to_thread(self._twin.peek, filter=filter, top_n=top_n, skip=skip, state=state)

    async def subscriptions(self) -> list[OpenSubscription]:
        """Return the open subscriptions, with their start and their number of messages, the oldest first."""
        return await asyncio.to_thread(self._twin.subscriptions)

    async def look_at(self, bookmark: BookmarkLike) -> QueuedMessage | None:
        """Return the present state of the message `topic:partition:offset`; None if the queue has no such message."""
        return await asyncio.to_thread(self._twin.look_at, bookmark)

    async def acknowledge(
        self,
        bookmarks: Iterable[BookmarkLike] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
    ) -> list[SettlementResult]:
        """Acknowledge messages by `topic:partition:first[-last][#count]`, or by filter."""
        return await self.settle("acknowledge", bookmarks, filter=filter)

    async def cancel(
        self,
        bookmarks: Iterable[BookmarkLike] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        delay_ms: int | None = None,
    ) -> list[SettlementResult]:
        """Return leased messages after `delay_ms`, or the queue's delay; withdraw scheduled ones."""
        return await self.settle("cancel", bookmarks, filter=filter, delay_ms=delay_ms)

    async def expire(
        self,
        bookmarks: Iterable[BookmarkLike] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        fault: str = "",
    ) -> list[SettlementResult]:
        """Expire messages now. Their dead letters have `fault`, at most 500 characters."""
        return await self.settle("expire", bookmarks, filter=filter, fault=fault)

    async def settle(
        self,
        how: Settling,
        bookmarks: Iterable[BookmarkLike] = (),
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        delay_ms: int | None = None,
        fault: str = "",
    ) -> list[SettlementResult]:
        """Settle messages by bookmark, or by a filter on every shard."""
        return await asyncio.to_thread(self._twin.settle, how, bookmarks, filter=filter, delay_ms=delay_ms, fault=fault)

    async def pause(self) -> None:
        """Pause deliveries until `resume`, also across restarts of workers."""
        await asyncio.to_thread(self._twin.pause)

    async def resume(self) -> None:
        """Resume deliveries."""
        await asyncio.to_thread(self._twin.resume)

    async def purge(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        leased: bool = False,
    ) -> dict[str, int]:
        """Remove all messages, or those that match a filter; return the counts, such as `removed` and `skipped`."""
        return await asyncio.to_thread(self._twin.purge, filter=filter, leased=leased)

    async def rewind(
        self,
        to: str | int | Bookmark,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        lifetimes: Literal["new", "kept"] = "new",
        handed_over: bool = False,
        dry_run: bool = False,
        command_id: str = "",
        timeout_s: float = 600.0,
    ) -> dict[str, int]:
        """Bring back messages that have left the queue, if Kafka still has their records (Q22)."""
        return await asyncio.to_thread(
            self._twin.rewind,
            to,
            filter=filter,
            lifetimes=lifetimes,
            handed_over=handed_over,
            dry_run=dry_run,
            command_id=command_id,
            timeout_s=timeout_s,
        )

    async def delete(self, *, force: bool = False) -> dict[str, int]:
        """Delete the queue, all shards or none, wait until its topics are gone, and close the client."""
        return await asyncio.to_thread(self._twin.delete, force=force)
