"""Origin: where a replicated update comes from, and which of two deployments' updates is later (S10).

`lapse replicate` writes these headers on records that it brings to another deployment. Such a record keeps its stated
deadline regardless of the entity's expiration. It is ordered by its instant at the deployment that published it.
Between two deployments the later instant wins, or with equal instants the greater payload. So both sides end with the
same record, whichever update they get first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from lapse.core.sow.record import HEAD_BYTES

ORIGIN: Final = "lapse-origin"
"""The deployments that an update has passed through, in order, so that it never returns to one."""

ORIGIN_TIMESTAMP_MS: Final = "lapse-origin-timestamp-ms"
"""The instant of the update where it was published, ms since the epoch, as decimal text."""

OPERATION: Final = "lapse-operation"
"""On a null value: `deleted`, or `expired` for the end of an update that this deployment may not have seen."""

_ORIGIN: Final = ORIGIN.encode()
_DIGITS: Final = re.compile(rb"[0-9]{1,18}\Z")


class Origin(NamedTuple):
    """The origin of a replicated update.

    Attributes:
        path: the deployments that it passed through, separated by commas.
        timestamp_ms: its instant where it was published, ms since the epoch.
        spent: whether it reports only that an update has expired there.
    """

    path: bytes
    timestamp_ms: int
    spent: bool = False


def parse_origin(headers: Sequence[tuple[str, bytes | None]]) -> Origin | None:
    """Return the origin that headers state; None for a record that was published here.

    Raises:
        ValueError: one of the two headers is missing, or the timestamp is not a number.
    """
    path = stamp = operation = None
    for name, value in headers:
        if name == ORIGIN:
            path = value
        elif name == ORIGIN_TIMESTAMP_MS:
            stamp = value
        elif name == OPERATION:
            operation = value
    if path is None and stamp is None:
        return None
    if not path or stamp is None or not _DIGITS.match(stamp):
        raise ValueError(f"{ORIGIN} = {path!r} and {ORIGIN_TIMESTAMP_MS} = {stamp!r}: expected a path and a number")
    return Origin(path, int(stamp), operation == b"expired")


def path_of(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the origin's path of a stored record; empty if it was published here."""
    for name, value in headers:
        if name == ORIGIN and value:
            return value
    return b""


def is_replicated(entry: bytes, headers_bytes: int) -> bool:
    """Return whether a packed record may have been replicated, by a fast search that excludes most records."""
    return headers_bytes > 0 and entry.find(_ORIGIN, HEAD_BYTES, HEAD_BYTES + headers_bytes) >= 0
