"""Ends a child process when its parent ends, however that happens, so that no process is left behind."""

from __future__ import annotations

import ctypes
import signal
import sys
from typing import Final

_PR_SET_PDEATHSIG: Final = 1


def end_with_parent(number: int | None = None) -> None:
    """Have Linux send this process a signal when the thread that started it ends; elsewhere do nothing.

    Args:
        number: the signal's number; None = that of SIGKILL.
    """
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL if number is None else number)
