"""Packed records of a SOW topic, whose bytes in memory are those in the journal.

Layout, big-endian: deadline (ms), timestamp (ms), sequence, offset (all int64), source (uint32), length of the header
block (uint32), header block, payload. 40 bytes before headers and payload.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from lapse.core.lifetime import NEVER

Headers = Sequence[tuple[str, bytes | None]]

HEAD: Final = struct.Struct(">qqqqII")
HEAD_BYTES: Final = HEAD.size

_LENGTHS: Final = struct.Struct(">Ii")
DEADLINE: Final = struct.Struct(">q")
"""The deadline: the first 8 bytes of the head."""


PUBLISHED_MS: Final = "lapse-published-ms"
"""On a stored record whose timestamp is later: when it was published here or arrived here, ms, as decimal text."""

OWN_KEY: Final = "lapse-own-key"
"""On a stored record whose key is in its payload: the Kafka record's own key, if it has one. Its letter has it (D2)."""

_NOTES: Final = frozenset({PUBLISHED_MS, OWN_KEY})
"""The names of a shard's own notes among the headers of a stored record."""

_PUBLISHED: Final = PUBLISHED_MS.encode()


class Facts(NamedTuple):
    """The facts of a record besides key, headers and payload.

    Attributes:
        deadline_ms: its deadline, ms since the epoch; `lifetime.NEVER` without one.
        timestamp_ms: its arrival or scheduled instant, ms since the epoch. If a record that it replaced had a later
            timestamp, it is raised to that.
        sequence: number of the update in its shard, which says whether a subscription has seen it.
        offset: offset of its last update in the source.
        source: number of the last update's underlying partition.
        headers_bytes: length of the packed headers.
    """

    deadline_ms: int
    timestamp_ms: int
    sequence: int
    offset: int
    source: int
    headers_bytes: int


def pack(facts: Facts, headers: bytes, payload: bytes) -> bytes:
    """Return the bytes of a record; `headers` is the result of `pack_headers`."""
    return HEAD.pack(*facts) + headers + payload


def facts_of(entry: bytes) -> Facts:
    """Return a packed record's facts."""
    return Facts._make(HEAD.unpack_from(entry))


def published_ms(entry: bytes, facts: Facts) -> int:
    """Return when a packed record was published here or arrived here, ms since the epoch: see `PUBLISHED_MS`."""
    if facts.headers_bytes and entry.find(_PUBLISHED, HEAD_BYTES, HEAD_BYTES + facts.headers_bytes) >= 0:
        stated = [value for name, value in headers_of(entry) if name == PUBLISHED_MS and value and value.isdigit()]
        if stated:
            return min(int(stated[-1]), facts.timestamp_ms)
    return facts.timestamp_ms


def next_instant(timestamp_ms: int) -> int:
    """Return the next millisecond, at most `NEVER`, since a producer may state the last instant of 64 bits."""
    return min(timestamp_ms + 1, NEVER)


def deadline_of(entry: bytes) -> int:
    """Return a packed record's deadline, ms since the epoch."""
    deadline_ms: int = DEADLINE.unpack_from(entry)[0]
    return deadline_ms


def payload_of(entry: bytes) -> bytes:
    """Return a packed record's payload."""
    return entry[HEAD_BYTES + HEAD.unpack_from(entry)[5] :]


def headers_of(entry: bytes) -> list[tuple[str, bytes | None]]:
    """Return a packed record's headers, in order."""
    size = HEAD.unpack_from(entry)[5]
    return unpack_headers(entry[HEAD_BYTES : HEAD_BYTES + size]) if size else []


def publishers_headers(headers: Headers) -> tuple[tuple[str, bytes | None], ...]:
    """Return a stored record's headers as its publisher wrote them."""
    return tuple(header for header in headers if header[0] not in _NOTES)


def own_key_of(headers: Headers) -> bytes | None:
    """Return the own key of the Kafka record whose payload gives the key; None without one."""
    return next((value for name, value in headers if name == OWN_KEY), None)


def pack_headers(headers: Headers) -> bytes:
    """Return the bytes of headers: for each, the lengths of name and value (-1 = null), then name and value."""
    block = bytearray()
    for name, value in headers:
        encoded = name.encode("utf-8", "surrogateescape")
        block += _LENGTHS.pack(len(encoded), -1 if value is None else len(value))
        block += encoded
        if value is not None:
            block += value
    return bytes(block)


def unpack_headers(block: bytes) -> list[tuple[str, bytes | None]]:
    """Read headers that `pack_headers` wrote."""
    headers: list[tuple[str, bytes | None]] = []
    at = 0
    while at < len(block):
        name_bytes, value_bytes = _LENGTHS.unpack_from(block, at)
        at += _LENGTHS.size
        name = block[at : at + name_bytes].decode("utf-8", "surrogateescape")
        at += name_bytes
        if value_bytes < 0:
            headers.append((name, None))
        else:
            headers.append((name, block[at : at + value_bytes]))
            at += value_bytes
    return headers
