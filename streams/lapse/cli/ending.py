"""Lets a foreground command end by SIGTERM in the same way as by Ctrl-C."""

from __future__ import annotations

import signal
from types import FrameType


def treat_sigterm_as_ctrl_c() -> None:
    """Have SIGTERM raise KeyboardInterrupt in the main thread, as Ctrl-C does."""
    signal.signal(signal.SIGTERM, _interrupt)


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    raise KeyboardInterrupt
