"""Translates a record of the upstream's compacted topic for the downstream's underlying topic (S10)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from lapse.core.lifetime import EXPIRES_AT_MS, TTL_MS
from lapse.protocol.header import (
    BOOKMARK,
    OPERATION,
    ORIGIN,
    ORIGIN_BOOKMARK,
    ORIGIN_TARGET,
    ORIGIN_TIMESTAMP_MS,
    TIMESTAMP_MS,
    UNWRITTEN,
)

Headers = Sequence[tuple[str, bytes | None]]

_OWN_PREFIX: Final = "lapse-"
_BEHIND_MS: Final = 10_000
"""If an expiry is read this much later, ms, compaction may have removed the update before it. This is well below the
`min.compaction.lag.ms` that `lapse apply` sets on the compacted topic."""


class Upstream(NamedTuple):
    """A record of the upstream's compacted topic.

    Attributes:
        key: the record's key.
        payload: its latest payload; None for a tombstone.
        headers: its headers.
        written_at_ms: when the upstream wrote it, ms since the epoch.
    """

    key: bytes
    payload: bytes | None
    headers: Headers
    written_at_ms: int


class Downstream(NamedTuple):
    """A record for the downstream's underlying topic."""

    key: bytes
    value: bytes | None
    headers: list[tuple[str, bytes | None]]


@dataclass(frozen=True, slots=True)
class Translation:
    """Translates one deployment's state for another.

    Attributes:
        source: id of the deployment that is read.
        target: id of the deployment that is written.
    """

    source: str
    target: str

    def translate(self, record: Upstream, now_ms: int) -> Downstream | None:
        """Return the record for the downstream; None if it gets none.

        A record that has been at the downstream before is left out, so that records do not circulate. An expiry is left
        out as well, because the downstream notices it itself. But the upstream's topic may no longer have the expired
        update, or never had it. Then the downstream gets a tombstone, so that an older record there does not outlive
        the update.

        Args:
            record: the upstream's record.
            now_ms: now, ms since the epoch.
        """
        facts = dict(record.headers)
        path = (facts.get(ORIGIN) or b"").decode("utf-8", "replace")
        visited = path.split(",") if path else []
        stamp = facts.get(TIMESTAMP_MS)
        if self.target in visited or stamp is None:
            return None
        origin: list[tuple[str, bytes | None]] = [
            (ORIGIN, ",".join([*visited, self.source]).encode()),
            (ORIGIN_TIMESTAMP_MS, stamp),
            (ORIGIN_TARGET, self.target.encode()),
        ]
        if (bookmark := facts.get(ORIGIN_BOOKMARK if visited else BOOKMARK)) is not None:
            origin.append((ORIGIN_BOOKMARK, bookmark))
        if record.payload is None:
            operation = facts.get(OPERATION) or b"deleted"
            is_late = now_ms - record.written_at_ms >= _BEHIND_MS
            if operation == b"expired" and not is_late and UNWRITTEN not in facts:
                return None
            return Downstream(record.key, None, [*origin, (OPERATION, operation)])
        deadline = facts.get(EXPIRES_AT_MS)
        headers = [(name, value) for name, value in record.headers if not name.startswith(_OWN_PREFIX)]
        headers.append((TTL_MS, b"0") if deadline is None else (EXPIRES_AT_MS, deadline))
        return Downstream(record.key, record.payload, [*headers, *origin])  # a letter here is none there (C54)
