"""Origin: where a replicated update comes from, and which of two deployments' updates is later (S10).

`lapse replicate` writes these headers on records that it brings to another deployment. Such a record keeps its stated
deadline regardless of the entity's expiration. It is ordered by its instant at the deployment that published it.
Between two deployments the later instant wins, or with equal instants the greater id of the deployment. Of equal
instants at one deployment, the later bookmark wins. So all sides end with the same record, in whatever order and by
whatever ways they get the updates.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from lapse.core.sow.records.record import HEAD_BYTES
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.header import OPERATION, ORIGIN, ORIGIN_BOOKMARK, ORIGIN_TARGET, ORIGIN_TIMESTAMP_MS

LogPosition = tuple[int, str, int]
"""The position of an update where it was published: partition, topic and offset. It orders those of one millisecond."""

LAST_POSITION: Final[LogPosition] = (1 << 62, "", 0)
"""The position of the end of an update, whose own position is unknown."""

_ORIGIN: Final = ORIGIN.encode()
_DIGITS: Final = re.compile(rb"[0-9]{1,18}\Z")


class Origin(NamedTuple):
    """The origin of a replicated update.

    Attributes:
        path: the deployments that it passed through, separated by commas.
        timestamp_ms: its instant where it was published, ms since the epoch.
        spent: whether it reports only that an update has expired there.
        bookmark: its bookmark where it was published; empty = unknown.
        target: the id of this deployment; empty if an older replicator brought it.
    """

    path: bytes
    timestamp_ms: int
    spent: bool = False
    bookmark: bytes = b""
    target: bytes = b""

    @property
    def publisher(self) -> bytes:
        """The id of the deployment that published the update."""
        return publisher_of(self.path)

    @property
    def position(self) -> LogPosition | None:
        """The position of the update where it was published; None = unknown."""
        return LAST_POSITION if self.spent and not self.bookmark else position_of(self.bookmark)


def parse_origin(headers: Sequence[tuple[str, bytes | None]]) -> Origin | None:
    """Return the origin that headers state; None for a record that was published here.

    Raises:
        ValueError: one of the two headers is missing, or the timestamp is not a number.
    """
    path = stamp = operation = bookmark = target = None
    for name, value in headers:
        if name == ORIGIN:
            path = value
        elif name == ORIGIN_TIMESTAMP_MS:
            stamp = value
        elif name == OPERATION:
            operation = value
        elif name == ORIGIN_BOOKMARK:
            bookmark = value
        elif name == ORIGIN_TARGET:
            target = value
    if path is None and stamp is None:
        return None
    if not path or b"\0" in path or stamp is None or not _DIGITS.match(stamp):
        raise ValueError(f"{ORIGIN} = {path!r} and {ORIGIN_TIMESTAMP_MS} = {stamp!r}: expected a path and a number")
    return Origin(path, int(stamp), operation == b"expired", bookmark or b"", target or b"")


def position_of(bookmark: bytes) -> LogPosition | None:
    """Return the position that a header's bookmark names; None if it names none."""
    found = Bookmark.parse_stated(bookmark) if bookmark else None
    return None if found is None else (found.partition, found.topic, found.offset)


def publisher_of(path: bytes) -> bytes:
    """Return the id of the deployment that published an update with this path; empty if it was published here."""
    return path.partition(b",")[0]


def bookmark_of(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the bookmark of a replicated record where it was published; empty without one."""
    return next((value for name, value in headers if name == ORIGIN_BOOKMARK and value), b"")


def path_of(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the origin's path of a stored record; empty if it was published here."""
    for name, value in headers:
        if name == ORIGIN and value:
            return value
    return b""


def is_replicated(entry: bytes, headers_bytes: int) -> bool:
    """Return whether a packed record may have been replicated, by a fast search that excludes most records."""
    return headers_bytes > 0 and entry.find(_ORIGIN, HEAD_BYTES, HEAD_BYTES + headers_bytes) >= 0
