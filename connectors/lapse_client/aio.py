"""The client for asyncio: the same names as `lapse_client`, and the same engine behind them.

Each class holds its synchronous twin, whose background thread does the work; what would wait is a coroutine here, and
iterators are asynchronous. Settling a delivery never waits, so it is a plain call; `reply` is a coroutine.

::

    async with QueueSubscriber("orders", max_backlog=100) as subscriber:
        async for delivery in subscriber:
            async with delivery:
                await handle(delivery.value)
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Sequence
from typing import Any, Final, TypeVar, cast

from lapse.protocol.answer import OpenSubscription, ScheduledUpdate
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import Event
from lapse_client import aio_task_queue
from lapse_client import publisher as sync_publisher
from lapse_client import sow as sync_sow
from lapse_client import subscriber as sync_subscriber
from lapse_client.admin import Defined
from lapse_client.aio_admin import Admin
from lapse_client.aio_client import AsyncClient, Awakening
from lapse_client.aio_delivery import Delivery, TypedDelivery
from lapse_client.aio_queue import Queue
from lapse_client.aio_reading import DeadLetterReader, EventReader, history, replay
from lapse_client.aio_task_queue import Task
from lapse_client.avro_serde import AvroSerde
from lapse_client.connection import Connection
from lapse_client.dead_letter import DeadLetter
from lapse_client.delivery import Delivery as SyncDelivery
from lapse_client.error import (
    AlreadySettled,
    AnswerTimeout,
    Closed,
    CommandFailed,
    ConnectionFailed,
    EntityDeleted,
    InvalidPayload,
    InvalidPublication,
    LapseError,
    NoRecord,
    NoReply,
    OtherEventLoop,
    PublishFailed,
    TransactionFailed,
    UnknownEntity,
)
from lapse_client.history import History
from lapse_client.json_serde import JsonSerde
from lapse_client.moment import Moment
from lapse_client.record_publisher import Payload
from lapse_client.replay import Replayed
from lapse_client.reply import Reply
from lapse_client.retry import Retry
from lapse_client.serde import Serde
from lapse_client.settlement import SettlementResult
from lapse_client.settler import Settling
from lapse_client.sow_record import SowRecord
from lapse_client.sow_subscription import SowSubscription as SyncSowSubscription
from lapse_client.transaction import Transaction

__all__ = [
    "Admin",
    "AlreadySettled",
    "AnswerTimeout",
    "AvroSerde",
    "Bookmark",
    "BookmarkRange",
    "Closed",
    "CommandFailed",
    "Connection",
    "ConnectionFailed",
    "DeadLetter",
    "DeadLetterReader",
    "Defined",
    "Delivery",
    "EntityDeleted",
    "Event",
    "EventReader",
    "History",
    "InvalidPayload",
    "InvalidPublication",
    "JsonSerde",
    "LapseError",
    "Moment",
    "NoRecord",
    "NoReply",
    "OtherEventLoop",
    "PublishFailed",
    "Publisher",
    "Queue",
    "QueueSubscriber",
    "Replayed",
    "Reply",
    "Retry",
    "Serde",
    "SettlementResult",
    "SowClient",
    "SowRecord",
    "SowSubscription",
    "Task",
    "TaskQueue",
    "Transaction",
    "TransactionFailed",
    "UnknownEntity",
    "history",
    "replay",
]

_AT_ONCE: Final = 1_000

T = TypeVar("T")


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
        """Subscribe; `async with` does so too. A cancelled start leaves no subscription behind."""
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
        """Send what was acknowledged, give the rest back, wait for the answers.

        Handlers of `run` that are at work finish first. Called by a handler, it lets `run` end, which then closes.
        """
        self._twin.stop()
        if asyncio.current_task() in self._working:
            return
        if working := [task for task in self._working if task is not None]:
            await asyncio.wait(working)
        await asyncio.to_thread(self._twin.close)

    def __aiter__(self) -> AsyncIterator[Delivery]:
        return self.messages()

    async def messages(self, timeout: float | None = None) -> AsyncIterator[Delivery]:  # noqa: ASYNC109  # ends it, raises nothing
        """Iterate over deliveries; end after `timeout` seconds without one."""
        while (delivery := await self.receive(timeout)) is not None:
            yield delivery

    async def batches(self, max_size: int = _AT_ONCE, timeout: float | None = None) -> AsyncIterator[list[Delivery]]:  # noqa: ASYNC109
        """Iterate over lists of up to `max_size` deliveries; end after `timeout` seconds without one."""
        while batch := await self._wait(lambda: self._twin.subscription.take(max_size, 0.0), timeout):
            yield cast("list[Delivery]", batch)

    async def receive(self, timeout: float | None = None) -> Delivery | None:  # noqa: ASYNC109
        """Wait for one delivery; None after `timeout` seconds, or `close`."""
        return cast("Delivery | None", await self._wait(lambda: self._twin.subscription.receive(0.0), timeout))

    async def run(self, handler: Callable[[Delivery], Awaitable[object]], tasks: int = 1) -> None:
        """Hand every delivery to a coroutine function, `tasks` at a time, until `close`; the subscriber is closed then.

        A delivery that the handler leaves unsettled is acknowledged when it returns, and cancelled when it raises;
        the exception is logged, unless it is `Retry`, and the next delivery follows.

        Raises:
            EntityDeleted: the queue was deleted.
            Closed: it was never started.
        """

        async def work() -> None:
            task = asyncio.current_task()
            assert task is not None
            self._working.add(task)
            try:
                async for delivery in self.messages():
                    try:
                        async with delivery:
                            await handler(delivery)
                    except (Exception, asyncio.CancelledError) as error:  # logged, and the message comes again
                        if isinstance(error, asyncio.CancelledError) and task.cancelling():
                            raise  # it is `run` that is cancelled, not something that the handler waited for
                        sync_subscriber.log.exception("the handler failed on %s; it is cancelled", delivery.bookmark)
            finally:
                self._working.discard(task)

        # No task group: what ends the subscription is raised as it is, as the synchronous `run` does.
        endings = await asyncio.gather(*(work() for _ in range(tasks)), return_exceptions=True)
        await self.close()
        for ended in endings:
            if ended is not None:
                raise ended

    def acknowledge(self, deliveries: Sequence[SyncDelivery]) -> None:
        """Acknowledge many deliveries; never waits."""
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
        """Settle many deliveries at once, and learn what became of each if wanted."""
        return await asyncio.to_thread(
            self._twin.settle, how, deliveries, wait=wait, delay_ms=delay_ms, lease_ms=lease_ms, fault=fault
        )

    async def flush(self) -> None:
        """Send the acknowledgments that wait for others now."""
        await asyncio.to_thread(self._twin.flush)

    async def _wait(self, get: Callable[[], T], timeout_s: float | None) -> T:
        if self._awakening is None:
            self._twin.subscription  # noqa: B018  # raises that it is not started
            raise AssertionError
        return await self._awakening.take(get, timeout_s)


class Publisher(AsyncClient[sync_publisher.Publisher]):
    """Publishes with lifetimes; see `lapse_client.Publisher`, whose arguments these are."""

    def __init__(self, connection: Connection | None = None, **options: Any) -> None:
        super().__init__(sync_publisher.Publisher(connection, **options))

    async def publish(self, to: str, value: Any, key: Payload = None, **options: Any) -> Bookmark:
        """Publish a record and wait until Kafka has it; the options are those of the synchronous `publish`."""
        future = await asyncio.to_thread(self._twin.submit, to, value, key, **options)
        return await asyncio.wrap_future(future)

    async def request(self, to: str, value: Payload, key: Payload = None, *, timeout: float, **options: Any) -> Reply:  # noqa: ASYNC109  # it is the request's lifetime
        """Publish a request, and wait for the reply to it; see `lapse_client.Publisher.request`."""
        with await asyncio.to_thread(self._twin.submit_request, to, value, key, timeout=timeout, **options) as pending:
            while await asyncio.to_thread(pending.waits_for_a_test):
                pass
            try:
                return await asyncio.wait_for(asyncio.wrap_future(pending.future), pending.left_s)
            except TimeoutError:
                raise pending.nothing() from None

    async def flush(self) -> None:
        """Wait until Kafka has everything."""
        await asyncio.to_thread(self._twin.flush)


class TaskQueue(aio_task_queue.CallQueue):
    """Functions that are called through a queue; see `lapse_client.TaskQueue`. An asynchronous context manager."""

    async def run(self, tasks: int = 1) -> None:  # type: ignore[override]  # it waits
        """Work on the queue, `tasks` calls at a time, until it is cancelled or closed."""
        async with QueueSubscriber(self.name, tasks, connection=self._connection, **self._options) as subscriber:
            self._working = subscriber
            await subscriber.run(self.handle, tasks)

    async def close(self) -> None:  # type: ignore[override]  # it waits
        """Let `run` end when the calls at work are done, and flush what was submitted."""
        if self._working is not None:
            await self._working.close()
        await asyncio.to_thread(super().close)

    async def __aenter__(self) -> TaskQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    _working: QueueSubscriber | None = None


class SowSubscription(AsyncClient[SyncSowSubscription]):
    """Updates of a SOW topic; see `lapse_client.SowSubscription`."""

    def __init__(self, topic: str, twin: SyncSowSubscription) -> None:
        super().__init__(twin)
        self._what = f"the subscription to {topic}"
        self._awakening: Awakening | None = None

    async def start(self) -> SowSubscription:
        """Subscribe; `async with` does so too. A cancelled start leaves no subscription behind."""
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
        """Iterate over updates; end after `timeout` seconds without one."""
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
        """Figures over all shards: `records`, `scheduled` updates, `dying` letters, and `subscriptions`."""
        return await asyncio.to_thread(self._twin.depth)

    async def subscriptions(self) -> list[OpenSubscription]:
        """Who is subscribed, and since when; over all shards, the oldest first."""
        return await asyncio.to_thread(self._twin.subscriptions)

    async def delete(
        self,
        *,
        keys: Iterable[str | bytes] = (),
        data: Iterable[str | bytes] = (),
        filter: str | None = None,  # noqa: A002  # the command's word
        bookmarks: Iterable[str] = (),
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
        """Updates whose instant has not come, the next ones first (L5)."""
        return await asyncio.to_thread(self._twin.scheduled, filter=filter, top_n=top_n, skip=skip)

    async def withdraw(
        self,
        *,
        filter: str | None = None,  # noqa: A002  # the command's word
        bookmarks: Iterable[str] = (),
    ) -> int:
        """Withdraw scheduled updates by filter or by bookmarks, and return how many; records stay as they are (L5)."""
        return await asyncio.to_thread(self._twin.withdraw, filter=filter, bookmarks=bookmarks)

    async def delete_topic(self, *, force: bool = False) -> dict[str, int]:
        """Delete the whole SOW topic, if it is empty, and wait until its topics are gone; closes the client."""
        return await asyncio.to_thread(self._twin.delete_topic, force=force)

    def subscribe(self, filter: str | None = None, **options: Any) -> SowSubscription:  # noqa: A002
        """Return updates from now on, to be opened with `async with`."""
        return SowSubscription(self._twin.topic, self._twin.subscribe(filter, **options))

    def sow_and_subscribe(self, filter: str | None = None, **options: Any) -> SowSubscription:  # noqa: A002
        """Return the current records, then updates, without a gap or a repeat between them."""
        return SowSubscription(self._twin.topic, self._twin.sow_and_subscribe(filter, **options))

    def delta_subscribe(self, filter: str | None = None, **options: Any) -> SowSubscription:  # noqa: A002
        """Return updates from now on, changed fields only."""
        return SowSubscription(self._twin.topic, self._twin.delta_subscribe(filter, **options))

    def sow_and_delta_subscribe(self, filter: str | None = None, **options: Any) -> SowSubscription:  # noqa: A002
        """Return the current records, then what changes in them: changed fields only, without a gap or a repeat."""
        return SowSubscription(self._twin.topic, self._twin.sow_and_delta_subscribe(filter, **options))
