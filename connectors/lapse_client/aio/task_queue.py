"""Functions that are called through a queue, for asyncio (X3)."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, ClassVar, ParamSpec, TypeVar

from lapse.protocol.bookmark import Bookmark
from lapse_client.aio.delivery import Delivery
from lapse_client.aio.subscriber import QueueSubscriber
from lapse_client.argument import check_count
from lapse_client.kafka.connection import Connection
from lapse_client.subscriber import task_queue

P = ParamSpec("P")
R = TypeVar("R")


class Task(task_queue.Task[P, R]):
    """A function of a task queue; see `lapse_client.Task`."""

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Bookmark:  # type: ignore[override]  # it waits
        """Publish a call, and return its message's bookmark once Kafka has it."""
        return await asyncio.wrap_future(await asyncio.to_thread(self.begin, *args, **kwargs))


class CallQueue(task_queue.TaskQueue):
    """The handling of messages by a task queue for asyncio."""

    task_type: ClassVar[type[task_queue.Task[Any, Any]]] = Task

    async def handle(self, delivery: Delivery) -> None:  # type: ignore[override]  # it waits
        """Run the task that a message names. A plain function runs in a thread."""
        if (call := self.parse_call(delivery)) is None:
            return
        done = call() if inspect.iscoroutinefunction(call.func) else await asyncio.to_thread(call)
        if inspect.isawaitable(done):  # also of a plain function that returns one, such as a decorator's
            await done


class TaskQueue(CallQueue):
    """Functions that are called through a queue; see `lapse_client.TaskQueue`. An asynchronous context manager."""

    def __init__(self, name: str, *, connection: Connection | None = None, **options: Any) -> None:
        super().__init__(name, connection=connection, **options)
        self._working: set[QueueSubscriber] = set()
        """Those of the calls of `run` that are under way."""

    async def run(self, tasks: int = 1) -> None:  # type: ignore[override]  # it waits
        """Run the queue's tasks, `tasks` at a time, until it is cancelled or closed."""
        check_count("tasks", tasks)
        subscriber = QueueSubscriber(self.name, tasks, connection=self._connection, **self._options)
        self._working.add(subscriber)
        try:
            async with subscriber:
                await subscriber.run(self.handle, tasks)
        finally:
            self._working.discard(subscriber)

    async def close(self) -> None:  # type: ignore[override]  # it waits
        """Stop `run`, in all tasks, after the running calls, and flush submitted calls."""
        await asyncio.gather(*(subscriber.close() for subscriber in list(self._working)))
        await asyncio.to_thread(super().close)

    async def __aenter__(self) -> TaskQueue:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()
