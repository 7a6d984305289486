"""The SOW client for asyncio: queries, deletions and subscriptions (S3, S5 to S7, X3)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterable
from typing import Any, Final

from lapse.protocol.answer import OpenSubscription, ScheduledUpdate
from lapse.protocol.bookmark import BookmarkLike
from lapse_client.aio.client import AsyncClient, Awakening
from lapse_client.error import Closed
from lapse_client.sow import sow_client as sync_sow
from lapse_client.sow.record import SowRecord
from lapse_client.sow.subscription import SowSubscription as SyncSowSubscription

_AT_ONCE: Final = 1_000
"""How many records a thread reads at a time."""


class SowSubscription(AsyncClient[SyncSowSubscription]):
    """Updates of a SOW topic; see `lapse_client.SowSubscription`."""

    def __init__(self, topic: str, twin: SyncSowSubscription) -> None:
        super().__init__(twin)
        self._what = f"the subscription to {topic}"
        self._awakening: Awakening | None = None

    async def start(self) -> SowSubscription:
        """Subscribe; `async with` calls this method. A cancelled start leaves no subscription behind."""
        if self._awakening is not None:
            self._awakening.check_loop()
        await super().start()
        if self._awakening is None:
            self._awakening = Awakening(
                self._what, self._twin.arrivals, self._twin.transport.patience if self._twin.transport.settles else None
            )
        return self

    def __aiter__(self) -> AsyncIterator[SowRecord]:
        return self.updates()

    async def updates(self, timeout: float | None = None) -> AsyncIterator[SowRecord]:  # noqa: ASYNC109
        """Iterate over updates; stop after `timeout` seconds without one."""
        if self._awakening is None:
            raise Closed(self._what)
        while taken := await self._awakening.take(lambda: self._twin.arrivals.take(1), timeout):
            yield taken[0]


class SowClient(AsyncClient[sync_sow.SowClient]):
    """Queries and subscribes to a SOW topic; see `lapse_client.SowClient`, whose arguments these are."""

    def __init__(self, topic: str, **options: Any) -> None:
        super().__init__(sync_sow.SowClient(topic, **options))

    async def query(self, filter: str | None = None, **options: Any) -> AsyncIterator[SowRecord]:  # noqa: A002
        """Yield the current records; the options are those of the synchronous `query`."""
        results = self._twin.query(filter, **options)

        def some() -> list[SowRecord]:
            return [record for _, record in zip(range(_AT_ONCE), results, strict=False)]

        while records := await asyncio.to_thread(some):
            for record in records:
                yield record

    async def depth(self) -> dict[str, Any]:
        """Return figures over all shards: `records`, `scheduled`, `dying` (pending letters), `subscriptions`."""
        return await asyncio.to_thread(self._twin.depth)

    async def subscriptions(self) -> list[OpenSubscription]:
        """Return the open subscriptions with their start, the oldest first."""
        return await asyncio.to_thread(self._twin.subscriptions)

    async def delete(
        self,
        *,
        keys: Iterable[str | bytes] = (),
        data: Iterable[str | bytes] = (),
        filter: str | None = None,  # noqa: A002  # the command's word
        bookmarks: Iterable[BookmarkLike] = (),
    ) -> int:
        """Delete records by keys, by data, by filter or by bookmarks, and return how many were removed (S3)."""
        return await asyncio.to_thread(self._twin.delete, keys=keys, data=data, filter=filter, bookmarks=bookmarks)

    async def scheduled(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        top_n: int | None = None,
        skip: int = 0,
    ) -> list[ScheduledUpdate]:
        """Return the scheduled updates, those that are due next first (L5)."""
        return await asyncio.to_thread(self._twin.scheduled, filter=filter, top_n=top_n, skip=skip)

    async def withdraw(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        bookmarks: Iterable[BookmarkLike] = (),
    ) -> int:
        """Withdraw scheduled updates by filter or by bookmarks, and return how many. Records stay as they are (L5)."""
        return await asyncio.to_thread(self._twin.withdraw, filter=filter, bookmarks=bookmarks)

    async def delete_topic(self, *, force: bool = False) -> dict[str, int]:
        """Delete the SOW topic, all shards or none, wait until its topics are gone, and close the client."""
        return await asyncio.to_thread(self._twin.delete_topic, force=force)

    def subscribe(self, filter: str | None = None, **options: Any) -> SowSubscription:  # noqa: A002
        """Return a subscription to updates from now on, to be opened with `async with`."""
        return SowSubscription(self._twin.topic, self._twin.subscribe(filter, **options))

    def sow_and_subscribe(self, filter: str | None = None, **options: Any) -> SowSubscription:  # noqa: A002
        """Return a subscription to the current records and then updates, without a gap or a repeat between them."""
        return SowSubscription(self._twin.topic, self._twin.sow_and_subscribe(filter, **options))

    def delta_subscribe(self, filter: str | None = None, **options: Any) -> SowSubscription:  # noqa: A002
        """Return a subscription to updates from now on, with the changed fields only."""
        return SowSubscription(self._twin.topic, self._twin.delta_subscribe(filter, **options))

    def sow_and_delta_subscribe(self, filter: str | None = None, **options: Any) -> SowSubscription:  # noqa: A002
        """Return a subscription to the current records and then their changed fields, without a gap or a repeat."""
        return SowSubscription(self._twin.topic, self._twin.sow_and_delta_subscribe(filter, **options))
