"""Patience with busy brokers: a time limit that starts anew with each progress."""

from __future__ import annotations

import time
from collections.abc import Callable


class Patience:
    """A time limit since the last progress, and not since the beginning.

    A broker on a busy machine may need minutes to learn of thousands of topics. It is waited for while it learns.

    Args:
        patience_s: the longest time without progress, s.
        clock: returns seconds that never decrease.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._most: int | None = None
        self._since_s = clock()

    def is_over(self, done: int) -> bool:
        """Return whether there was no progress for too long.

        Args:
            done: how much is done by now. A new maximum is progress.
        """
        now_s = self._clock()
        if self._most is None or done > self._most:
            self._most, self._since_s = done, now_s
        return now_s - self._since_s > self._patience_s
