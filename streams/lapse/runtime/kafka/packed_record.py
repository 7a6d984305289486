"""A record in the format of a RecordBatch, without its position there.

What many records of a step have in common is so written once, and not for each of them again. What is written so can
be read here as well.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, NamedTuple

NULL: Final = b"\x01"
"""Stands for a key or a value that is null: the length −1."""

_TABLED: Final = 1 << 15


def _varint(number: int) -> bytes:
    zigzag = (number << 1) ^ (number >> 63)
    encoded = bytearray()
    while zigzag > 0x7F:
        encoded.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    encoded.append(zigzag)
    return bytes(encoded)


class _Varints(dict[int, bytes]):
    """Kafka's variable-length integers, each worked out when it is first asked for; large ones are not kept."""

    def __missing__(self, number: int) -> bytes:
        encoded = _varint(number)
        if 0 <= number < _TABLED:
            self[number] = encoded
        return encoded


VARINT: Final = _Varints()
"""A number as Kafka writes lengths and counts: `VARINT[5]`."""


def packed_name(name: str) -> bytes:
    """A header's name, with its length."""
    encoded = name.encode("utf-8", "surrogateescape")
    return VARINT[len(encoded)] + encoded


def packed_header(name: str, value: bytes | None) -> bytes:
    """A header: its name and its value, each with its length."""
    return packed_name(name) + (NULL if value is None else VARINT[len(value)] + value)


def packed_headers(headers: Iterable[tuple[str, bytes | None]]) -> bytes:
    """Several headers, one behind the other, without their count."""
    return b"".join([packed_header(name, value) for name, value in headers])


def packed(
    key: bytes | None, value: bytes | None, count: int, headers: bytes, varint: dict[int, bytes] = VARINT
) -> bytes:
    """A record from its key on.

    Args:
        key: or None.
        value: or None.
        count: how many headers there are.
        headers: those, packed.
        varint: leave it as it is.
    """
    return b"".join(
        (
            NULL if key is None else varint[len(key)] + key,
            NULL if value is None else varint[len(value)] + value,
            varint[count],
            headers,
        )
    )


class Unpacked(NamedTuple):
    """A record that was read, and where it ends."""

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]]
    end: int


def unpacked(data: bytes, at: int = 0, names: str = "surrogateescape") -> Unpacked:
    """Read a record from its key on.

    Args:
        data: bytes that hold it.
        at: where its key's length stands.
        names: what becomes of bytes in headers' names that are no UTF-8, as `bytes.decode` calls it.
    """
    key, at = _part(data, at)
    value, at = _part(data, at)
    return Unpacked(key, value, *headers_at(data, at, names))


def headers_at(data: bytes, at: int, names: str) -> tuple[list[tuple[str, bytes | None]], int]:
    """Headers behind their count, and where they end; see `unpacked`."""
    count, at = varint_at(data, at)
    headers: list[tuple[str, bytes | None]] = []
    for _ in range(count):
        name, at = _part(data, at)
        content, at = _part(data, at)
        headers.append(((name or b"").decode("utf-8", names), content))
    return headers, at


def varint_at(data: bytes, at: int) -> tuple[int, int]:
    """One of Kafka's variable-length integers, and where it ends."""
    number = shift = 0
    while True:
        byte = data[at]
        at += 1
        number |= (byte & 0x7F) << shift
        if byte < 0x80:
            return (number >> 1) ^ -(number & 1), at
        shift += 7


def _part(data: bytes, at: int) -> tuple[bytes | None, int]:
    """What stands behind its length, and where it ends."""
    length, at = varint_at(data, at)
    return (None, at) if length < 0 else (data[at : at + length], at + length)
