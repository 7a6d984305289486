"""Where a replicated update comes from, and which of two deployments' updates is the later one (S10).

`lapse replicate` writes these headers on what it brings to another deployment. A record that has them keeps the
deadline that it states, whatever the entity's expiration says, and is ordered by the instant at which it counted where
it was published. Between two deployments the later instant wins, and of equal ones the greater payload: both sides come
to the same end, whichever update reaches them first.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Final, NamedTuple

from lapse.core.sow.record import HEAD_BYTES

ORIGIN: Final = "lapse-origin"
"""The deployments that an update has passed through, the first one first; so that it never comes back to one."""

ORIGIN_TIMESTAMP_MS: Final = "lapse-origin-timestamp-ms"
"""As of when it counts there, ms since the epoch, decimal text."""

OPERATION: Final = "lapse-operation"
"""On a null value: `deleted`, or `expired` = an update that this deployment may not have seen has come and gone."""

_ORIGIN: Final = ORIGIN.encode()
_DIGITS: Final = re.compile(rb"[0-9]{1,18}\Z")


class Origin(NamedTuple):
    """Where an update comes from.

    Attributes:
        path: deployments, separated by commas.
        timestamp_ms: as of when it counts, ms since the epoch.
        spent: whether it tells only that an update has expired there.
    """

    path: bytes
    timestamp_ms: int
    spent: bool = False


def read(headers: Sequence[tuple[str, bytes | None]]) -> Origin | None:
    """Return the origin that headers state; None of a record that was published here.

    Raises:
        ValueError: one of the two headers without the other, or a stamp that is no number.
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
    """Return the path of a stored record; empty if it was published here."""
    for name, value in headers:
        if name == ORIGIN and value:
            return value
    return b""


def is_replicated(entry: bytes, headers_bytes: int) -> bool:
    """Whether a packed record may have been replicated; false of most without a look at its headers one by one."""
    return headers_bytes > 0 and entry.find(_ORIGIN, HEAD_BYTES, HEAD_BYTES + headers_bytes) >= 0
