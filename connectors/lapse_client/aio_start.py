"""Starting a client from a coroutine, so that a cancelled start leaves nothing behind."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable
from typing import Final

_PATIENCE_S: Final = 1.0
"""How long a cancelled start waits for its end, s. The rest goes on in a thread."""


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
