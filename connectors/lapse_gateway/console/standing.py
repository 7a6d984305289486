"""Open subscriptions for pages: their start, their messages, and the end of their first lease (Q15)."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Any, Final, Protocol

from lapse.protocol.answer import OpenSubscription, QueuedMessage
from lapse_gateway.console.watch import PATIENCE_S
from lapse_gateway.operation import Call

SHOWN: Final = 50
"""The most subscriptions on a page."""

_LOOKED_AT: Final = 2_000
"""The most leased messages of which the ends of leases are looked up."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """A subscription, or what its leased messages show of it.

    Attributes:
        name: name of the subscription.
        client: name of the client; empty if unknown.
        since_ms: when it began, ms since the epoch; None if unknown.
        messages: number of messages that it has leased.
        backlog: the most messages that it may have; None if unknown.
        held_ms: earliest beginning of its leases, ms since the epoch.
        until_ms: earliest end of its leases, ms since the epoch.
        filter: its filter.
        hangs_since_ms: since when it hangs, because it settles nothing, ms since the epoch; 0 = it does not hang.
    """

    name: str
    client: str = ""
    since_ms: int | None = None
    messages: int = 0
    backlog: int | None = None
    held_ms: int | None = None
    until_ms: int | None = None
    filter: str = ""
    hangs_since_ms: int = 0


class _Listing(Protocol):
    async def subscriptions(self) -> list[OpenSubscription]: ...


async def of_queue(call: Call, name: str, leased: bool) -> list[Standing]:
    """Return the subscriptions of a queue: those that hold messages first, then the oldest.

    A user who may see only a part of the queue sees the subscriptions with leased messages of that part.

    Args:
        call: the request.
        name: name of the queue.
        leased: whether the queue has leased messages.
    """
    open_ones, messages = await asyncio.gather(
        _listed(call, name, call.gateway.clients.queue(call.caller, name)), _leases(call, name, leased)
    )
    standing = {one.name: one for one in map(_standing, open_ones)}
    counts = not standing
    for message in messages:
        one = standing.setdefault(message.subscription, Standing(name=message.subscription))
        one.messages += counts
        if message.until_ms is not None and (one.until_ms is None or message.until_ms < one.until_ms):
            one.until_ms = message.until_ms
        if message.since_ms is not None and (one.held_ms is None or message.since_ms < one.held_ms):
            one.held_ms = message.since_ms
    return in_order(standing.values())


async def of_topic(call: Call, name: str) -> list[Standing]:
    """Return the subscriptions of a SOW topic, the oldest first; none if the user may see only a part of it."""
    return in_order(map(_standing, await _listed(call, name, call.gateway.clients.sow(call.caller, name))))


def in_order(some: Iterable[Standing]) -> list[Standing]:
    """Sort subscriptions: those that hold messages first, and older ones before younger ones."""
    return sorted(some, key=lambda one: (not one.messages, one.since_ms or 0, one.name))


async def _listed(call: Call, name: str, client: AbstractAsyncContextManager[Any]) -> Sequence[OpenSubscription]:
    """Return the open subscriptions; none if workers do not answer in time, which the figures show, too."""
    if not call.caller.may_list(name):
        return ()
    async with client as entity:
        try:
            listing: _Listing = entity
            async with asyncio.timeout(PATIENCE_S):
                return await listing.subscriptions()
        except TimeoutError:
            return ()


async def _leases(call: Call, name: str, leased: bool) -> Sequence[QueuedMessage]:
    """Return some leased messages, shard by shard; none if a worker does not answer in time."""
    if not leased or not call.caller.may_read(name):
        return ()
    async with call.gateway.clients.queue(call.caller, name) as queue:
        try:
            async with asyncio.timeout(PATIENCE_S):
                return await queue.peek(top_n=_LOOKED_AT, state="leased")
        except TimeoutError:
            return ()


def _standing(one: OpenSubscription) -> Standing:
    return Standing(
        name=one.subscription,
        client=one.client,
        since_ms=one.since_ms,
        messages=one.outstanding,
        backlog=one.max_backlog,
        filter=one.filter,
        hangs_since_ms=one.hangs_since_ms,
    )
