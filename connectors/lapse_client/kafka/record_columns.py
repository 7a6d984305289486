"""Records of one partition as columns, and librdkafka's messages that they were read from."""

from __future__ import annotations

import ctypes
from collections.abc import Collection, Sequence
from contextlib import AbstractContextManager
from ctypes import byref, c_char_p, c_int64, c_size_t, c_void_p
from typing import Any, Final, NamedTuple

from lapse_client.kafka.headers import Headers
from lapse_client.kafka.rdkafka import RdKafka

_KEPT_BYTES: Final = 4 << 20
"""The greatest buffer that is kept for the next records."""


class HeldMessages:
    """Messages of librdkafka that are still needed, because nobody knows yet whether their headers are asked for.

    To read the headers of each record would cost as much as to read all the rest.

    Args:
        rdkafka: librdkafka's functions.
        messages: addresses of the messages.
        count: how many there are.
        held: all that a consumer holds; it adds itself, and removes itself when the messages are given back.
        lock: held while messages are read or given back.
    """

    def __init__(
        self, rdkafka: RdKafka, messages: Any, count: int, held: set[HeldMessages], lock: AbstractContextManager[Any]
    ) -> None:
        self._rdkafka = rdkafka
        self._messages = messages
        self._count = count
        self._held = held
        self._lock = lock
        self._headers: list[Headers] | None = None
        self._is_free = False
        with lock:
            held.add(self)

    def headers(self, at: int) -> Headers:
        """Return all headers of a message."""
        with self._lock:
            return self._read(at) if self._headers is None else list(self._headers[at])

    def keep_headers(self) -> None:
        """Read all headers, and give the messages back: their consumer is about to be closed."""
        with self._lock:
            if not self._is_free:
                self._headers = [self._read(at) for at in range(self._count)]
                self.free()

    def free(self) -> None:
        """Give the messages back."""
        with self._lock:
            if not self._is_free:
                self._is_free = True
                self._held.discard(self)
                self._rdkafka.free(self._messages, self._count, self._rdkafka.destroy_at)

    def _read(self, at: int) -> Headers:
        some, name, value, size = c_void_p(), c_char_p(), c_void_p(), c_size_t()
        found: Headers = []
        if self._rdkafka.message_headers(self._messages[at], byref(some)):
            return found  # there are none
        while not self._rdkafka.header_get_all(some, len(found), byref(name), byref(value), byref(size)):
            content = None if value.value is None else ctypes.string_at(value.value, size.value)
            found.append(((name.value or b"").decode("utf-8", "replace"), content))
        return found


class RecordColumns:
    """Records of one partition, one behind the other.

    Attributes:
        offsets: the offset of each record, ascending.
        timestamps_ms: the timestamp of each record, ms since the epoch.
        data: the bytes of all keys, and then of all values.
        key_bounds: where the keys begin in `data`, and where the last one ends.
        value_bounds: the same for values.
        null_keys: indexes of records without a key.
        null_values: the same for values.
    """

    __slots__ = (
        "_held",
        "data",
        "key_bounds",
        "null_keys",
        "null_values",
        "offsets",
        "timestamps_ms",
        "value_bounds",
    )

    def __init__(self, rdkafka: RdKafka, held: HeldMessages, messages: Any, count: int, size: int, room: Room) -> None:
        self._held = held
        numbers, nulls = (c_int64 * (4 * count + 2))(), bytearray(2 * count)
        columns = [ctypes.addressof(numbers) + 8 * first for first in (0, count, 2 * count, 3 * count + 1)]
        flags = (ctypes.c_char * len(nulls)).from_buffer(nulls)
        buffer = room.of(size)
        some_null = rdkafka.columns(messages, count, buffer, *columns, flags, rdkafka.timestamp_at)
        self.data = bytes(memoryview(buffer)[:size])
        self.offsets: list[int] = numbers[:count]
        self.timestamps_ms = memoryview(numbers).cast("B").cast("q")[count : 2 * count]
        self.key_bounds: list[int] = numbers[2 * count : 3 * count + 1]
        self.value_bounds: list[int] = numbers[3 * count + 1 :]
        self.null_keys = _set_in(nulls[:count]) if some_null else frozenset()
        self.null_values = _set_in(nulls[count:]) if some_null else frozenset()

    def __len__(self) -> int:
        return len(self.offsets)

    def __del__(self) -> None:
        if held := getattr(self, "_held", None):
            held.free()

    def headers(self, at: int) -> Headers:
        """Return all headers of a record, by its index."""
        return self._held.headers(at)


class ColumnSpan(NamedTuple):
    """Some records of columns, one behind the other.

    Attributes:
        columns: the columns.
        first: index of the first record.
        stop: index behind the last one.
    """

    columns: RecordColumns
    first: int
    stop: int

    @property
    def offsets(self) -> Sequence[int]:
        """The offset of each record."""
        return self.columns.offsets[self.first : self.stop]


class Room:
    """A buffer for bytes that are copied at once. It is used again, so that it stays in the processor's cache."""

    def __init__(self) -> None:
        self._buffer = ctypes.create_string_buffer(1 << 16)

    def of(self, size: int) -> Any:
        """Return a buffer with at least so many bytes."""
        if size <= len(self._buffer):
            return self._buffer
        larger = ctypes.create_string_buffer(2 * size if 2 * size <= _KEPT_BYTES else size)
        if len(larger) <= _KEPT_BYTES:
            self._buffer = larger
        return larger


def _set_in(flags: bytearray) -> Collection[int]:
    return frozenset(at for at, flag in enumerate(flags) if flag)
