"""The publisher for asyncio: calls that wait for Kafka or a reply are coroutines (L2 to L5, Q27, X3)."""

from __future__ import annotations

import asyncio
from typing import Any

from lapse.protocol.bookmark import Bookmark
from lapse_client.aio.client import AsyncClient
from lapse_client.kafka.connection import Connection
from lapse_client.publisher import publisher as sync_publisher
from lapse_client.publisher.record_publisher import Payload
from lapse_client.request.reply import PendingReply, Reply


class Publisher(AsyncClient[sync_publisher.Publisher]):
    """Publishes records with lifetimes; see `lapse_client.Publisher`, whose arguments these are."""

    def __init__(self, connection: Connection | None = None, **options: Any) -> None:
        super().__init__(sync_publisher.Publisher(connection, **options))

    async def publish(self, to: str, value: Any, key: Payload = None, **options: Any) -> Bookmark:
        """Publish a record, wait until Kafka has it, and return its bookmark; see the synchronous `publish`."""
        future = await asyncio.to_thread(self._twin.submit, to, value, key, **options)
        return await asyncio.wrap_future(future)

    async def request(self, to: str, value: Payload, key: Payload = None, *, timeout: float, **options: Any) -> Reply:  # noqa: ASYNC109  # it is the request's lifetime
        """Publish a request, and wait for its reply; see `lapse_client.Publisher.request`."""
        with await self._submitted(to, value, key, timeout=timeout, **options) as pending:
            while await asyncio.to_thread(pending.wait_for_test_threads):
                pass
            try:
                async with asyncio.timeout(pending.left_s):
                    return await asyncio.wrap_future(pending.future)
            except TimeoutError:
                raise pending.timeout_error() from None

    async def _submitted(self, *arguments: Any, **options: Any) -> PendingReply:
        """Publish a request in a thread. If the caller is cancelled meanwhile, nobody waits for the reply."""
        submitting = asyncio.ensure_future(asyncio.to_thread(self._twin.submit_request, *arguments, **options))
        try:
            return await asyncio.shield(submitting)
        except asyncio.CancelledError:
            submitting.add_done_callback(_forget)
            raise

    async def flush(self) -> None:
        """Wait until Kafka has all records."""
        await asyncio.to_thread(self._twin.flush)


def _forget(submitting: asyncio.Future[PendingReply]) -> None:
    """Stop waiting for the reply to a request whose caller was cancelled."""
    if not submitting.cancelled() and submitting.exception() is None:
        submitting.result().cancel()
