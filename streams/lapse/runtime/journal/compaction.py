"""Compaction of a journal by Kafka: from which record on nothing is missing.

Kafka compacts a log from its beginning, and of each key leaves the latest record there. Each step of an epoch writes
how far it has read under one key. Where two records of that key stand, the second is behind all that was compacted.
"""

from __future__ import annotations

from lapse.runtime.journal.changelog import PROGRESS


class Compaction:
    """Goes along a journal's records.

    Attributes:
        whole: whether nothing is missing from the last record on that was taken in; if so, that holds for the next
            ones, until one is missing.
    """

    def __init__(self) -> None:
        self.whole = True
        self._next = 0
        self._progress: bytes | None = None

    def take(self, offset: int, key: bytes | None) -> None:
        """Take in the next record."""
        if offset != self._next:
            self.whole, self._progress = False, None
        self._next = offset + 1
        if not self.whole and key is not None and key.startswith(PROGRESS):
            self.whole = key == self._progress
            self._progress = key
