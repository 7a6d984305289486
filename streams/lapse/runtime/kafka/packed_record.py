"""A record in the format of a RecordBatch, without its position there.

So what many records of a step have in common is encoded only once. This module also decodes such records.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, NamedTuple

NULL: Final = b"\x01"
"""The length −1, which stands for a key or value that is null."""

_TABLED: Final = 1 << 15

Buffer = bytes | memoryview


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


class _Varints(dict[int, bytes]):
    """Caches Kafka's variable-length integers, computed at first use; large ones are not kept."""

    def __missing__(self, number: int) -> bytes:
        encoded = _varint(number)
        if 0 <= number < _TABLED:
            self[number] = encoded
        return encoded


VARINT: Final = _Varints()
"""A number as Kafka writes lengths and counts: `VARINT[5]`."""


def packed_name(name: str) -> bytes:
    """Return a header's name, with its length."""
    encoded = name.encode("utf-8", "surrogateescape")
    return VARINT[len(encoded)] + encoded


def packed_header(name: str, value: bytes | None) -> bytes:
    """Return a header: its name and its value, each with its length."""
    return packed_name(name) + (NULL if value is None else VARINT[len(value)] + value)


def packed_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Return several headers, one behind the other, without their count."""
    return b"".join([packed_header(name, value) for name, value in headers])


def packed(
    key: bytes | None, value: bytes | None, count: int, headers: bytes, varint: dict[int, bytes] = VARINT
) -> bytes:
    """Return a record from its key on.

    Args:
        key: the key, or None.
        value: the value, or None.
        count: the number of headers.
        headers: the headers, packed.
        varint: always the default, for faster access.
    """
    return b"".join(
        (
            NULL if key is None else varint[len(key)] + key,
            NULL if value is None else varint[len(value)] + value,
            varint[count],
            headers,
        )
    )


class PiecedRecord:
    """A large record from its key on, in pieces. They are copied only once, when its batch is complete.

    Args:
        pieces: the value, without a key.
        count: the number of headers.
        headers: the headers, packed.
    """

    __slots__ = ("_size", "pieces")

    def __init__(self, pieces: Sequence[Buffer], count: int, headers: bytes) -> None:
        size = sum(map(len, pieces))
        self.pieces: Sequence[Buffer] = (NULL + VARINT[size], *pieces, VARINT[count] + headers)
        self._size = size + len(self.pieces[0]) + len(self.pieces[-1])

    def __len__(self) -> int:
        return self._size

    def __bytes__(self) -> bytes:
        return b"".join(self.pieces)


class Unpacked(NamedTuple):
    """A decoded record, and where it ends."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    end: int


def unpacked(data: bytes, at: int = 0, names: str = "surrogateescape") -> Unpacked:
    """Decode a record from its key on.

    Args:
        data: bytes with the record.
        at: where the length of its key is.
        names: how to handle bytes in header names that are not UTF-8, as for `bytes.decode`.
    """
    key, at = _part(data, at)
    value, at = _part(data, at)
    return Unpacked(key, value, *headers_at(data, at, names))


def headers_at(data: bytes, at: int, names: str) -> tuple[list[tuple[str, bytes | None]], int]:
    """Decode headers from their count on; return them, and where they end. See `unpacked`."""
    count, at = varint_at(data, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _part(data, at)
        content, at = _part(data, at)
        headers.append(((name or b"").decode("utf-8", names), content))
    return headers, at


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """Decode one of Kafka's variable-length integers; return it, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    """Decode bytes behind their length; return them, and where they end."""
    length, at = varint_at(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)
