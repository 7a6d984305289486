"""Functions that are called through a queue, for asyncio (X3)."""

from __future__ import annotations

import asyncio
import inspect
from typing import Any, ClassVar, ParamSpec, TypeVar

from lapse.protocol.bookmark import Bookmark
from lapse_client import task_queue
from lapse_client.aio_delivery import Delivery

P = ParamSpec("P")
R = TypeVar("R")


class Task(task_queue.Task[P, R]):
    """A function of a task queue; see `lapse_client.Task`."""

    async def submit(self, *args: P.args, **kwargs: P.kwargs) -> Bookmark:  # type: ignore[override]  # it waits
        """Publish a call, and return where its message stands once Kafka has it."""
        return await asyncio.wrap_future(await asyncio.to_thread(self.begin, *args, **kwargs))


class CallQueue(task_queue.TaskQueue):
    """What a task queue for asyncio does with the messages that it gets."""

    task_type: ClassVar[type[task_queue.Task[Any, Any]]] = Task

    async def handle(self, delivery: Delivery) -> None:  # type: ignore[override]  # it waits
        """Do what a message asks for: a plain function in a thread."""
        if (call := self.call_of(delivery)) is None:
            return
        if inspect.iscoroutinefunction(call.func):
            await call()
        else:
            await asyncio.to_thread(call)
