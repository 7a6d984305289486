"""Tells an application of refused settlements that no call waits for (Q8)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

from lapse_client.subscriber.settlement import SettlementResult

log = logging.getLogger("lapse_client")


class Refusals:
    """Calls the application's `on_refused`. Every method may be called from any thread.

    An exception in it is logged, and ends nothing. It is never called while this package holds a lock, so it may
    close its subscriber.

    Args:
        on_refused: the application's callback; None = none.
    """

    def __init__(self, on_refused: Callable[[SettlementResult], None] | None) -> None:
        self._on_refused = on_refused
        self._of_thread = threading.local()

    def report(self, results: Sequence[SettlementResult]) -> None:
        """Report results now, or at the end of this thread's outermost `held_back`."""
        if self._on_refused is None:
            return
        waiting: list[SettlementResult] | None = getattr(self._of_thread, "waiting", None)
        if waiting is not None:
            waiting += results
            return
        for result in results:
            try:
                self._on_refused(result)
            except Exception:
                log.exception("on_refused failed for %s: %s", result.messages, result.result)

    @contextmanager
    def held_back(self) -> Iterator[None]:
        """Delay this thread's reports until the end of the block, because the thread holds a lock."""
        if getattr(self._of_thread, "waiting", None) is not None:
            yield
            return
        waiting: list[SettlementResult] = []
        self._of_thread.waiting = waiting
        try:
            yield
        finally:
            self._of_thread.waiting = None
            self.report(waiting)
