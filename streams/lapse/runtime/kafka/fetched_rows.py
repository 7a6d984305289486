"""Fetched records in columns. An object for a record is made only if it is needed."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain, islice
from typing import Any, ClassVar, Final, overload

import numpy as np
from numpy.typing import NDArray

from lapse.core.distinct_texts import distinct_texts
from lapse.core.rows import Rows, Texts
from lapse.runtime.kafka.columns import (
    ALIKE,
    HEADERS,
    HEADERS_LENGTH,
    KEY,
    KEY_LENGTH,
    LIFETIME,
    MOST_BYTES,
    OFFSET,
    TIMESTAMP,
    UNSURE,
    VALUE,
    VALUE_LENGTH,
    members,
)
from lapse.runtime.kafka.packed_record import headers_at
from lapse.runtime.kafka.read_record import ReadRecord

_FAR: Final = 8
"""How many objects aiokafka makes in order in the time that the columns take for one."""


class Columns:
    """The columns of records that were fetched together, and the record objects that were made so far.

    Args:
        data: the bytes with keys, values and headers.
        places: see `columns.columns_of`.
        spans: see `columns.columns_of`.
        timestamp_type: who set the timestamps, as aiokafka has it.
        left: makes the objects, in order.
    """

    __slots__ = ("_left", "_lock", "_made", "_with_headers", "data", "places", "spans", "timestamp_type")

    def __init__(
        self,
        data: bytes,
        places: NDArray[np.int64],
        spans: NDArray[np.int32],
        timestamp_type: int,
        left: Iterable[Any],
    ) -> None:
        self.data = data
        self.places = places
        self.spans = spans
        self.timestamp_type = timestamp_type
        self._left: Iterator[Any] | None = iter(left)
        self._made: list[Any] = []
        self._with_headers: NDArray[np.int32] | None = None
        self._lock = threading.Lock()

    def objects(self, first: int, stop: int) -> list[Any]:
        """Return a range of the records as objects, made once. If that costs less, those before it are made too."""
        with self._lock:  # two threads may use a fetch that was taken in part
            if self._left is not None:
                if first - len(self._made) > _FAR * (stop - first):
                    return list(self._apart(first, stop))
                self._made += islice(self._left, max(0, stop - len(self._made)))
                if len(self._made) == self.places.shape[1]:
                    self._left = None
            return self._made[first:stop]

    def header_groups(self) -> NDArray[np.int32]:
        """Return, for each record, a number that it has in common with its neighbours with the same headers."""
        if self._with_headers is None:
            self._with_headers = np.cumsum(self.spans[ALIKE] == 0, dtype=np.int32)
        return self._with_headers

    def _apart(self, first: int, stop: int) -> Iterator[ReadRecord]:
        """Yield a range of the records, made from the columns."""
        spans, headers = self.spans[:, first:stop], None
        for at, (offset, timestamp_ms, _) in enumerate(self.places[:, first:stop].T.tolist()):
            if headers is None or not spans[ALIKE, at]:
                headers = headers_at(self.data, int(spans[HEADERS, at]), "replace")[0]
            key, value = (self.part(number, first + at) for number in (KEY, VALUE))
            yield ReadRecord(offset, timestamp_ms, self.timestamp_type, key, value, headers)

    def part(self, number: int, at: int) -> bytes | None:
        """Return a part of a record, such as `columns.KEY`; None if it is null."""
        begin, length = int(self.spans[number, at]), int(self.spans[number + 1, at])
        return None if length < 0 else self.data[begin : begin + length]


class Row:
    """One of the records. Its parts are extracted when they are used."""

    __slots__ = ("_at", "_columns")

    def __init__(self, of: Columns, at: int) -> None:
        self._columns = of
        self._at = at

    @property
    def offset(self) -> int:
        """Its offset."""
        return int(self._columns.places[OFFSET, self._at])

    @property
    def timestamp(self) -> int:
        """Its timestamp, ms since the epoch."""
        return int(self._columns.places[TIMESTAMP, self._at])

    @property
    def timestamp_type(self) -> int:
        """Who set the timestamp, as aiokafka has it."""
        return self._columns.timestamp_type

    @property
    def key(self) -> bytes | None:
        """Its key."""
        return self._columns.part(KEY, self._at)

    @property
    def value(self) -> bytes | None:
        """Its value."""
        return self._columns.part(VALUE, self._at)

    @property
    def headers(self) -> Any:
        """Its headers, as aiokafka reads them."""
        return self._columns.objects(self._at, self._at + 1)[0].headers


class FetchedRows(Rows):
    """A range of the records that were fetched together.

    Args:
        of: all of them.
        first: index of the first record.
        stop: index behind the last record.
    """

    __slots__ = ("first", "of", "stop")

    wanted: ClassVar[set[str]] = set()
    """The topics whose records are fetched in columns."""

    def __init__(self, of: Columns, first: int, stop: int) -> None:
        self.of = of
        self.first = first
        self.stop = stop

    def __len__(self) -> int:
        return self.stop - self.first

    @overload
    def __getitem__(self, at: int) -> Row: ...

    @overload
    def __getitem__(self, at: slice) -> FetchedRows: ...

    def __getitem__(self, at: int | slice) -> Row | FetchedRows:
        if isinstance(at, slice):
            first, stop, step = at.indices(len(self))
            if step != 1:
                raise ValueError("rows are taken as they stand")
            return FetchedRows(self.of, self.first + first, self.first + max(first, stop))
        if not -len(self) <= at < len(self):
            raise IndexError(at)
        return Row(self.of, (self.first if at >= 0 else self.stop) + at)

    def __iter__(self) -> Iterator[Any]:
        return iter(self.of.objects(self.first, self.stop))

    @property
    def offsets(self) -> NDArray[np.int64]:
        """See `Rows`."""
        return self.of.places[OFFSET, self.first : self.stop]

    @property
    def timestamps_ms(self) -> NDArray[np.int64]:
        """See `Rows`."""
        return self.of.places[TIMESTAMP, self.first : self.stop]

    @property
    def stated_ms(self) -> NDArray[np.int64]:
        """See `Rows`."""
        return self.of.places[LIFETIME, self.first : self.stop]

    def at(self, offsets: NDArray[np.int64]) -> FetchedRows | None:
        """See `Rows`."""
        there = self.offsets
        if not len(offsets) or not len(there) or not bool((offsets[1:] > offsets[:-1]).all()):
            return None
        begin, end = int(there[0]), int(there[-1])
        if int(offsets[0]) < begin or int(offsets[-1]) > end:
            return None
        if end - begin == len(there) - 1:  # no offset is missing, so each is where it is counted to be
            rows = offsets - begin
        else:
            rows = np.searchsorted(there, offsets)
            if not np.array_equal(there[rows], offsets):
                return None
        first, stop = int(rows[0]), int(rows[-1]) + 1
        return self[first:stop] if stop - first == len(rows) else self._picked(rows + self.first)

    def row_of(self, offset: int) -> int | None:
        """Return the index of the record at an offset among all that were fetched together; None if it is not here."""
        there, last = self.of.places[OFFSET], self.stop - 1
        at = self.first + offset - int(there[self.first])
        if not self.first <= at <= last or there[at] != offset:
            at = self.first + int(np.searchsorted(self.offsets, offset))
            if at > last or there[at] != offset:
                return None
        return at

    def _picked(self, rows: NDArray[np.intp]) -> FetchedRows:
        """Return some rows that are not consecutive, by their indexes."""
        of = self.of
        spans = of.spans.take(rows, axis=1)
        # Consecutive rows with the same headers form a group; some rows of each group are picked.
        groups = of.header_groups()[rows]
        spans[ALIKE, 0] = 0
        spans[ALIKE, 1:] = groups[1:] == groups[:-1]
        left = (record for row in rows.tolist() for record in of.objects(row, row + 1))
        return FetchedRows(Columns(of.data, of.places.take(rows, axis=1), spans, of.timestamp_type, left), 0, len(rows))

    def span(self, number: int) -> NDArray[np.int32]:
        """Return a column of 32 bits, such as `columns.KEY`."""
        return self.of.spans[number, self.first : self.stop]

    def alike(self) -> int:
        """See `Rows`."""
        differs = np.flatnonzero(self.span(ALIKE)[1:] == 0)
        return int(differs[0]) + 1 if len(differs) else len(self)

    def headers(self) -> list[tuple[str, bytes | None]]:
        """See `Rows`."""
        return headers_at(self.of.data, int(self.of.spans[HEADERS, self.first]), "replace")[0]

    def sizes(self) -> tuple[NDArray[np.int32], NDArray[np.int32]]:
        """See `Rows`."""
        return self.span(KEY_LENGTH), self.span(VALUE_LENGTH)

    def keys(self) -> list[bytes]:
        """See `Rows`."""
        return self._parts(KEY, KEY_LENGTH)

    def values(self) -> list[bytes]:
        """See `Rows`."""
        return self._parts(VALUE, VALUE_LENGTH)

    def texts(self, member: str) -> Texts | None:
        """See `Rows`."""
        found = members(self.of.data, self.span(VALUE), self.span(VALUE_LENGTH), member.encode())
        if found is None:
            return None
        begins, sizes, unsure = found
        distinct, which = distinct_texts(self.of.data, begins, sizes)
        return Texts(distinct, which, np.flatnonzero(sizes == UNSURE).tolist() if unsure else ())

    def _parts(self, at: int, length: int) -> list[bytes]:
        begin, size = self.span(at), self.span(length)
        data = self.of.data
        return [data[at:end] for at, end in zip(begin.tolist(), (begin + size).tolist(), strict=True)]

    def size_bytes(self) -> int:
        """Return about how many bytes the rows take in memory."""
        if not len(self):
            return 0
        spans = self.of.spans
        last = self.stop - 1
        begin = int(spans[KEY, self.first])
        return int(spans[HEADERS, last] + spans[HEADERS_LENGTH, last]) - begin + len(self) * (8 * 3 + 4 * 7)


def joined(parts: Sequence[FetchedRows]) -> FetchedRows | None:
    """Join consecutive rows; return None if that is not possible."""
    if len(parts) == 1:
        return parts[0]
    kind = parts[0].of.timestamp_type
    if any(part.of.timestamp_type != kind for part in parts):
        return None
    places = np.concatenate([part.of.places[:, part.first : part.stop] for part in parts], axis=1)
    spans = np.concatenate([part.of.spans[:, part.first : part.stop] for part in parts], axis=1)
    data = parts[0].of.data
    if any(part.of.data is not data for part in parts):
        # Each compressed RecordBatch has bytes of its own.
        datas: list[bytes] = []
        begin, done = 0, 0
        for part in parts:
            if not datas or part.of.data is not datas[-1]:
                begin = sum(map(len, datas))
                datas.append(part.of.data)
            if begin + len(part.of.data) > MOST_BYTES:
                return None
            spans[[KEY, VALUE, HEADERS], done : done + len(part)] += begin
            done += len(part)
        data = b"".join(datas)
    return FetchedRows(Columns(data, places, spans, kind, chain.from_iterable(parts)), 0, places.shape[1])


def copied(picked: Sequence[tuple[FetchedRows, int]]) -> FetchedRows | None:
    """Return records of many fetches in columns of their own; None if their timestamps are of different kinds.

    Args:
        picked: each record: rows of its fetch, and its index among all that were fetched with it.
    """
    kind = picked[0][0].of.timestamp_type
    places: list[list[int]] = []
    spans: list[list[int]] = []
    pieces: list[bytes] = []
    size = 0
    for rows, at in picked:
        of = rows.of
        if of.timestamp_type != kind:
            return None
        span = of.spans[:, at].tolist()
        begin, end = span[KEY], span[HEADERS] + span[HEADERS_LENGTH]
        moved = size - begin
        span[KEY] += moved
        span[VALUE] += moved
        span[HEADERS] += moved
        span[ALIKE] = 0
        spans.append(span)
        places.append(of.places[:, at].tolist())
        pieces.append(of.data[begin:end])
        size += end - begin
    left = (record for rows, at in picked for record in rows.of.objects(at, at + 1))
    wide = np.ascontiguousarray(np.array(places, np.int64).T)
    narrow = np.ascontiguousarray(np.array(spans, np.int32).T)
    return FetchedRows(Columns(b"".join(pieces), wide, narrow, kind, left), 0, len(picked))
