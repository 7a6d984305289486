"""Ends a process some time after it was asked to end. What waits for Kafka may never come to an end by itself."""

from __future__ import annotations

import logging
import os
import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Final

CRASHED: Final = 70
"""Exit code of a worker that ended its process. Its supervisor starts it again."""


@contextmanager
def bounded_end(limit_s: float, logger: logging.Logger, what: str, then: str) -> Iterator[Callable[[], None]]:
    """Bound the time in which a block ends after a signal.

    Args:
        limit_s: the time limit, s.
        logger: gets a warning if the process is ended.
        what: what is ended, for the warning.
        then: what comes of the work that is not finished, for the warning.

    Yields:
        A function to call at the signal. Unless the block ends within the time limit, the process ends.
    """

    def end() -> None:
        logger.warning("Kafka did not answer within %g s, and %s ends all the same. %s", limit_s, what, then)
        for handler in logging.getLogger().handlers:
            handler.flush()
        os._exit(0)

    timer = threading.Timer(limit_s, end)
    timer.daemon = True

    def begin() -> None:
        if timer.ident is None:
            timer.start()

    try:
        yield begin
    finally:
        timer.cancel()


@contextmanager
def ended_by_signals(
    limit_s: float, logger: logging.Logger, what: str, then: str, stop: Callable[[], None]
) -> Iterator[None]:
    """Stop the work in a block at Ctrl-C or SIGTERM, and bound the time until it ends; see `bounded_end`.

    Args:
        limit_s: the time limit, s.
        logger: gets a warning if the process is ended.
        what: what is ended, for the warning.
        then: what comes of the work that is not finished, for the warning.
        stop: called at the signal, in the main thread; the work ends by itself soon after.
    """
    with bounded_end(limit_s, logger, what, then) as begin:

        def end(*_: object) -> None:
            begin()
            stop()

        before = {number: signal.signal(number, end) for number in (signal.SIGTERM, signal.SIGINT)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)
