"""Packed deliveries: many messages, payloads included, in one record of a deliveries topic (D4).

Numbers are in columns of a fixed width, little-endian, followed by keys, values and the messages' own headers. A reader
finds any message without reading the others. `docs/protocol.md` describes the layout.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Callable, Collection, Iterable, Sequence
from itertools import accumulate
from typing import Final

from lapse.core.lifetime import NEVER
from lapse.protocol.codec import CodecError

KIND: Final = b"packed"
"""The value of `lapse-kind` on a packed delivery."""

VERSION: Final = 1
"""The version of the format that this module writes and reads."""

HEAD: Final = struct.Struct("<2sBBIIH")
"""Mark, version, flags, number of messages, partition, length of the topic's name in bytes."""

_MARK: Final = b"LD"
_DEADLINES, _KEYS, _HEADERS = 1, 2, 4
_KNOWN_FLAGS: Final = _DEADLINES | _KEYS | _HEADERS
_LENGTH: Final = struct.Struct("<i")
_FIXED_BYTES: Final = 24
"""The size of a message's offset, timestamp, delivery count and length of the value."""

_FIRST_OPTIONAL: Final = 4
"""Index of the first optional column. The ones before it always exist."""

Headers = Sequence[tuple[str, bytes | None]]
Column = Sequence[int]
Buffer = bytes | memoryview
Part = Callable[[int], bytes | None]
"""Returns a part of a message, by index; None for null."""


class UnknownVersion(CodecError):
    """A packed delivery has another version of the format."""


def encode(
    topic: str,
    partition: int,
    offsets: bytes,
    timestamps_ms: bytes,
    delivery_counts: bytes,
    values: Sequence[bytes | None],
    *,
    deadlines_ms: bytes = b"",
    keys: Sequence[bytes | None] = (),
    headers: Sequence[bytes] = (),
    lengths: Sequence[bytes] = (),
) -> bytes:
    """Encode a packed delivery.

    Args:
        topic: the underlying topic.
        partition: the topic's partition.
        offsets: a `column` of int64 with the offset of each message.
        timestamps_ms: a `column` of int64 with the arrival of each message, ms since the epoch.
        delivery_counts: a `column` of uint32 with the delivery count of each message.
        values: values of the messages.
        deadlines_ms: a `column` of int64, `NEVER` for a message without one; empty = none has one.
        keys: keys of the messages; empty = none has one.
        headers: each message's headers, each as `encode_name`, `encode_length` and value; empty = none has any.
        lengths: `column`s of int32 with the lengths of values, keys and headers, −1 for null; empty = computed here.
    """
    value_lengths, key_lengths, header_lengths = lengths or map(_lengths, (values, keys, headers))
    columns = (offsets, timestamps_ms, delivery_counts, value_lengths, deadlines_ms, key_lengths, header_lengths)
    before = head(topic, partition, len(values), columns)
    return b"".join((before, *columns, *filter(None, keys), *filter(None, values), *headers))


def head(topic: str, partition: int, count: int, columns: Sequence[Buffer]) -> bytes:
    """Return the bytes before the columns; behind these follow the bytes of all keys, values and headers.

    Args:
        topic: the underlying topic.
        partition: the topic's partition.
        count: number of messages.
        columns: offsets, timestamps, delivery counts, lengths of values, deadlines, lengths of keys, and of headers;
            the last three are empty if no message has any.
    """
    name = topic.encode()
    there = (bool(len(memoryview(column_of))) for column_of in columns[_FIRST_OPTIONAL:])
    flags = sum(flag for flag, is_there in zip((_DEADLINES, _KEYS, _HEADERS), there, strict=True) if is_there)
    return HEAD.pack(_MARK, VERSION, flags, count, partition, len(name)) + name


def column(kind: str, numbers: Iterable[int]) -> bytes:
    """Return numbers as a column; `kind` is `q` for int64, `I` for uint32, `i` for int32."""
    packed = array(kind, numbers)
    if sys.byteorder == "big":
        packed.byteswap()
    return packed.tobytes()


def encode_name(name: str) -> bytes:
    """Encode the name of a header, preceded by its length."""
    encoded = name.encode("utf-8", "surrogateescape")
    return encode_length(len(encoded)) + encoded


def encode_length(length: int) -> bytes:
    """Encode the length of a header's name or value, −1 for null."""
    return _LENGTH.pack(length)


class PackedDelivery:
    """Messages of one partition that are handed to a subscription. Keys, values and headers are extracted on access.

    Attributes:
        topic: the underlying topic.
        partition: the topic's partition.
        offsets: offset of each message, in the order of delivery.
        delivery_counts: delivery count of each message.
        key: returns the key of a message, by index.
        value: returns the value of a message, by index.
        data: the bytes of the delivery.
        key_bounds: where the keys begin in `data`, and where the last one ends; None if a message has none.
        value_bounds: the same for values.
        timestamps_ms: arrival of each message, ms since the epoch.
        deadlines_ms: deadline of each message, ms since the epoch, `NEVER` without one; empty = none has one.
    """

    __slots__ = (
        "_headers",
        "data",
        "deadlines_ms",
        "delivery_counts",
        "key",
        "key_bounds",
        "offsets",
        "partition",
        "timestamps_ms",
        "topic",
        "value",
        "value_bounds",
    )

    def __init__(self, data: bytes) -> None:
        """Read the columns.

        Raises:
            UnknownVersion: it has another version of the format.
            CodecError: the bytes are not a packed delivery, or are damaged.
        """
        flags, count, self.partition, at = _read_head(data)
        view = memoryview(data)
        self.topic, at = _read_topic(data, at)
        width = _FIXED_BYTES + 8 * bool(flags & _DEADLINES) + 4 * bool(flags & _KEYS) + 4 * bool(flags & _HEADERS)
        if at + count * width > len(data):
            raise CodecError(f"packed delivery: {len(data)} bytes end within the columns of {count} messages")

        def numbers(kind: str, each: int, there: bool = True) -> memoryview | array[int]:
            nonlocal at
            first, at = at, at + count * each * there
            return _numbers(view[first:at], kind)

        self.offsets: Column = numbers("q", 8)
        self.timestamps_ms: Column = numbers("q", 8)
        self.delivery_counts = numbers("I", 4)
        value_lengths = numbers("i", 4).tolist()
        self.deadlines_ms: Column = numbers("q", 8, bool(flags & _DEADLINES))
        key_lengths = numbers("i", 4, bool(flags & _KEYS)).tolist()
        self.data = data
        headers = numbers("i", 4, bool(flags & _HEADERS)).tolist()
        null_keys, keys = _bounds(key_lengths, at, "key")
        null_values, values = _bounds(value_lengths, keys[-1], "value")
        self.key: Part = _part_of(data, keys, null_keys if key_lengths else range(count))
        self.value: Part = _part_of(data, values, null_values)
        self.key_bounds = keys if key_lengths and not null_keys else None
        self.value_bounds = None if null_values else values
        self._headers = _bounds(headers, values[-1], "headers")[1] if headers else values[-1:]
        if self._headers[-1] != len(data):
            raise CodecError(f"packed delivery: {len(data)} bytes, and its columns speak of {self._headers[-1]}")

    def __len__(self) -> int:
        return len(self.offsets)

    @property
    def counts_are_alike(self) -> bool:
        """Whether all messages have the same delivery count."""
        counts = self.delivery_counts
        return counts.tobytes() == counts[:1].tobytes() * len(counts)

    def deadline_ms(self, at: int) -> int | None:
        """Return the deadline of a message, by index, ms since the epoch; None without one."""
        if not self.deadlines_ms or self.deadlines_ms[at] == NEVER:
            return None
        return self.deadlines_ms[at]

    def headers(self, at: int) -> list[tuple[str, bytes | None]]:
        """Return the own headers of a message, by index, in order.

        Raises:
            CodecError: the headers are damaged.
        """
        if len(self._headers) == 1:
            return []
        data, at, stop = self.data, self._headers[at], self._headers[at + 1]
        found: list[tuple[str, bytes | None]] = []
        while at < stop:
            name, at = _part(data, at, stop)
            value, at = _part(data, at, stop)
            found.append(((name or b"").decode("utf-8", "replace"), value))
        return found


def decode(data: bytes) -> PackedDelivery:
    """Decode a packed delivery.

    Raises:
        UnknownVersion: it has another version of the format.
        CodecError: the bytes are not a packed delivery, or are damaged.
    """
    return PackedDelivery(data)


def _read_head(data: bytes) -> tuple[int, int, int, int]:
    """Return flags, number of messages, partition, and length of the topic's name."""
    if len(data) < HEAD.size:
        raise CodecError(f"packed delivery: {len(data)} bytes, too few for its head")
    mark, version, flags, count, partition, length = HEAD.unpack_from(data)
    if mark != _MARK:
        raise CodecError(f"no packed delivery: it begins with {mark.hex()}, expected {_MARK.hex()}")
    if version != VERSION:
        raise UnknownVersion(
            f"a packed delivery of version {version}, and this client reads version {VERSION}: "
            "bring client and worker to one version, or subscribe with payload inline"
        )
    if flags & ~_KNOWN_FLAGS:
        raise CodecError(f"packed delivery: unknown flags {flags & ~_KNOWN_FLAGS:#04x}")
    return flags, count, partition, length


def _read_topic(data: bytes, length: int) -> tuple[str, int]:
    """Return the topic's name, and the index of its end."""
    end = HEAD.size + length
    try:
        return data[HEAD.size : end].decode(), end
    except UnicodeDecodeError as error:
        raise CodecError(f"packed delivery: the topic's name is no text: {error}") from error


def _lengths(some: Sequence[bytes | None]) -> bytes:
    """Return lengths as a column, −1 for null."""
    try:
        return column("i", map(len, some))  # type: ignore[arg-type]
    except TypeError:
        return column("i", (-1 if one is None else len(one) for one in some))


def _numbers(view: memoryview, kind: str) -> memoryview | array[int]:
    if sys.byteorder == "little":
        return view.cast(kind)  # type: ignore[call-overload,no-any-return]
    swapped = array(kind, view.tobytes())
    swapped.byteswap()
    return swapped


def _bounds(lengths: Sequence[int], first: int, what: str) -> tuple[Collection[int], list[int]]:
    """Return the indexes of null parts, the index of each part's start, and that of the last one's end."""
    null: Collection[int] = ()
    if lengths and min(lengths) < 0:
        if min(lengths) < -1:
            raise CodecError(f"packed delivery: a {what} of {min(lengths)} bytes")
        null = frozenset(at for at, length in enumerate(lengths) if length < 0)
        lengths = [max(0, length) for length in lengths]
    return null, list(accumulate(lengths, initial=first))


def _part_of(data: bytes, bounds: Sequence[int], null: Collection[int]) -> Part:
    """Return what extracts one of the parts between bounds. It runs for each message, so it has no attributes to find.

    Args:
        data: the packed delivery.
        bounds: where the parts begin, and where the last one ends.
        null: indexes of the parts that are null.
    """

    def part(at: int) -> bytes:
        return data[bounds[at] : bounds[at + 1]]

    def part_or_null(at: int) -> bytes | None:
        return None if at in null else data[bounds[at] : bounds[at + 1]]

    return part_or_null if null else part


def _part(data: bytes, at: int, stop: int) -> tuple[bytes | None, int]:
    """Return the bytes after a length, None for null, and the index of their end."""
    begin = at + _LENGTH.size
    length = _LENGTH.unpack_from(data, at)[0] if begin <= stop else -2
    end = begin + max(0, length)
    if length < -1 or end > stop:
        raise CodecError("packed delivery: headers that do not end where their message does")
    return (None if length < 0 else data[begin:end]), end
