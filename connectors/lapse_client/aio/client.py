"""The base of asynchronous client objects, which run the calls of a synchronous one in threads."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from lapse_client.argument import check_wait
from lapse_client.error import OtherEventLoop
from lapse_client.session.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from lapse_client.delivery.arrivals import Waiting

_PATIENCE_S: Final = 1.0
"""How long a cancelled start waits for its end, in seconds. After that it continues in a thread."""

C = TypeVar("C", bound=Client[Any])
T = TypeVar("T")


class AsyncClient(Generic[C]):
    """A client object for asyncio; an asynchronous context manager.

    Args:
        twin: the synchronous client, whose session and threads do the work.
    """

    def __init__(self, twin: C) -> None:
        self._twin = twin

    async def start(self) -> Self:
        """Connect; `async with` calls this method. A cancelled start leaves nothing behind."""
        await started(self._twin.start, self._twin.close)
        return self

    async def close(self) -> None:
        """Unsubscribe and disconnect. May be called twice. If it is cancelled, it continues in a thread."""
        await self._closed()

    async def _closed(self) -> None:
        """Wait until the twin is closed. A cancel only ends the wait: else the pool could drop a queued call."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._twin.close))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class Awakening:
    """Lets a coroutine wait for a buffer that another thread fills. It belongs to the event loop that makes it.

    Args:
        what: name of the buffer's owner, for error messages.
        arrivals: the buffer.
        patience: returns how long to wait for a timeout, both in seconds, and may block; None = the whole timeout.
    """

    def __init__(self, what: str, arrivals: Waiting[Any], patience: Callable[[float], float] | None = None) -> None:
        self._what = what
        self._patience = patience
        self._event = asyncio.Event()
        self._loop = asyncio.get_running_loop()
        self._arrivals = arrivals
        arrivals.on_change = self._changed

    async def take(self, get: Callable[[], T], timeout_s: float | None) -> T:
        """Call `get` until it returns something, or the timeout or the end is reached.

        Raises:
            OtherEventLoop: the object was started in another event loop.
            ValueError: the timeout is no number.
        """
        self.check_loop()
        check_wait(timeout_s)
        if timeout_s and self._patience is not None:
            ended = self._arrivals.ended
            found = get()
            if found or ended:
                return found
            timeout_s = await asyncio.to_thread(self._patience, timeout_s)
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            self._event.clear()
            ended = self._arrivals.ended  # asked first: if the end comes meanwhile, `get` has to tell its error
            found = get()
            if found or ended:
                return found
            left = None if deadline is None else deadline - self._loop.time()
            if left is not None and left <= 0:
                return found
            try:
                async with asyncio.timeout(left):  # `wait_for` of Python 3.11 can lose a cancel
                    await self._event.wait()
            except TimeoutError:
                continue

    def check_loop(self) -> None:
        """Check that the running event loop is the one that started the object.

        Raises:
            OtherEventLoop: the object was started in another event loop.
        """
        if asyncio.get_running_loop() is not self._loop:
            raise OtherEventLoop(self._what)

    def _changed(self) -> None:
        if not self._loop.is_closed():
            self._loop.call_soon_threadsafe(self._event.set)


async def started(start: Callable[[], object], close: Callable[[], None]) -> None:
    """Run `start` in a thread. If the caller is cancelled meanwhile, close what was started.

    Args:
        start: connects, and may wait for answers.
        close: ends a start that is under way, and closes what was started; may be called twice.
    """
    finished, unwanted = threading.Event(), threading.Event()

    def run() -> None:
        try:
            if not unwanted.is_set():
                start()
        finally:
            finished.set()

    def tidy() -> None:
        close()
        finished.wait()
        close()

    running = asyncio.get_running_loop().run_in_executor(None, run)
    try:
        await asyncio.shield(running)
    except asyncio.CancelledError:
        unwanted.set()
        running.add_done_callback(_retrieve_exception)
        # Not a daemon: the process waits for it at exit, and the client's timeouts bound it.
        threading.Thread(target=tidy, name="lapse close").start()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running], timeout=_PATIENCE_S)
        raise


def _retrieve_exception(running: asyncio.Future[None]) -> None:
    """Retrieve the exception of a cancelled start, so that asyncio does not report it."""
    if not running.cancelled():
        running.exception()
