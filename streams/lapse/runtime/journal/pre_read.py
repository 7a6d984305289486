"""Pre-read: a restarted worker reads its shards' changelogs while the group still waits for its predecessor.

After a crash, Kafka waits for `session_timeout` before it reassigns the shards, mostly to the worker that had them.
That worker uses the time to read. The note is only a hint: if other shards are assigned, the read was useless.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Iterable
from pathlib import Path

logger = logging.getLogger(__name__)


class PreRead:
    """A note in the data directory that names a worker's shards.

    Args:
        path: the file.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._noted: list[int] | None = None

    def shards(self, partitions: int) -> set[int]:
        """Return the noted shards below `partitions`; none if the note cannot be read."""
        try:
            noted = sorted({int(number) for number in json.loads(self._path.read_text())})
        except (OSError, ValueError, TypeError):
            return set()
        self._noted = noted
        return set(noted) & set(range(partitions))

    def note(self, shards: Iterable[int]) -> None:
        """Note which shards the worker has."""
        noted = sorted(shards)
        if self._noted is None:
            self.shards(0)  # mostly the note is the same as before
        if noted == self._noted:
            return
        self._noted = noted
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._path.write_text(json.dumps(noted))
        except OSError as error:
            logger.info("%s: %s; a restart will be a little slower", self._path, error)
