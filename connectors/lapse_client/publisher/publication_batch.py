"""Batches of publications with one common future, which costs less than a future for each."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from concurrent.futures import Future
from typing import Any

from lapse.protocol.bookmark import Bookmark
from lapse_client.error import LapseError
from lapse_client.publisher.publication import Headers

Publication = tuple[Any, str | bytes | None, Headers | None, Mapping[str, Any]]
"""Value, key, headers, and further options of `Publisher.submit`."""

Outcome = Bookmark | LapseError
"""The bookmark of a published record, or the error."""


class PublicationBatch:
    """Collects the outcomes of publications. Any thread may report them.

    Args:
        count: number of publications.

    Attributes:
        future: gets the outcomes of all publications, in their order, when the last one is known.
    """

    def __init__(self, count: int) -> None:
        self.future: Future[list[Outcome]] = Future()
        self._outcomes: list[Outcome] = [LapseError("no outcome yet")] * count
        self._reported = itertools.count(1)  # its `next` is atomic, so threads need no lock
        if not count:
            self.future.set_result([])

    def set_outcome(self, at: int, outcome: Outcome) -> None:
        """Set the outcome of the publication at an index; called once for each."""
        self._outcomes[at] = outcome
        if next(self._reported) == len(self._outcomes) and self.future.set_running_or_notify_cancel():
            self.future.set_result(self._outcomes)
