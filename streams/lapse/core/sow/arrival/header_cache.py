"""Header cache: the meaning of plain updates' headers, read once for all records with the same headers.

Most records of a topic have one of a few sets of headers, whose meaning hardly depends on the record. The fast path for
plain updates looks it up here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lapse.core import letter, lifetime
from lapse.core.lifetime import NEVER, Expiration, ExpirationModel
from lapse.core.sow.records.record import pack_headers

HeaderFacts = tuple[bytes, int, int]
"""Packed headers; deadline, ms since the epoch, or `NEVER`; lifetime from arrival, ms, -1 without one.

The earlier of the two deadlines counts.
"""

_RESERVED: Final = "lapse-"
_LIFETIMES: Final = lifetime.NAMES - {lifetime.ENQUEUE_AT_MS}
_KEPT: Final = 4_096
_KEPT_BYTES: Final = 512
"""Larger sets of headers are not cached, since they are rarely repeated, bytes."""


class HeaderCache:
    """Caches the meaning of headers.

    Args:
        expiration: the entity's rule for lifetimes.

    Attributes:
        none: the meaning of no headers.
    """

    __slots__ = ("_expiration", "_known", "none")

    def __init__(self, expiration: Expiration) -> None:
        self._expiration = expiration
        self._known: dict[tuple[tuple[str, bytes | None], ...], HeaderFacts] = {}
        self.none: HeaderFacts = (b"", NEVER, -1 if expiration.default_ms is None else expiration.default_ms)

    def meaning_of(self, headers: Sequence[tuple[str, bytes | None]]) -> HeaderFacts | None:
        """Return the meaning of headers; None if they state more than a lifetime, or depend on the record."""
        known = tuple(headers)
        try:
            return self._known[known]
        except KeyError:
            header_facts = self._read(headers)
        if header_facts is not None and len(header_facts[0]) <= _KEPT_BYTES:
            if len(self._known) >= _KEPT:
                self._known.clear()
            self._known[known] = header_facts
        return header_facts

    def _read(self, headers: Sequence[tuple[str, bytes | None]]) -> HeaderFacts | None:
        lifetimes = 0
        for name, _ in headers:
            if name in _LIFETIMES:
                lifetimes += 1
            elif name.startswith(_RESERVED) or name in letter.MARKERS:
                return None
        if lifetimes > 1:  # whether they agree depends on the record's timestamp
            return None
        try:
            stated = lifetime.read(headers, 0)
        except lifetime.InvalidLifetime:
            return None
        expiration = self._expiration
        ceiling_ms = expiration.default_ms if expiration.model is ExpirationModel.CEILING else None
        absolute_ms, relative_ms = NEVER, expiration.default_ms
        if stated.absolute_ms is not None:
            absolute_ms, relative_ms = stated.absolute_ms, ceiling_ms
        elif stated.relative_ms is not None:
            relative_ms = stated.relative_ms or None
            if ceiling_ms is not None:
                relative_ms = ceiling_ms if relative_ms is None else min(relative_ms, ceiling_ms)
        return pack_headers(headers), absolute_ms, -1 if relative_ms is None else relative_ms
