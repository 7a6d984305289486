"""The meaning of a plain update's headers, read once for all records with the same headers.

Most records of a topic bear one of a few sets of headers, and most of what a header says does not depend on the record
that bears it. So the way in of plain updates, which is the one that has to be quick, looks headers up here.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from lapse.core import letter, lifetime
from lapse.core.lifetime import NEVER, Expiration, ExpirationModel
from lapse.core.sow.record import pack_headers

HeaderFacts = tuple[bytes, int, int]
"""The header block; the deadline, ms since the epoch, or `NEVER`; the lifetime from arrival on, ms, or -1 = none.

Of the last two the earlier one counts.
"""

_RESERVED: Final = "lapse-"
_LIFETIMES: Final = lifetime.NAMES - {lifetime.ENQUEUE_AT_MS}
_KEPT: Final = 4_096
_KEPT_BYTES: Final = 512
"""Larger sets of headers are hardly repeated."""


class HeaderCache:
    """The headers that were seen, and what they say.

    Args:
        expiration: what the entity does about lifetimes.

    Attributes:
        none: of a record without headers.
    """

    __slots__ = ("_expiration", "_known", "none")

    def __init__(self, expiration: Expiration) -> None:
        self._expiration = expiration
        self._known: dict[tuple[tuple[str, bytes | None], ...], HeaderFacts] = {}
        self.none: HeaderFacts = (b"", NEVER, -1 if expiration.default_ms is None else expiration.default_ms)

    def of(self, headers: Sequence[tuple[str, bytes | None]]) -> HeaderFacts | None:
        """Return what headers say; None if it is more than a lifetime, or depends on more than the headers."""
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
        if lifetimes > 1:  # whether they mean the same depends on the record's timestamp
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
