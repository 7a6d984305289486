"""Subscriptions of HTTP programs. They hold messages between requests."""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Final, TypeVar
from uuid import uuid4

from lapse_client.aio import Delivery, QueueSubscriber
from lapse_client.error import EntityDeleted, LapseError, UnknownEntity
from lapse_gateway.clients import check_kind
from lapse_gateway.fault import Fault
from lapse_gateway.user import Caller

log = logging.getLogger("lapse_gateway")

_LATE_MS: Final = 5_000
"""How long a delivery is kept after the end of its lease, in ms, because the broker's clock differs."""


@functools.cache
def _instance() -> str:
    """Return a name of this process. It keeps subscriptions of the same name at different gateways apart."""
    return uuid4().hex[:8]


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Terms:
    """The options of a subscription in a request.

    Attributes:
        max_backlog: most unsettled deliveries at once; None = as many as the subscription has, and a new one `least`.
        filter: an expression; None = all messages.
        least: most deliveries that the request takes.
    """

    max_backlog: int | None
    filter: str | None = None
    least: int = 1

    def fits(self, other: Terms) -> bool:
        """Return whether a request with other terms may use a subscription of these."""
        return self.filter == other.filter and other.max_backlog in (None, self.max_backlog)

    def begun(self) -> Terms:
        """Return the terms of a subscription that begins with these."""
        return self if self.max_backlog is not None else replace(self, max_backlog=self.least)


class Subscription:
    """One subscription, and the deliveries that its program has not settled.

    Args:
        queue: name of the queue.
        name: the program's name for it.
        terms: options of the subscription.
        subscriber: the subscriber that receives.
        now_ms: returns the broker's time, by which leases end, ms since the epoch.
    """

    def __init__(
        self, queue: str, name: str, terms: Terms, subscriber: QueueSubscriber, now_ms: Callable[[], float]
    ) -> None:
        self.queue = queue
        self.name = name
        self.terms = terms
        self.subscriber = subscriber
        self._now_ms = now_ms
        self.held: dict[str, Delivery] = {}
        self.requests = 0
        self.used_at_s = 0.0
        self._unsent: deque[Delivery] = deque()
        self._came_back = asyncio.Event()

    async def take(self, most: int, wait_s: float, gone: Callable[[], Awaitable[object]]) -> list[Delivery]:
        """Wait for deliveries, and return them.

        Args:
            most: greatest number of deliveries.
            wait_s: how long to wait for the first one, in seconds.
            gone: returns when the caller does not wait any more.
        """
        if kept := self._again(most):
            return kept
        self._came_back.clear()
        taken: list[Delivery] = []
        try:
            await first_of(self._fetch(taken, most, wait_s), lambda: first_of(gone(), self._came_back.wait))
        except asyncio.CancelledError:
            self.give_back(taken)
            raise
        return taken or self._again(most)

    async def _fetch(self, taken: list[Delivery], most: int, wait_s: float) -> None:
        """Take deliveries into `taken`, and hold them at once, because the waiting task may be cancelled just then."""
        async for batch in self.subscriber.batches(most, timeout=wait_s):
            for delivery in batch:
                if not delivery.is_barrier and delivery.lease_until_ms is not None:
                    self.held[receipt(delivery)] = delivery
            taken += batch
            return

    async def deletion(self, most: int) -> EntityDeleted | None:
        """Return the error that says that its queue was deleted; None if it goes on. Nothing is waited for.

        Args:
            most: greatest number of deliveries to make ready for the next `take`, since only they show that it goes on.
        """
        taken: list[Delivery] = []
        try:
            await self._fetch(taken, most, 0)
        except EntityDeleted as error:
            return error
        finally:
            self.give_back(taken)
        return None

    def give_back(self, deliveries: Iterable[Delivery]) -> None:
        """Hand unseen deliveries out again, to a waiting request or to the next one. They return if none comes."""
        self._unsent.extend(deliveries)
        if self._unsent:
            self._came_back.set()

    @property
    def is_awaited(self) -> bool:
        """Whether a program was sent deliveries whose leases are not over."""
        unsent, now_ms = set(map(id, self._unsent)), self._now_ms()
        return any(id(one) not in unsent and one.lease_ends_ms > now_ms for one in self.held.values())

    def forget_late(self) -> None:
        """Drop deliveries whose leases are over."""
        now_ms = self._now_ms() - _LATE_MS
        for name in [name for name, one in self.held.items() if one.lease_ends_ms < now_ms]:
            del self.held[name]

    def _again(self, most: int) -> list[Delivery]:
        found: list[Delivery] = []
        now_ms = self._now_ms()
        while self._unsent and len(found) < most:
            delivery = self._unsent.popleft()
            if delivery.lease_ends_ms > now_ms:
                found.append(delivery)
        return found


class Subscriptions:
    """All subscriptions of a gateway.

    Args:
        most: most subscriptions that are open at once.
        idle_s: after this time without requests, a subscription that holds no lease is ended, in seconds.
        timeout_s: how long to wait for answers, in seconds.
    """

    def __init__(self, most: int, idle_s: float, timeout_s: float) -> None:
        self._most = most
        self._idle_s = idle_s
        self._timeout_s = timeout_s
        self._open: dict[tuple[str, str, str], Subscription] = {}
        self._beginning = 0
        self._locks: dict[tuple[str, str, str], asyncio.Lock] = {}

    def __len__(self) -> int:
        return len(self._open)

    @property
    def held(self) -> int:
        """The number of deliveries that were handed out and are not settled."""
        return sum(len(one.held) for one in self._open.values())

    async def get(self, caller: Caller, queue: str, name: str, terms: Terms) -> Subscription:
        """Return the subscription of a name, and begin it if necessary. A request counts until `done` is called.

        Raises:
            Fault: there are too many subscriptions, or this one is open with other terms.
            LapseError: the subscription could not begin.
        """
        key = (caller.name, queue, name)
        lock = self._locks.setdefault(key, asyncio.Lock())
        async with lock:
            found = self._open.get(key)
            try:
                deleted = None if found is None else await found.deletion(terms.least)
            except LapseError:  # the next request begins anew: what it fails of may be mended until then
                await self._open.pop(key).subscriber.close()
                raise
            if found is not None and deleted is not None:
                found = await self._renew(caller, found, terms, deleted)
            if found is None:
                found = self._open[key] = await self._begin(caller, queue, name, terms.begun())
            elif not found.terms.fits(terms):
                raise Fault(
                    "invalid_argument",
                    f"subscription {name} is open with max_backlog={found.terms.max_backlog} and "
                    f"filter={found.terms.filter!r}: ask with the same, or end it first (DELETE)",
                )
            found.requests += 1
        return found

    def done(self, subscription: Subscription) -> None:
        """Record the end of a request."""
        subscription.requests -= 1
        subscription.used_at_s = asyncio.get_running_loop().time()

    def of(self, caller: Caller, queue: str) -> list[Subscription]:
        """Return the caller's subscriptions to a queue."""
        return [one for (user, of, _), one in self._open.items() if user == caller.name and of == queue]

    async def end(self, caller: Caller, queue: str, name: str) -> bool:
        """End a subscription, so that its messages return. Return False if there is none."""
        return await self._end((caller.name, queue, name))

    async def drop(self, subscription: Subscription) -> None:
        """Remove a subscription that has failed, and close its clients of Kafka."""
        keys = [key for key, one in self._open.items() if one is subscription]
        for key in keys:
            await self._end(key, lambda found: found is subscription)
        if not keys:
            await subscription.subscriber.close()

    async def sweep(self) -> None:
        """End the idle subscriptions, so that what nobody has seen returns; drop deliveries whose leases are over."""
        now = asyncio.get_running_loop().time()
        for one in self._open.values():
            one.forget_late()

        def is_idle(one: Subscription) -> bool:
            return not one.requests and not one.is_awaited and now - one.used_at_s >= self._idle_s

        for key in [key for key, lock in self._locks.items() if key not in self._open and not lock.locked()]:
            del self._locks[key]
        idle = [key for key, one in self._open.items() if is_idle(one)]
        _log_failures(await asyncio.gather(*(self._end(key, is_idle) for key in idle), return_exceptions=True))

    async def close(self) -> None:
        """End all subscriptions."""
        ended, self._open = list(self._open.values()), {}
        await _close(ended)

    async def _end(
        self, key: tuple[str, str, str], is_meant: Callable[[Subscription], bool] = lambda found: True
    ) -> bool:
        """End the subscription of a key, if it is still the one that is meant; return whether it was.

        One of the same name begins after that. Else the end of the first would reach the queue behind the beginning of
        the second, and end that.
        """
        async with self._locks.setdefault(key, asyncio.Lock()):
            found = self._open.get(key)
            if found is None or not is_meant(found):
                return False
            del self._open[key]
            await found.subscriber.close()
        return True

    async def _begin(self, caller: Caller, queue: str, name: str, terms: Terms) -> Subscription:
        if len(self._open) + self._beginning >= self._most:
            raise Fault(
                "too_many_subscriptions",
                f"{self._most} subscriptions are open, the most of this gateway: end some (DELETE), or ask another one",
                {"Retry-After": "5"},
            )
        self._beginning += 1  # count now, because many requests may come before the first one is open
        try:
            return await self._start(caller, queue, name, terms)
        finally:
            self._beginning -= 1

    async def _renew(self, caller: Caller, over: Subscription, terms: Terms, deleted: EntityDeleted) -> Subscription:
        """Begin a subscription in the place of one whose queue was deleted, if that was created again.

        Raises:
            EntityDeleted: it was not.
        """
        key = (caller.name, over.queue, over.name)
        del self._open[key]
        await over.subscriber.close()
        try:
            found = self._open[key] = await self._begin(caller, over.queue, over.name, terms.begun())
        except UnknownEntity as error:
            raise deleted from error
        return found

    async def _start(self, caller: Caller, queue: str, name: str, terms: Terms) -> Subscription:
        await check_kind(caller, queue, sow=False)
        subscriber = QueueSubscriber(
            queue,
            terms.max_backlog if terms.max_backlog is not None else terms.least,
            connection=caller.connection,
            name=f"{name}@{_instance()}",
            filter=terms.filter,
            timeout_s=self._timeout_s,
        )
        return Subscription(queue, name, terms, await subscriber.start(), caller.connection.clock.now_ms)


async def _close(ended: Iterable[Subscription]) -> None:
    """Close the subscribers of subscriptions. One that fails keeps no other from its messages' return."""
    _log_failures(await asyncio.gather(*(one.subscriber.close() for one in ended), return_exceptions=True))


def _log_failures(results: Iterable[object]) -> None:
    for found in results:
        if isinstance(found, Exception):
            log.error("a subscription could not be closed: %s", found, exc_info=found)


def receipt(delivery: Delivery) -> str:
    """Return the receipt of a delivery, `topic:partition:offset[~generation]#count@epoch`, by which it is settled."""
    return f"{delivery.bookmark}#{delivery.token.decode()}"


async def first_of(wanted: Awaitable[T], gone: Callable[[], Awaitable[object]]) -> T | None:
    """Wait for a result until `gone` returns; return None if that comes first."""
    task: asyncio.Future[T] = asyncio.ensure_future(wanted)
    leaving: asyncio.Future[Any] = asyncio.ensure_future(gone())
    try:
        await asyncio.wait({task, leaving}, return_when=asyncio.FIRST_COMPLETED)
        return task.result() if task.done() else None
    finally:
        for one in (task, leaving):
            one.cancel()
        await asyncio.gather(task, leaving, return_exceptions=True)
