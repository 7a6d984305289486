"""The base of asynchronous client objects: a synchronous one whose calls wait in a thread."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import TYPE_CHECKING, Any, Final, Generic, Self, TypeVar

from lapse_client.error import OtherEventLoop
from lapse_client.session.client import Client

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from lapse_client.delivery.arrivals import Waiting

_PATIENCE_S: Final = 1.0
"""How long a cancelled start waits for its end, s. The rest goes on in a thread."""

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
        """Connect; `async with` does so too. A cancelled start leaves nothing behind."""
        await started(self._twin.start, self._twin.close)
        return self

    async def close(self) -> None:
        """Leave and disconnect; may be called twice. Where it is cancelled, it goes on in a thread."""
        await self._closed()

    async def _closed(self) -> None:
        """Wait until the twin is closed. A cancel ends the wait alone: a thread pool drops what it has not begun."""
        await asyncio.shield(asyncio.get_running_loop().run_in_executor(None, self._twin.close))

    async def __aenter__(self) -> Self:
        return await self.start()

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await self.close()


class Awakening:
    """Lets a coroutine wait for arrivals that another thread brings; belongs to the event loop that makes it.

    Args:
        what: the object whose arrivals they are, for the text of an error.
        arrivals: what is waited for.
        patience: says how long to wait within a timeout, in seconds, and may wait itself; None = the whole timeout.
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
            OtherEventLoop: another event loop started it.
        """
        self.check_loop()
        if timeout_s and self._patience is not None:
            found = get()
            if found or self._arrivals.ended:
                return found
            timeout_s = await asyncio.to_thread(self._patience, timeout_s)
        deadline = None if timeout_s is None else self._loop.time() + timeout_s
        while True:
            self._event.clear()
            found = get()
            if found or self._arrivals.ended:
                return found
            left = None if deadline is None else deadline - self._loop.time()
            if left is not None and left <= 0:
                return found
            try:
                async with asyncio.timeout(left):  # `wait_for` of Python 3.11 forgets a cancel that meets the event
                    await self._event.wait()
            except TimeoutError:
                continue

    def check_loop(self) -> None:
        """Do nothing in the event loop that started it.

        Raises:
            OtherEventLoop: another event loop started it.
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
        running.add_done_callback(_heard)
        # No daemon: it is bounded by the client's own timeouts, and the end of the process waits for it.
        threading.Thread(target=tidy, name="lapse close").start()
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.wait([running], timeout=_PATIENCE_S)
        raise


def _heard(running: asyncio.Future[None]) -> None:
    """Take the exception of a start that nobody wants any more, so that asyncio does not report it."""
    if not running.cancelled():
        running.exception()
