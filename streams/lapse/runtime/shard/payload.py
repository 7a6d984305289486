"""The payloads of a shard: kept in memory within a window, and read back from the log beyond it.

The state of a shard never holds payloads.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Collection, Iterable, Sequence
from itertools import chain, pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.generation import FIRST_REWOUND, offset_of
from lapse.core.portions import Portions
from lapse.core.record import RewoundRecord
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.shard.log import READ_AHEAD_RECORDS, Log, Record
from lapse.runtime.shard.payload_chunk import Chunk, gathered, record_offset
from lapse.runtime.shard.row_parts import RowParts
from lapse.runtime.shard.waiting_sizes import WorkerBytes
from lapse.runtime.tp import TP

_RECORD_OVERHEAD_BYTES: Final = 300
_LEAST_BYTES: Final = 1 << 20
"""How much a source keeps once the shards of the worker keep much together."""

_LOOKS: Final = 16
"""How often to look for unused payloads while as many records are handed out as are in memory."""

_SPREAD: Final = 16
"""Up to this average distance, offsets are looked up in columns."""

_LEAST_OF_FETCH: Final = 8
"""The least offsets of a fetch, on average, that are looked up in columns. Objects are faster for fewer."""

_LONG_RUN: Final = 8
"""The least number of consecutive offsets that are looked up together. Shorter runs are looked up offset by offset."""


class SourceWindow:
    """The payloads of one source that are in memory.

    Args:
        limit_bytes: how many bytes to keep.
        of_worker: counts what all shards of the worker keep.
    """

    def __init__(self, limit_bytes: int, of_worker: WorkerBytes) -> None:
        self._most_bytes = limit_bytes
        self._of_worker = of_worker
        self._chunks: list[Chunk] = []
        self._size = 0
        self._looks_at = 0
        self.handed = 0
        """How many records were handed out, including those that were read back."""

    @property
    def _limit_bytes(self) -> int:
        return min(self._most_bytes, _LEAST_BYTES) if self._of_worker.are_many else self._most_bytes

    def _count(self, size_bytes: int) -> None:
        self._size += size_bytes
        self._of_worker.count += size_bytes

    def keep(self, records: Sequence[Record]) -> None:
        """Keep newly consumed records if there is room, without those that the last chunk has already."""
        if self._chunks and records and self._chunks[-1].records[-1].offset >= records[0].offset:
            records = records[bisect_right(records, self._chunks[-1].records[-1].offset, key=record_offset) :]
        if self._size >= self._limit_bytes and self.handed >= self._looks_at:
            self._forget_unused()
        if not records or self._size >= self._limit_bytes:
            return
        size = _size_of(records)
        self._chunks.append(Chunk(records, size, self.handed))
        self._count(size)

    def release_memory(self) -> Portions[None]:
        """Drop all records."""
        while self._chunks:
            self._count(-self._chunks.pop().size)
            yield

    def insert(self, records: Sequence[Record], taken: NDArray[np.int64] | None = None) -> None:
        """Keep records that were read back, without those that are here already, so that each is kept once.

        Args:
            records: what was read.
            taken: ascending offsets of those among them that were handed out already; None if none were.
        """
        while records:
            at = bisect_right(self._chunks, records[0].offset, key=_first_of)
            if at:
                records = records[bisect_right(records, self._chunks[at - 1].records[-1].offset, key=record_offset) :]
            stop = len(records)
            if at < len(self._chunks):
                stop = bisect_left(records, self._chunks[at].first, key=record_offset)
            some, records = records[:stop], records[stop:]
            if some:
                size = _size_of(some)
                chunk = Chunk(some, size, self.handed)
                if taken is not None:
                    ends = np.searchsorted(taken, [some[0].offset, some[-1].offset + 1]).tolist()
                    chunk.left -= ends[1] - ends[0]
                if chunk.left > 0:
                    self._chunks.insert(at, chunk)
                    self._count(size)
        if self._size > self._limit_bytes and self.handed >= self._looks_at:
            self._forget_unused()
        while self._size > 2 * self._limit_bytes and len(self._chunks) > 1:
            # The newest go first, because older ones are delivered next.
            self._count(-self._chunks.pop().size)

    def _forget_unused(self) -> None:
        """Drop chunks of which nothing was used while many other records were handed out.

        Their messages expired, were purged, or had been read twice. No event reports that. A dropped record that is
        needed after all is read back.
        """
        held = sum(len(chunk.records) for chunk in self._chunks)
        most = self.handed - 2 * held
        self._looks_at = self.handed + held // _LOOKS  # looking earlier would find little new
        self._chunks = [chunk for chunk in self._chunks if chunk.used_at >= most]
        self._count(sum(chunk.size for chunk in self._chunks) - self._size)

    def get(self, offset: int, used: bool = True) -> Record | None:
        """Return the record at an offset; None if it is not here. With `used` it counts as handed out, as in `run`."""
        at = bisect_right(self._chunks, offset, key=_first_of) - 1
        if at < 0:
            return None
        chunk = self._chunks[at]
        record = chunk.find(offset)
        if record is not None and used:
            chunk.left -= 1
            chunk.used_at = self.handed
            if chunk.left <= 0:
                del self._chunks[at]
                self._count(-chunk.size)
        return record

    def is_dense(self, offsets: Sequence[int] | NDArray[np.int64]) -> bool:
        """Return whether to look up ascending offsets in columns, whether their records are here or not."""
        first, last = int(offsets[0]), int(offsets[-1])
        if last - first < _SPREAD * len(offsets):
            return True
        begin, end = (bisect_right(self._chunks, offset, key=_first_of) for offset in (first, last))
        fetches = max(end - begin, (last - first) // READ_AHEAD_RECORDS) + 1
        return fetches * _LEAST_OF_FETCH <= len(offsets)

    def rows(self, offsets: NDArray[np.int64]) -> list[FetchedRows]:
        """Return records at ascending offsets, up to the first not here in columns; they count as handed out."""
        found: list[FetchedRows] = []
        done = 0
        while done < len(offsets):
            at = bisect_right(self._chunks, int(offsets[done]), key=_first_of) - 1
            if at < 0 or not isinstance(records := self._chunks[at].records, FetchedRows):
                break
            stop = int(np.searchsorted(offsets, records[-1].offset, "right"))
            rows = records.at(offsets[done:stop])
            if rows is None:
                break
            found.append(rows)
            self._handed_out(at, len(rows))
            done = stop
        return found

    def scattered(self, offsets: NDArray[np.int64]) -> FetchedRows | None:
        """Return records at ascending offsets that are far apart, copied; None unless all are here in columns.

        They count as handed out.
        """
        found = gathered(self._chunks, offsets)
        if found is None:
            return None
        rows, counts = found
        for at in sorted(counts, reverse=True):
            self._handed_out(at, counts[at])
        return rows

    def _handed_out(self, at: int, count: int) -> bool:
        """Count records of a chunk as handed out; return whether that removed the chunk."""
        chunk = self._chunks[at]
        if count:
            chunk.left -= count
            chunk.used_at = self.handed
        if chunk.left > 0:
            return False
        del self._chunks[at]
        self._count(-chunk.size)
        return True

    def run(self, first: int, count: int) -> list[Record | None]:
        """Return records of consecutive offsets, None for those that are not here. The others count as handed out."""
        found: list[Record | None] = []
        stop = first + count
        at = max(0, bisect_right(self._chunks, first, key=_first_of) - 1)
        while first < stop and at < len(self._chunks):
            chunk = self._chunks[at]
            if chunk.first > first:
                found += [None] * (min(chunk.first, stop) - first)
                first = min(chunk.first, stop)
            some, held = chunk.run(first, stop)
            found += some
            first += len(some)
            at += not self._handed_out(at, held)
        found += [None] * (stop - first)
        return found

    def pass_over(self, offsets: NDArray[np.int64]) -> None:
        """Count the records at ascending offsets as handed out, those that are here, without making objects of them."""
        chunks = self._chunks
        while len(offsets):
            at = bisect_right(chunks, int(offsets[0]), key=_first_of) - 1
            stop = int(np.searchsorted(offsets, chunks[at + 1].first)) if at + 1 < len(chunks) else len(offsets)
            if at >= 0:
                self._handed_out(at, chunks[at].count(offsets[:stop]))
            offsets = offsets[stop:]

    def runs(self, offsets: Sequence[int]) -> list[Record | None]:
        """Return records of ascending offsets, like `run` for consecutive ones."""
        if _are_consecutive(offsets):
            return self.run(offsets[0], len(offsets))
        begins = [0, *(np.flatnonzero(np.diff(offsets) != 1) + 1).tolist(), len(offsets)]
        if len(begins) * _LONG_RUN > len(offsets):
            return [self.get(offset) for offset in offsets]
        found: list[Record | None] = []
        for first, stop in pairwise(begins):
            found += self.run(offsets[first], stop - first)
        return found


class PayloadWindow:
    """The payloads of one shard: a window in memory, and the log behind it.

    Args:
        reader: reads back what is not in the window.
        limit_bytes: bytes to keep per source.
        aside: reads single records without moving `reader`; None to use `reader`.
        of_worker: counts what all shards of the worker keep. Beyond its limit each source keeps little.
    """

    def __init__(
        self, reader: Log, limit_bytes: int, aside: Log | None = None, of_worker: WorkerBytes | None = None
    ) -> None:
        self._reader = reader
        self._aside = reader if aside is None else aside
        self._limit_bytes = limit_bytes
        self._of_worker = WorkerBytes() if of_worker is None else of_worker
        self._of_worker.most = max(self._of_worker.most, 2 * limit_bytes)  # a larger window was asked for
        self._windows: dict[tuple[str, int], SourceWindow] = {}
        self.gone: Collection[str] = ()
        """Deleted topics, whose names now belong to new ones (C42). Their records are never read."""

    def keep(self, topic: str, partition: int, records: Sequence[Record]) -> None:
        """Keep records that were just consumed, as far as there is room."""
        window = self._windows.get((topic, partition))
        if window is None:
            window = self._windows[topic, partition] = SourceWindow(self._limit_bytes, self._of_worker)
        window.keep(records)

    def release_memory(self) -> Portions[None]:
        """Drop all records of the window."""
        for window in self._windows.values():
            yield from window.release_memory()

    async def ends(self, tps: Iterable[TP]) -> dict[TP, int]:
        """Return where logs end now, without those of missing topics."""
        return await self._reader.existing_ends(tps)

    def note_unread_payloads(self, topic: str, partition: int, offsets: NDArray[np.int64]) -> None:
        """Note that messages were handed out without their payloads; the offsets are ascending."""
        window = self._windows.get((topic, partition))
        if window is not None and offsets[-1] < FIRST_REWOUND:
            window.pass_over(offsets)

    async def one(self, topic: str, partition: int, offset: int) -> Record | None:
        """Read one record without moving the readers of payloads; return None if Kafka no longer has it."""
        if offset >= FIRST_REWOUND:
            record = await self.one(topic, partition, offset_of(offset))
            return None if record is None else _at_position(record, offset)
        record = self._kept(topic, partition, offset)
        if record is None and topic not in self.gone:
            record = await self._aside.one(topic, partition, offset)
        return record

    async def timestamp_ms(self, topic: str, partition: int, offset: int) -> int | None:
        """Return the timestamp of one record, ms since the epoch.

        If Kafka no longer has it, that of the first record behind it (Q15): it was compacted or deleted, and is not
        yet known to be lost. None if there is no record behind it either.
        """
        at = offset_of(offset)
        record = self._kept(topic, partition, at)
        if record is None and topic not in self.gone:
            found = await self._aside.read(topic, partition, at, at)
            record = found[0] if found else None
        return None if record is None else int(record.timestamp)

    def _kept(self, topic: str, partition: int, offset: int) -> Record | None:
        window = self._windows.get((topic, partition))
        return None if window is None else window.get(offset, used=False)

    async def read(self, topic: str, partition: int, first: int, last: int) -> Sequence[Record]:
        """Read records of the log from an offset on, at least up to another one; they are not kept (Q22)."""
        return [] if topic in self.gone else await self._reader.read(topic, partition, first, last)

    @property
    def log(self) -> Log:
        """The log reader for other purposes, which does not move the reader of payloads."""
        return self._aside

    async def _rows(
        self, window: SourceWindow, topic: str, partition: int, offsets: NDArray[np.int64]
    ) -> tuple[list[FetchedRows], Sequence[Record]]:
        """Return records at ascending offsets in columns, up to the first that is not; they count as handed out.

        Also return records that were read behind those and are not in columns, or lack one that was asked for.
        """
        parts: list[FetchedRows] = []
        done = 0
        while True:
            parts += (kept := window.rows(offsets[done:]))
            done += sum(map(len, kept))
            if done == len(offsets) or window.get(int(offsets[done]), used=False) is not None:
                return parts, ()
            last = _close_to(offsets, done)
            records = await self._reader.read(topic, partition, int(offsets[done]), int(offsets[last]))
            if not records:
                return parts, ()
            wanted = offsets[done : int(np.searchsorted(offsets, records[-1].offset, "right"))]
            found = records.at(wanted) if isinstance(records, FetchedRows) else None
            if found is None:
                return parts, records
            parts.append(found)
            done += len(found)
            window.insert(records, taken=wanted)

    async def _rewound(self, topic: str, partition: int, positions: Sequence[int], used: bool) -> list[Record | None]:
        """Return records of messages some of which a rewind brought back; each has its message's position."""
        offsets = sorted({offset_of(position) for position in positions})
        found = dict(zip(offsets, await self.get(topic, partition, offsets, used), strict=True))
        records = ((position, found[offset_of(position)]) for position in positions)
        return [None if record is None else _at_position(record, position) for position, record in records]

    async def get(
        self, topic: str, partition: int, offsets: Sequence[int] | NDArray[np.int64], used: bool = True
    ) -> Sequence[Record | None]:
        """Return records at ascending offsets, `RowParts` if they are in columns; None where Kafka lost one (C40).

        With `used` they count as handed out, and leave memory when all of their chunk were. Otherwise all records that
        were read back stay within the window, so that the next look does not read them again.
        """
        if topic in self.gone:
            return [None] * len(offsets)
        if offsets[-1] >= FIRST_REWOUND:
            return await self._rewound(topic, partition, _listed(offsets), used)
        window = self._windows.get((topic, partition))
        if window is None:
            window = self._windows[topic, partition] = SourceWindow(self._limit_bytes, self._of_worker)
        window.handed += len(offsets) if used else 0
        consecutive = _are_consecutive(offsets)
        found: list[Record | None] = []
        read: Sequence[Record] = ()
        if used and (consecutive or window.is_dense(offsets)):
            parts, read = await self._rows(window, topic, partition, np.asarray(offsets, np.int64))
            if sum(map(len, parts)) == len(offsets):
                return RowParts(parts)
            found, offsets = list(chain.from_iterable(parts)), _listed(offsets)
            found += window.runs(offsets[len(found) :])
        else:
            if used and (rows := window.scattered(np.asarray(offsets, np.int64))) is not None:
                return RowParts([rows])
            offsets = _listed(offsets)
            found = window.runs(offsets) if used else [window.get(offset, used=False) for offset in offsets]
        at = 0
        while not all(found[at:]):
            at = next(place for place in range(at, len(found)) if found[place] is None)
            last = _close_to(offsets, at)
            records = read or await self._reader.read(topic, partition, offsets[at], offsets[last])
            read = ()
            if not records:
                at = last + 1  # records far behind may still exist
                continue
            stop = bisect_right(offsets, records[-1].offset)
            if consecutive and len(records) == records[-1].offset + 1 - offsets[at]:
                found[at:stop] = records[: stop - at]
                rest = records[stop - at :]
            else:
                by_offset = {record.offset: record for record in records}
                for place in range(at, stop):
                    if found[place] is None:
                        found[place] = by_offset.get(offsets[place])
                rest = [record for record in records if record.offset > offsets[-1]]
            kept = rest if used else records
            if kept:
                window.insert(kept)
            at = stop
        return found


def _at_position(record: Record, position: int) -> Record:
    """Return a record as the record of the message at a position."""
    if position < FIRST_REWOUND:
        return record
    return RewoundRecord(position, record.timestamp, record.key, record.value, record.headers)


def _close_to(offsets: Sequence[int] | NDArray[np.int64], at: int) -> int:
    """Return the index of the last offset that is read together with the one at `at`. A long gap needs a new seek."""
    if offsets[-1] - offsets[at] <= READ_AHEAD_RECORDS:
        return len(offsets) - 1
    while at + 1 < len(offsets) and offsets[at + 1] - offsets[at] <= READ_AHEAD_RECORDS:
        at += 1
    return at


def _are_consecutive(offsets: Sequence[int] | NDArray[np.int64]) -> bool:
    return bool(offsets[-1] - offsets[0] == len(offsets) - 1)


def _listed(offsets: Sequence[int] | NDArray[np.int64]) -> Sequence[int]:
    """Return offsets as Python's numbers, which are quicker to use one by one."""
    listed: Sequence[int] = offsets.tolist() if isinstance(offsets, np.ndarray) else offsets
    return listed


def _size_of(records: Sequence[Record]) -> int:
    """Return about how many bytes records take in memory, estimated from the first of them."""
    if isinstance(records, FetchedRows):
        return records.size_bytes()
    sample = records[:16]
    mean = sum(len(record.value or b"") + len(record.key or b"") for record in sample) / len(sample)
    return int(len(records) * (mean + _RECORD_OVERHEAD_BYTES))


def _first_of(chunk: Chunk) -> int:
    return chunk.first
