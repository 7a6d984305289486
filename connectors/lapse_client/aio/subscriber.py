"""The queue subscriber for asyncio, on the synchronous one (X3)."""

from __future__ import annotations

import asyncio
import inspect
import re
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextvars import ContextVar
from typing import Any, Final, TypeVar, cast

from lapse_client.aio.client import AsyncClient, Awakening
from lapse_client.aio.delivery import Delivery, TypedDelivery
from lapse_client.argument import check_count, check_handler
from lapse_client.delivery.delivery import Delivery as SyncDelivery
from lapse_client.subscriber import subscriber as sync_subscriber
from lapse_client.subscriber.settlement import SettlementResult
from lapse_client.subscriber.settler import Settling
from lapse_client.transaction.transaction import Transaction

_AT_ONCE: Final = 1_000
"""The greatest number of deliveries in a batch, unless the caller names another one."""

T = TypeVar("T")

_PLAIN: Final = "run: the handler returned nothing to await; it has to be a coroutine function (`async def`)"

_handling: ContextVar[asyncio.Task[Any] | None] = ContextVar("lapse_handling", default=None)
"""The task of `run` that has called the present handler. Tasks that the handler begins inherit it."""


class QueueSubscriber(AsyncClient[sync_subscriber.QueueSubscriber]):
    """Receives a queue's messages under leases; see `lapse_client.QueueSubscriber`, whose arguments these are."""

    def __init__(self, queue: str | re.Pattern[str], max_backlog: int = 1, **options: Any) -> None:
        super().__init__(sync_subscriber.QueueSubscriber(queue, max_backlog, **options))
        self._twin.delivery_types = (Delivery, TypedDelivery)
        self._awakening: Awakening | None = None
        self._working: set[asyncio.Task[Any] | None] = set()

    @property
    def name(self) -> str:
        """The subscription's name."""
        return self._twin.name

    async def start(self) -> QueueSubscriber:
        """Subscribe; `async with` calls this method. A cancelled start leaves no subscription behind."""
        if self._awakening is not None:
            self._awakening.check_loop()
        await super().start()
        if self._awakening is None:
            self._awakening = Awakening(
                f"the subscriber of {self._twin.queue}",
                self._twin.subscription.arrivals,
                self._twin.subscription.patience if self._twin.transport.settles else None,
            )
        return self

    async def close(self) -> None:
        """Send acknowledgments, return all other messages, and wait for the answers.

        Running handlers of `run` finish first. If a handler calls this method, or a task that it has begun, `run`
        stops, and then closes. If it is cancelled, it does not wait for handlers, and continues in a thread.
        """
        self._twin.stop()
        if _handling.get() in self._working:
            return
        if working := [task for task in self._working if task is not None]:
            try:
                await asyncio.wait(working)
            except asyncio.CancelledError:
                asyncio.get_running_loop().run_in_executor(None, self._twin.close)
                raise
        await self._closed()

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self.messages()

    async def messages(self, timeout: float | None = None) -> AsyncIterator[Delivery]:  # noqa: ASYNC109  # stops the iteration, raises nothing
        """Iterate over deliveries; stop after `timeout` seconds without one."""
        while (delivery := await self.receive(timeout)) is not None:
            yield delivery

    async def batches(self, max_size: int = _AT_ONCE, timeout: float | None = None) -> AsyncIterator[list[Delivery]]:  # noqa: ASYNC109
        """Iterate over lists of up to `max_size` deliveries; stop after `timeout` seconds without one."""
        check_count("max_size", max_size)
        while batch := await self._wait(
            lambda began_ns: self._twin.subscription.take(max_size, 0.0, began_ns), timeout
        ):
            yield cast("list[Delivery]", batch)

    async def receive(self, timeout: float | None = None) -> Delivery | None:  # noqa: ASYNC109
        """Wait for one delivery; return None after `timeout` seconds, or after `close`."""
        found = await self._wait(lambda began_ns: self._twin.subscription.receive(0.0, began_ns), timeout)
        return cast("Delivery | None", found)

    async def run(self, handler: Callable[[Delivery], Awaitable[object]], tasks: int = 1) -> None:
        """Call a coroutine function with every delivery, `tasks` at a time, until `close`; then close the subscriber.

        A delivery that the handler leaves unsettled is acknowledged when the handler returns, and cancelled when it
        raises. The exception is logged, unless it is `Retry`, and the next delivery follows.

        Raises:
            EntityDeleted: the queue was deleted.
            Closed: the subscriber was never started.
            TypeError: the handler is no function, or a plain one, which returns nothing to await.
        """
        check_count("tasks", tasks)
        check_handler(handler)

        async def work() -> None:
            misfit: TypeError | None = None
            task = asyncio.current_task()
            assert task is not None
            self._working.add(task)
            _handling.set(task)
            try:
                async for delivery in self.messages():
                    try:
                        async with delivery:
                            awaitable = handler(delivery)
                            if not inspect.isawaitable(awaitable):
                                misfit = TypeError(_PLAIN)
                                self._twin.subscription.arrivals.end(misfit)
                                raise misfit  # the message returns to its queue
                            await awaitable
                    except (Exception, asyncio.CancelledError) as error:  # logged; the message is delivered again
                        if isinstance(error, asyncio.CancelledError) and task.cancelling():
                            raise  # `run` itself is cancelled, not a task that the handler awaited
                        if error is misfit:
                            raise
                        sync_subscriber.log.exception("the handler failed on %s; it is cancelled", delivery.bookmark)
            finally:
                self._working.discard(task)

        # No task group, so that the error that ended the subscription is raised without an ExceptionGroup.
        endings = await asyncio.gather(*(work() for _ in range(tasks)), return_exceptions=True)
        await self.close()
        for ended in endings:
            if ended is not None:
                raise ended

    def acknowledge(self, deliveries: Sequence[SyncDelivery]) -> None:
        """Acknowledge many deliveries, without waiting."""
        self._twin.acknowledge(deliveries)

    def transaction(self, deliveries: Sequence[SyncDelivery]) -> Transaction:
        """Return a transaction over many deliveries, to be opened with `async with`."""
        return self._twin.transaction(deliveries)

    async def settle(
        self,
        how: Settling,
        deliveries: Sequence[SyncDelivery],
        *,
        wait: bool = False,
        delay_ms: int | None = None,
        lease_ms: int | None = None,
        fault: str = "",
    ) -> list[SettlementResult]:
        """Settle many deliveries at once, and return the results if `wait` is set."""
        return await asyncio.to_thread(
            self._twin.settle, how, deliveries, wait=wait, delay_ms=delay_ms, lease_ms=lease_ms, fault=fault
        )

    async def flush(self) -> None:
        """Send all waiting acknowledgments now."""
        await asyncio.to_thread(self._twin.flush)

    async def _wait(self, get: Callable[[int], T], timeout_s: float | None) -> T:
        began_ns = time.time_ns()
        if self._awakening is None:
            self._twin.subscription  # noqa: B018  # raises `Closed`
            raise AssertionError
        return await self._awakening.take(lambda: get(began_ns), timeout_s)
