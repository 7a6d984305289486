"""Calls in the event loop of another thread, by which records come from the thread that fetches."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Iterator

import pytest

from lapse.runtime.kafka.thread_call import call_in


@pytest.fixture
def other() -> Iterator[asyncio.AbstractEventLoop]:
    """Run an event loop in a thread."""
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_call_runs_in_the_other_thread_and_returns_its_result(other: asyncio.AbstractEventLoop) -> None:
    async def where() -> int:
        await asyncio.sleep(0)
        return threading.get_ident()

    assert asyncio.run(call_in(other, where)) != threading.get_ident()


def test_the_error_of_a_call_is_raised_here(other: asyncio.AbstractEventLoop) -> None:
    async def fail() -> None:
        raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        asyncio.run(call_in(other, fail))


def test_a_call_that_is_cancelled_there_is_cancelled_here(other: asyncio.AbstractEventLoop) -> None:
    async def never() -> None:
        task = asyncio.current_task()
        assert task is not None
        task.cancel()
        await asyncio.Event().wait()

    with pytest.raises(asyncio.CancelledError):
        asyncio.run(call_in(other, never))


def test_what_is_cancelled_here_runs_to_its_end_there(other: asyncio.AbstractEventLoop) -> None:
    begun, may_end, ended = threading.Event(), asyncio.Event(), threading.Event()

    async def work() -> None:
        begun.set()
        await may_end.wait()
        ended.set()

    async def give_up() -> None:
        call = asyncio.create_task(call_in(other, work))
        await asyncio.to_thread(begun.wait, 60)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call

    asyncio.run(give_up())
    other.call_soon_threadsafe(may_end.set)
    assert ended.wait(60)


def test_a_closed_loop_is_an_error() -> None:
    async def nothing() -> None: ...

    loop = asyncio.new_event_loop()
    loop.close()
    with pytest.raises(RuntimeError):
        asyncio.run(call_in(loop, nothing))
