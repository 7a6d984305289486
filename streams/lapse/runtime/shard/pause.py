"""Handles pauses of the process: records published meanwhile arrive partition by partition (C33, C76).

While a worker runs, records of all partitions arrive in about the order in which they were published. After a pause
(SIGSTOP, a suspended machine), several fetches of one partition may arrive before the first one of another. So a shard
in total order reads all partitions to their ends at that time, as at take-over.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable

from lapse.runtime.shard.log import Log
from lapse.runtime.tp import TP
from lapse.runtime.watch import Watch


class Pauses:
    """Says, after a pause, up to where a shard must read each partition before it goes on.

    Args:
        watch: notices the pauses.
        log: says where the logs end.
    """

    def __init__(self, watch: Watch, log: Log) -> None:
        self._watch = watch
        self._log = log
        self._seen = watch.pauses
        self._asked: asyncio.Task[dict[TP, int]] | None = None

    def ends(self, sources: Callable[[], Iterable[TP]], on_news: Callable[[], None]) -> dict[TP, int] | None:
        """Return where partitions ended after the last pause, once; empty without a pause, None if not known yet.

        Args:
            sources: returns the partitions.
            on_news: called when the ends are known.
        """
        self._watch.check()
        if self._watch.pauses != self._seen:
            self._seen = self._watch.pauses
            self.stop()
            self._asked = asyncio.create_task(self._log.existing_ends(sources()), name="ends after a pause")
            self._asked.add_done_callback(lambda _: on_news())
        if self._asked is None:
            return {}
        if not self._asked.done():
            return None
        ends, self._asked = self._asked.result(), None
        return ends

    def stop(self) -> None:
        """Cancel the request for the ends."""
        if self._asked is not None:
            self._asked.cancel()
            self._asked = None
