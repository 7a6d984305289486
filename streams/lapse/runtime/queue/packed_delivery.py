"""Encodes deliveries as records with many messages each: the hot encoder of inline payloads (D4)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER, Headers
from lapse.core.queue.step import Messages
from lapse.protocol import packed_delivery
from lapse.protocol.header import OF_LETTERS, PREFIX, is_handed_out
from lapse.protocol.packed_delivery import column, encode_length, encode_name
from lapse.runtime.kafka import columns
from lapse.runtime.kafka.columns import ALIKE, HEADERS, HEADERS_LENGTH, KEY, VALUE
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.kafka.packed_record import PiecedRecord, packed
from lapse.runtime.shard.row_parts import RowParts

MOST_BYTES: Final = 800_000
"""The most bytes of keys, values and headers in a record. A single message may have more."""

_FEW: Final = 16
"""For fewer messages columns cost more than they save."""

_MOST_REORDERED: Final = 1 << 30
"""Records with more bytes are put into their order one by one, since a column says where a field begins in 32 bits."""

_MOST_NAMES: Final = 1_000
"""The most header names that are cached, since producers may use any; also the greatest cached length."""


_LEFT_OUT: Final = bytes([len(PREFIX)]) + PREFIX.encode()
_HANDED_OUT: Final = columns.names(sorted(OF_LETTERS))


def packed_records(
    messages: Messages, records: Sequence[Any | None], headers: bytes, header_count: int, most_bytes: int = MOST_BYTES
) -> Sequence[bytes | PiecedRecord]:
    """Return records that hand messages out, in order, without messages that Kafka has lost.

    Args:
        messages: the messages.
        records: their records, None where Kafka lost one.
        headers: the headers of all these records, packed.
        header_count: the number of these headers.
        most_bytes: see `MOST_BYTES`.
    """
    if isinstance(records, RowParts) and (len(records) < _FEW or not _can_be_reordered(records)):
        records = list(records)
    if isinstance(records, RowParts):
        return _packed_rows(messages, records, headers, header_count, most_bytes)
    if not all(records):
        there = np.array([at for at, record in enumerate(records) if record is not None], np.intp)
        messages, records = messages.select(there), [records[at] for at in there.tolist()]
    if not records:
        return []
    keys: list[bytes | None] = [record.key for record in records]  # type: ignore[union-attr]
    values: list[bytes | None] = [record.value for record in records]  # type: ignore[union-attr]
    stamps = [record.timestamp for record in records]  # type: ignore[union-attr]
    own = _own_headers([record.headers for record in records])  # type: ignore[union-attr]
    deadlines_ms = messages.deadlines_ms
    if deadlines_ms is not None and deadlines_ms.item(0) == NEVER and bool((deadlines_ms == NEVER).all()):
        deadlines_ms = None
    has_keys = any(keys) or any(key is not None for key in keys)
    parts: Iterable[tuple[int, int]] = ((0, len(values)),)
    sizes: list[NDArray[np.int32]] = []
    if len(values) >= _FEW or _bytes_of(keys) + _bytes_of(values) + _bytes_of(own) > most_bytes:
        sizes = [_lengths(some) for some in (values, keys if has_keys else (), own)]
        parts = _parts(sizes, len(values), most_bytes)
    topic, partition = messages.topic, messages.partition
    bodies: list[bytes] = []
    for first, stop in parts:
        body = packed_delivery.encode(
            topic,
            partition,
            messages.offsets[first:stop].astype("<i8", copy=False).tobytes(),
            column("q", stamps[first:stop]),
            messages.deliveries[first:stop].astype("<u4", copy=False).tobytes(),
            values[first:stop],
            deadlines_ms=b"" if deadlines_ms is None else deadlines_ms[first:stop].astype("<i8", copy=False).tobytes(),
            keys=keys[first:stop] if has_keys else (),
            headers=own[first:stop],
            lengths=[size[first:stop].astype("<i4", copy=False).tobytes() for size in sizes],
        )
        bodies.append(packed(None, body, header_count, headers))
    return bodies


def _packed_rows(
    messages: Messages, records: RowParts, headers: bytes, header_count: int, most_bytes: int
) -> list[PiecedRecord]:
    """Do the same as `packed_records` for records in columns. Keys and values are copied only into their batch."""
    rows, order = records.parts, records.order
    keys, values = _Part.gathered(rows, KEY), _Part.gathered(rows, VALUE)
    own = _Part.own_headers(rows)
    stamps = np.concatenate([part.timestamps_ms for part in rows])
    if order is not None:
        keys, values, own, stamps = keys.reordered(order), values.reordered(order), own.reordered(order), stamps[order]
    deadlines_ms = messages.deadlines_ms
    if deadlines_ms is not None and bool((deadlines_ms == NEVER).all()):
        deadlines_ms = None
    bodies: list[PiecedRecord] = []
    for first, stop in _parts([values.lengths, keys.lengths, own.lengths], len(messages), most_bytes):
        columns_of = (
            messages.offsets[first:stop].astype("<i8", copy=False).tobytes(),
            stamps[first:stop].astype("<i8", copy=False).tobytes(),
            messages.deliveries[first:stop].astype("<u4", copy=False).tobytes(),
            values.column(first, stop),
            b"" if deadlines_ms is None else deadlines_ms[first:stop].astype("<i8", copy=False).tobytes(),
            keys.column(first, stop),
            own.column(first, stop),
        )
        bytes_of = [part.bytes_of(first, stop) for part in (keys, values, own)]
        head = packed_delivery.head(messages.topic, messages.partition, stop - first, columns_of)
        bodies.append(PiecedRecord((head, *columns_of, *bytes_of), header_count, headers))
    return bodies


class _Part:
    """One field of each message, such as the value: its lengths, -1 for null, and all bytes one behind the other.

    Args:
        lengths: the length of each field; empty if no message has the field.
        data: the bytes.
    """

    def __init__(self, lengths: NDArray[np.int32], data: NDArray[np.uint8]) -> None:
        self.lengths = lengths
        self._bytes = data
        self._ends = np.concatenate(([0], np.cumsum(np.maximum(lengths, 0), dtype=np.int64)))

    @classmethod
    def gathered(cls, rows: Sequence[FetchedRows], number: int) -> _Part:
        """Return the keys or the values of records, by the number of the column in which they begin."""
        lengths = np.concatenate([part.span(number + 1) for part in rows])
        if number == KEY and bool((lengths < 0).all()):
            return cls(lengths[:0], np.empty(0, np.uint8))
        data = np.empty(int(np.maximum(lengths, 0).sum(dtype=np.int64)), np.uint8)
        at = 0
        for part in rows:
            at += columns.gather(part.of.data, part.span(number), part.span(number + 1), data[at:])
        return cls(lengths, data)

    @classmethod
    def own_headers(cls, rows: Sequence[FetchedRows]) -> _Part:
        """Return the messages' own headers; see `is_handed_out`."""
        found = [
            columns.own_headers(
                part.of.data, part.span(HEADERS), part.span(HEADERS_LENGTH), part.span(ALIKE), _LEFT_OUT, _HANDED_OUT
            )
            for part in rows
        ]
        lengths = np.concatenate([one[0] for one in found])
        if not lengths.any():
            return cls(lengths[:0], np.empty(0, np.uint8))
        return cls(lengths, np.concatenate([one[1] for one in found]))

    def reordered(self, order: NDArray[np.intp]) -> _Part:
        """Return the field of the same messages in another order, given as the index of each; see `_MOST_REORDERED`."""
        if not len(self.lengths):
            return self
        lengths = self.lengths[order]
        data = np.empty(len(self._bytes), np.uint8)
        columns.gather(self._bytes, self._ends[:-1][order].astype(np.int32), lengths, data)
        return _Part(lengths, data)

    def column(self, first: int, stop: int) -> bytes:
        """Return the lengths of a range of messages, as a packed delivery has them."""
        return self.lengths[first:stop].astype("<i4", copy=False).tobytes()

    def bytes_of(self, first: int, stop: int) -> memoryview:
        """Return the bytes of a range of messages."""
        data = memoryview(self._bytes)  # type: ignore[arg-type]  # numpy's types say so where Python is older
        if not len(self.lengths):
            return data[:0]
        return data[int(self._ends[first]) : int(self._ends[stop])]


def _can_be_reordered(records: RowParts) -> bool:
    """Return whether records are in the order of the log, or few enough bytes to put them into another order."""
    return records.order is None or sum(part.size_bytes() for part in records.parts) < _MOST_REORDERED


def _bytes_of(some: Sequence[bytes | None]) -> int:
    return sum(map(len, filter(None, some)))


def _lengths(some: Sequence[bytes | None]) -> NDArray[np.int32]:
    """Return the length of each, −1 for null."""
    try:
        return np.fromiter(map(len, some), np.int32, len(some))  # type: ignore[arg-type]
    except TypeError:
        return np.fromiter((-1 if one is None else len(one) for one in some), np.int32, len(some))


def _own_headers(all_headers: list[Headers]) -> list[bytes]:
    """Return the messages' own headers, encoded; empty if none has any. See `is_handed_out`."""
    known = all_headers[0]
    encoded = _encoded(known)
    if all_headers.count(known) == len(all_headers):
        return [encoded] * len(all_headers) if encoded else []
    own: list[bytes] = []
    for headers in all_headers:
        if headers != known:
            known, encoded = headers, _encoded(headers)
        own.append(encoded)
    return own if any(own) else []


def _encoded(headers: Headers) -> bytes:
    parts: list[bytes] = []
    for name, value in headers:
        if known := _NAMES[name]:
            parts += (known, _LENGTH_OF[-1 if value is None else len(value)], value or b"")
    return b"".join(parts)


class _Names(dict[str, bytes]):
    """Caches encoded header names of packed deliveries; empty for headers that are not handed out.

    Headers of different messages mostly have the same names and different values. So each name is encoded only once.
    """

    def __missing__(self, name: str) -> bytes:
        encoded = encode_name(name) if is_handed_out(name) else b""
        if len(self) < _MOST_NAMES:
            self[name] = encoded
        return encoded


class _Lengths(dict[int, bytes]):
    """Caches encoded lengths of header values."""

    def __missing__(self, length: int) -> bytes:
        encoded = encode_length(length)
        if length < _MOST_NAMES:
            self[length] = encoded
        return encoded


_NAMES: Final = _Names()
_LENGTH_OF: Final = _Lengths()


def _parts(sizes: Sequence[NDArray[np.int32]], count: int, most_bytes: int) -> Iterator[tuple[int, int]]:
    """Yield the index of the first message of each record, and the index behind its last.

    Args:
        sizes: columns of lengths, of which the sum is a message's size. An empty column counts as zero.
        count: the number of messages.
        most_bytes: see `MOST_BYTES`.
    """
    each = np.zeros(count, np.int64)
    for column_of in sizes:
        if len(column_of):
            each += np.maximum(column_of, 0)
    ends = np.cumsum(each)
    first, before = 0, 0
    while first < count:
        stop = max(int(np.searchsorted(ends, before + most_bytes, "right")), first + 1)
        yield first, stop
        first, before = stop, int(ends[stop - 1])
