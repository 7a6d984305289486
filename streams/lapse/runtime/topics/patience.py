"""Patience with brokers that are at work: it lasts as long as there is progress."""

from __future__ import annotations

import time
from collections.abc import Callable


class Patience:
    """Counts from the last progress, and not from the beginning.

    A broker on a busy machine may need minutes to learn of thousands of topics. It is not given up while it learns.

    Args:
        patience_s: how long nothing may come, s.
        clock: seconds that only grow.
    """

    def __init__(self, patience_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._patience_s = patience_s
        self._clock = clock
        self._most: int | None = None
        self._since_s = clock()

    def is_over(self, done: int) -> bool:
        """Whether nothing has come for too long.

        Args:
            done: how much there is by now; more than ever before is progress.
        """
        now_s = self._clock()
        if self._most is None or done > self._most:
            self._most, self._since_s = done, now_s
        return now_s - self._since_s > self._patience_s
