"""Decompresses fetched RecordBatches, up to a limit: a few kilobytes can hold gigabytes (X7, C60)."""

from __future__ import annotations

import struct
import zlib
from collections.abc import Callable
from typing import Any, Final

import cramjam
import numpy as np

HEAD: Final = struct.Struct(">q8xB4xhiqqqhii")
"""The head of a RecordBatch: base offset, magic, attributes, last offset delta, first and latest timestamp (ms),
producer id and epoch, sequence, count."""

MAGIC: Final = 2
CODEC: Final = 0x07
"""The bits of the attributes with the codec."""

_LENGTH: Final = struct.Struct(">i")
_LENGTH_AT, _LENGTH_ENDS = 8, 12
MAGIC_AT: Final = 16
_LAST_OF_ATTRIBUTES: Final = 22

_GZIP_BYTES: Final = 1 << 20
_LEAST_GZIP_BYTES: Final = 1 << 10
"""How many bytes zlib gets at a time. Short members get fewer, because zlib copies all bytes behind a member."""

_LEAST_BYTES: Final = 16 << 20
"""The size that any batch may have. It is more than lapse's own topics take in a record."""

_GROWTH: Final = 16
"""A batch may have so many more bytes for each byte that its producer has sent."""

_USUAL_BYTES: Final = 4 << 10
_USUAL_GROWTH: Final = 8
"""The uncompressed size of most batches. Memory of that size is allocated first."""

_XERIAL: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES: Final = 16


class TooManyBytesError(ValueError):
    """A batch has more bytes than are decompressed, or cannot be decompressed. The text says which."""


def most_bytes(compressed_bytes: int) -> int:
    """Return how many bytes at most a batch may have uncompressed, by its compressed size."""
    return _LEAST_BYTES + _GROWTH * compressed_bytes


def codec_of(data: bytes, at: int) -> int:
    """Return the number of a RecordBatch's codec; 0 if it is not compressed, or its format or codec is unknown."""
    if data[at + MAGIC_AT] != MAGIC:
        return 0
    codec = data[at + _LAST_OF_ATTRIBUTES] & CODEC
    return codec if codec in _DECOMPRESS else 0


def any_compressed(data: bytes) -> bool:
    """Return whether a RecordBatch of a fetch is compressed."""
    at = 0
    while at + HEAD.size <= len(data):
        if codec_of(data, at):
            return True
        at += max(_LENGTH_ENDS, _LENGTH_ENDS + _LENGTH.unpack_from(data, at + _LENGTH_AT)[0])
    return False


def plain(data: bytes, at: int, stop: int) -> tuple[bytes, int, int]:
    """Return a RecordBatch as it would be without compression: bytes, and where it begins and ends in them.

    Its checksum is left as it was.

    Args:
        data: the bytes of a fetch.
        at: where the batch begins.
        stop: where it ends.

    Raises:
        TooManyBytesError: it is too large, or damaged.
    """
    if not codec_of(data, at):
        return data, at, stop
    body = memoryview(data)[at + HEAD.size : stop]
    most = most_bytes(len(body))
    try:
        parts = _DECOMPRESS[codec_of(data, at)](body, most)
    except (cramjam.DecompressionError, zlib.error, struct.error, EOFError) as error:
        why = f"its RecordBatch of {len(body):,} bytes has more than {most:,} uncompressed, or is damaged: {error}"
        raise TooManyBytesError(why) from error
    head = bytearray(data[at : at + HEAD.size])
    size = sum(map(len, parts))
    _LENGTH.pack_into(head, _LENGTH_AT, HEAD.size - _LENGTH_ENDS + size)
    head[_LAST_OF_ATTRIBUTES] &= ~CODEC
    whole = b"".join((head, *parts))
    return whole, 0, len(whole)


_Parts = list[Any]
"""Pieces of bytes, one behind the other."""


def _gzip(body: memoryview, most: int) -> _Parts:
    """Decompress members, one behind the other, perhaps with zeros behind them."""
    parts, at, size = list[bytes](), 0, _GZIP_BYTES
    member: Any = None
    while at < len(body):
        some = bytes(body[at : at + size])
        if member is None:
            if parts and some.startswith(b"\0"):
                at += len(some) - len(some.lstrip(b"\0"))
                continue
            member = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
        parts.append(member.decompress(some, most + 1))
        most -= len(parts[-1])
        if most < 0:
            raise EOFError("too many bytes")
        at += len(some) - len(member.unused_data)
        if member.eof:
            member, size = None, max(size // 2, _LEAST_GZIP_BYTES)
        else:
            size = min(2 * size, _GZIP_BYTES)
    if member is not None:
        raise EOFError("its end is missing")
    return parts


def _snappy(body: memoryview, most: int) -> _Parts:
    if bytes(body[: len(_XERIAL)]) != _XERIAL:
        blocks = [body]
    else:
        blocks, at = [], _XERIAL_HEAD_BYTES
        while at < len(body):
            (length,) = _LENGTH.unpack_from(body, at)
            if not 0 < length <= len(body) - at - _LENGTH.size:
                raise EOFError("a block without its end")
            blocks.append(body[at + _LENGTH.size : at + _LENGTH.size + length])
            at += _LENGTH.size + length
    parts = []
    for block in blocks:
        most -= cramjam.snappy.decompress_raw_len(block)
        if most < 0:
            raise EOFError("too many bytes")
        parts.append(memoryview(cramjam.snappy.decompress_raw(block)))
    return parts


def _into(decompress: Callable[[Any, Any], int]) -> Callable[[memoryview, int], _Parts]:
    def parts(body: memoryview, most: int) -> _Parts:
        out = np.empty(min(most, _USUAL_BYTES + _USUAL_GROWTH * len(body)), np.uint8)
        try:
            return [out[: decompress(body, out)].data]
        except cramjam.DecompressionError:
            out = np.empty(most, np.uint8)  # only pages that are written take memory
            return [out[: decompress(body, out)].data]

    return parts


_DECOMPRESS: Final[dict[int, Callable[[memoryview, int], _Parts]]] = {
    1: _gzip,
    2: _snappy,
    3: _into(cramjam.lz4.decompress_into),
    4: _into(cramjam.zstd.decompress_into),
}
"""The decompressing function of each codec."""
