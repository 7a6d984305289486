"""Calls a coroutine function in another thread's event loop, and waits for its result in this one.

asyncio and Faust do the same with two more futures or tasks on each side. For fetches this matters: a worker that gets
a message every few ms spends a tenth of its CPU on that.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

T = TypeVar("T")


async def call_in(loop: asyncio.AbstractEventLoop, function: Callable[[], Coroutine[Any, Any, T]]) -> T:
    """Call `function` in the running loop of another thread, and return its result or raise its error.

    If this call is cancelled, the function still runs to its end, and its outcome is dropped.

    Raises:
        CancelledError: this call or the function was cancelled.
        RuntimeError: the other loop is closed.
    """
    here = asyncio.get_running_loop()
    outcome: asyncio.Future[T] = here.create_future()

    def end(result: T | None, error: BaseException | None) -> None:
        if outcome.done():  # cancelled
            return
        if error is not None:
            outcome.set_exception(error)
        else:
            outcome.set_result(result)  # type: ignore[arg-type]  # without an error there is a result

    async def run() -> None:
        result, raised = None, None
        try:
            result = await function()
        except BaseException as error:  # noqa: BLE001  # the caller raises it
            raised = error
        here.call_soon_threadsafe(end, result, raised)

    running: set[asyncio.Task[None]] = set()  # a loop itself keeps no task alive

    def begin() -> None:
        task = loop.create_task(run())
        running.add(task)
        task.add_done_callback(running.discard)

    loop.call_soon_threadsafe(begin)
    return await outcome
