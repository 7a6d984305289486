"""Deliveries for asyncio: settlements are plain calls, and `reply` is a coroutine (Q27)."""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Any

from lapse_client.delivery import delivery as sync_delivery
from lapse_client.delivery import typed_delivery

if TYPE_CHECKING:
    from lapse.protocol.bookmark import Bookmark
    from lapse_client.publisher.publication import Headers
    from lapse_client.publisher.record_publisher import Payload


class Delivery(sync_delivery.Delivery):
    """A message under a lease; see `lapse_client.Delivery`."""

    __slots__ = ()

    async def reply(  # type: ignore[override]  # a coroutine here, because it waits
        self, value: Any, key: Payload = None, *, headers: Headers | None = None
    ) -> Bookmark:
        """Reply to a request, and wait until Kafka has the reply."""
        return await asyncio.to_thread(super().reply, value, key, headers=headers)


class TypedDelivery(typed_delivery.TypedDelivery, Delivery):
    """A delivery with a deserialized payload; see `lapse_client.delivery.typed_delivery`."""

    __slots__ = ()
