"""Publications with one future for all of them, which costs less than a future for each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from lapse.protocol.bookmark import Bookmark
from lapse_client.error import LapseError
from lapse_client.publisher.publication import Headers

Publication = tuple[Any, str | bytes | None, Headers | None, Mapping[str, Any]]
"""Value, key, headers, and the other options of `Publisher.submit`."""

Outcome = Bookmark | LapseError
"""Where a record stands, or why it does not."""


class PublicationBatch:
    """Collects what becomes of publications; from any thread.

    Args:
        count: how many there are.

    Attributes:
        future: ends when all are done, well or not: their outcomes, in the order of the publications.
    """

    def __init__(self, count: int) -> None:
        self.future: Future[list[Outcome]] = Future()
        self._outcomes: list[Outcome] = [LapseError("not told yet")] * count
        self._told = itertools.count(1)  # counts in one step, whichever threads tell
        if not count:
            self.future.set_result([])

    def tell(self, at: int, outcome: Outcome) -> None:
        """Note what became of one, by its index; once for each."""
        self._outcomes[at] = outcome
        if next(self._told) == len(self._outcomes) and self.future.set_running_or_notify_cancel():
            self.future.set_result(self._outcomes)
