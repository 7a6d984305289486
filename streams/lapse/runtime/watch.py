"""Crash-only: how a worker ends its process, and how it notices that the process stood still."""

from __future__ import annotations

import asyncio
import logging
import os
import threading
import time
from collections.abc import Coroutine
from typing import Any, Final

from lapse.process_end import CRASHED

logger = logging.getLogger(__name__)

_CHECK_EVERY_S: Final = 0.1
_PAUSE_S: Final = 0.3
"""With more time than that between two checks, s, the process stood still. A waiting thread is not that late."""


class Watch:
    """Notices that the process stood still (SIGSTOP, a suspended machine) for longer than its session lasts.

    Its shards belong to other workers then, and it must not write for them. A separate thread takes the time, so that a
    busy event loop does not count as standing still. Faust's heartbeats have a separate thread too.

    Attributes:
        pauses: how often the process stood still for a shorter time.
    """

    def __init__(self, session_s: float) -> None:
        self.session_s = session_s
        self.pauses = 0
        self._alive_at = time.monotonic()
        self._stopped = threading.Event()

    def start(self) -> None:
        """Start to watch."""
        self._alive_at = time.monotonic()
        threading.Thread(target=self._run, name="watch", daemon=True).start()

    def stop(self) -> None:
        """Stop watching."""
        self._stopped.set()

    def _run(self) -> None:
        while not self._stopped.wait(min(_CHECK_EVERY_S, self.session_s / 4)):
            self.check()

    def check(self) -> None:
        """End the process if it stood still for too long; count a shorter pause."""
        now = time.monotonic()
        silent_s = now - self._alive_at
        if silent_s > self.session_s:
            end_process(
                f"this process stood still for {silent_s:.1f} s, longer than session_timeout "
                f"({self.session_s:.1f} s): its shards belong to other workers by now"
            )
        self.pauses += silent_s > _PAUSE_S
        self._alive_at = now


def start_task(work: Coroutine[Any, Any, None], what: str, among: set[asyncio.Task[None]]) -> asyncio.Task[None]:
    """Start work whose failure ends the process, because nothing else would do that work again.

    Args:
        work: the work.
        what: what it does: the name of the task, and the reason if it fails.
        among: holds the task until it has ended. The event loop alone would not keep it.
    """

    def ended(task: asyncio.Task[None]) -> None:
        among.discard(task)
        end_process_if_failed(task, what)

    task = asyncio.create_task(work, name=what)
    among.add(task)
    task.add_done_callback(ended)
    return task


def end_process_if_failed(task: asyncio.Task[None], what: str) -> None:
    """End the process if a task that has ended raised an error; a cancelled one did not.

    Args:
        task: the task, from its done callback.
        what: what it did, for the reason.
    """
    if not task.cancelled() and (error := task.exception()) is not None:
        end_process(f"{what}: {error}", error)


def end_process(why: str, error: BaseException | None = None) -> None:
    """Log the reason, and end the process at once.

    A supervisor restarts the worker, which recovers from its journal.
    """
    logger.critical("lapse worker ends: %s", why, exc_info=error)
    for handler in logging.getLogger().handlers:
        handler.flush()
    os._exit(CRASHED)
