"""Finds out from which record on Kafka's compaction has removed nothing from a journal.

Kafka compacts a log from its beginning, and keeps only the latest record of each key in that part. Each step of an
epoch writes its read positions under the same key. So the second of two consecutive records with that key is behind the
compacted part.
"""

from __future__ import annotations

from lapse.core.shard.changelog import PROGRESS


class Compaction:
    """Follows a journal's records.

    Attributes:
        whole: whether nothing is missing from the last processed record on. It stays True until an offset is missing.
    """

    def __init__(self) -> None:
        self.whole = True
        self._next = 0
        self._progress: bytes | None = None

    def take(self, offset: int, key: bytes | None) -> None:
        """Process the next record."""
        if offset != self._next:
            self.whole, self._progress = False, None
        self._next = offset + 1
        if not self.whole and key is not None and key.startswith(PROGRESS):
            self.whole = key == self._progress
            self._progress = key
