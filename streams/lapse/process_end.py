"""Ends a process some time after it was asked to end. What waits for Kafka may never come to an end by itself."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager


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
