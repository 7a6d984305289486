"""Lets a foreground command end by SIGTERM in the same way as by Ctrl-C, and at once by a second one."""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import FrameType
from typing import Final

KILLED: Final = 130
"""Exit code after a second Ctrl-C, as shells have it for SIGINT."""


@dataclass(slots=True)
class _Held:
    """Whether a block holds back KeyboardInterrupt, and whether a signal has come meanwhile."""

    holds: bool = False
    came: bool = False


_HELD: Final = _Held()


def treat_sigterm_as_ctrl_c() -> None:
    """Have SIGTERM raise KeyboardInterrupt in the main thread, as Ctrl-C does; `interrupted_afterwards` holds both."""
    signal.signal(signal.SIGTERM, _interrupt)
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # not in a shell's background, which ignores it
        signal.signal(signal.SIGINT, _interrupt)


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


@contextlib.contextmanager
def interrupted_afterwards() -> Iterator[None]:
    """Hold back the KeyboardInterrupt of a signal's handler until the end of the block, in the main thread.

    A second signal ends this process within the block, too.
    """
    _HELD.holds = True
    try:
        yield
    finally:
        _HELD.holds = False
        if _HELD.came:
            _HELD.came = False
            raise KeyboardInterrupt


def _interrupt(_number: int, _frame: FrameType | None) -> None:
    if _HELD.holds:
        _HELD.came = True
        return
    raise KeyboardInterrupt
