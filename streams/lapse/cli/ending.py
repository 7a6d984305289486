"""Lets a foreground command end by SIGTERM in the same way as by Ctrl-C, and at once by a second one."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from types import FrameType
from typing import Final

KILLED: Final = 130
"""Exit code after a second Ctrl-C, as shells have it for SIGINT."""


def treat_sigterm_as_ctrl_c() -> None:
    """Have SIGTERM raise KeyboardInterrupt in the main thread, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


def end_at_once_by_a_second_ctrl_c(kill: Callable[[], None] = lambda: None) -> None:
    """Have the first SIGINT or SIGTERM raise KeyboardInterrupt, and the second one end this process.

    Args:
        kill: called by the second one, before the process ends with `KILLED`.
    """

    def end(_number: int, _frame: FrameType | None) -> None:
        try:
            kill()
        finally:
            os._exit(KILLED)

    def interrupt(number: int, frame: FrameType | None) -> None:
        for one in (signal.SIGINT, signal.SIGTERM):
            signal.signal(one, end)
        _interrupt(number, frame)

    for one in (signal.SIGINT, signal.SIGTERM):
        signal.signal(one, interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
