"""Faust's worker of this process, and how it begins to end."""

from __future__ import annotations

import signal
from collections.abc import Callable
from typing import Any

import faust


class WorkerProcess(faust.Worker):
    """Faust's worker, which reports the first signal to end it.

    Args:
        app: the application.
        begin_end: called when a signal has come, before anything of the application stops.
        options: further options of Faust's worker.
    """

    def __init__(self, app: Any, begin_end: Callable[[], None], **options: Any) -> None:
        super().__init__(app, **options)
        self._begin_end = begin_end
        self.spinner = None  # above the level `info` it writes control characters into the log, and logs everything

    def _schedule_shutdown(self, signal: signal.Signals) -> None:
        self._begin_end()
        super()._schedule_shutdown(signal)
