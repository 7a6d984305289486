"""Who is subscribed, as pages show it: since when, with what, and how long the first lease still lasts (Q15)."""

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
"""Subscriptions on a page."""

_LOOKED_AT: Final = 2_000
"""Ends of leases are looked up for so many messages."""


@dataclass(slots=True, kw_only=True)
class Standing:
    """A subscription, or what is known of it by the messages that it has leased.

    Attributes:
        name: what it is called.
        client: who subscribed; empty where that is not told.
        since_ms: when it began, ms since the epoch; None where that is not told.
        messages: how many it has leased.
        backlog: how many it may have; None where that is not told.
        held_ms: when the first of its leases began, ms since the epoch.
        until_ms: when the first of its leases ends, ms since the epoch.
        filter: its filter.
        hangs_since_ms: since when its leases end and it settles nothing, ms since the epoch; 0 = it does not hang.
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
    """The subscriptions to a queue: those that hold messages first, then the oldest.

    Who may see a part of the queue only is shown who has leased messages of that part.

    Args:
        call: who asks.
        name: the queue.
        leased: whether anything is leased.
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
    """The subscriptions to a SOW topic, the oldest first; none for who may see a part of it only."""
    return in_order(map(_standing, await _listed(call, name, call.gateway.clients.sow(call.caller, name))))


def in_order(some: Iterable[Standing]) -> list[Standing]:
    """Those that hold messages first, of them and of the others the oldest."""
    return sorted(some, key=lambda one: (not one.messages, one.since_ms or 0, one.name))


async def _listed(call: Call, name: str, client: AbstractAsyncContextManager[Any]) -> Sequence[OpenSubscription]:
    """Open subscriptions; none if workers do not answer in time, which the figures tell."""
    if not call.caller.may_list(name):
        return ()
    async with client as entity:
        try:
            listing: _Listing = entity
            return await asyncio.wait_for(listing.subscriptions(), PATIENCE_S)
        except TimeoutError:
            return ()


async def _leases(call: Call, name: str, leased: bool) -> Sequence[QueuedMessage]:
    """Some of the leased messages, of each shard those that come first; none if their worker does not answer."""
    if not leased or not call.caller.may_read(name):
        return ()
    async with call.gateway.clients.queue(call.caller, name) as queue:
        try:
            return await asyncio.wait_for(queue.peek(top_n=_LOOKED_AT, state="leased"), PATIENCE_S)
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
