"""Fetched records, taken in blocks: aiokafka's work for each record is done once for a whole block.

aiokafka's own code still decides which records count as read, and which transactions were aborted.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, ClassVar, Final

import numpy as np
from aiokafka.consumer import fetcher
from aiokafka.errors import CorruptRecordException
from aiokafka.record.memory_records import MemoryRecords

from lapse.runtime.kafka.batch_codec import unread_range
from lapse.runtime.kafka.batch_rows import records_of_run, rows_of, rows_of_run
from lapse.runtime.kafka.checksum import CheckedRecords
from lapse.runtime.kafka.columns import BatchRun, batches_at
from lapse.runtime.kafka.decompression import MAGIC, MAGIC_AT, TooManyBytesError, any_compressed, codec_of, plain
from lapse.runtime.kafka.fetched_rows import FetchedRows, joined
from lapse.runtime.kafka.odd_headers import readable
from lapse.runtime.kafka.read_record import UnreadRecord

Record = Any
"""aiokafka's `DefaultRecord`, which has no types. It has no topic and no partition."""

_BLOCK_RECORDS: Final = 1_000
"""The most records in a block. A RecordBatch may have a hundred thousand, and other tasks would wait while all of
their objects are made (C60)."""

_TAKEN_BYTES: Final = 16 << 20
"""From so many bytes on that were decompressed, what follows is taken in the next turn. A fetch of a megabyte can have
thousands of batches, each of which takes so much memory (C60). All partitions together also wait for it."""

_ROWS_PER_FEW: Final = 32
"""For so many records in columns, one RecordBatch with few records is read into columns as well. As objects these few
would make objects of all that are taken together with them."""


_RUN_BYTES: Final = 32 << 10
"""Batches of up to so many bytes are read together. For a larger one it costs little to be read alone."""


_DAMAGE: Final = (CorruptRecordException, ValueError, IndexError)
"""What aiokafka raises at a record that it cannot read."""


class _Block:
    """Some records of a RecordBatch. In aiokafka's loop it stands for its last record."""

    __slots__ = ("offset", "records")

    def __init__(self, records: Sequence[Record]) -> None:
        self.records = records
        self.offset: int = records[-1].offset


class _Batch:
    """A RecordBatch whose iterator returns a few blocks.

    Args:
        batch: aiokafka's batch.
        of: the batches of the fetch.
        at: where the batch begins in their bytes.
        stop: where it ends.
    """

    __slots__ = ("_at", "_batch", "_of", "_stop")

    def __init__(self, batch: Any, of: _Batches, at: int, stop: int) -> None:
        self._batch = batch
        self._of = of
        self._at = at
        self._stop = stop

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Record:
        """Return the record of a control batch, from which aiokafka reads what it marks."""
        return next(self._batch)

    def __iter__(self) -> Iterator[_Block]:
        batch, data, at, stop = self._batch, self._of.data, self._at, self._stop
        if codec_of(data, at):
            try:
                data, at, stop = plain(data, at, stop)
            except TooManyBytesError as error:
                yield from _blocks(_unread(data, at, str(error)))
                return
            batch = MemoryRecords(data).next_batch()
            self._of.decompressed_bytes += stop
        rows = self._of.rows(data, at, stop, batch)
        if rows is not None:
            yield _Block(rows)
        else:
            yield from _blocks_up_to_damage(readable(batch, data, at, stop), data, at)


class _Run:
    """RecordBatches that are read together. aiokafka sees one batch, of a producer without transactions."""

    __slots__ = ("_records", "next_offset")

    producer_id: ClassVar[None] = None
    is_control_batch: ClassVar[bool] = False

    def __init__(self, records: Sequence[Record], next_offset: int) -> None:
        self._records = records
        self.next_offset = next_offset

    def __iter__(self) -> Iterator[_Block]:
        yield _Block(self._records)


def _blocks(left: Iterator[Record]) -> Iterator[_Block]:
    while records := list(islice(left, _BLOCK_RECORDS)):
        yield _Block(records)


def _blocks_up_to_damage(left: Iterator[Record], data: bytes, at: int) -> Iterator[_Block]:
    """Yield the records of a batch; from a damaged one on they have no content.

    Brokers do not compare the length of a compressed record with its parts. A worker would stop there for ever (X7).
    """
    damage: list[Exception] = []
    behind = 0
    for block in _blocks(_up_to_damage(left, damage)):
        behind = block.offset + 1
        yield block
    if damage:
        if data[at + MAGIC_AT] != MAGIC:
            raise damage[0]
        yield from _blocks(_unread(data, at, f"a record of its RecordBatch is damaged: {damage[0]}", behind))


def _up_to_damage(left: Iterator[Record], damage: list[Exception]) -> Iterator[Record]:
    """Yield records up to one that cannot be read, and note why."""
    try:
        yield from left
    except _DAMAGE as error:
        damage.append(error)


def _unread(data: bytes, at: int, why: str, first: int = 0) -> Iterator[UnreadRecord]:
    """Yield a record without content for each offset of a RecordBatch, from `first` on."""
    offsets, timestamp_ms, timestamp_type = unread_range(data, at)
    left = range(max(first, offsets.start), offsets.stop)
    return (UnreadRecord(offset, timestamp_ms, timestamp_type, why) for offset in left)


class _Batches:
    """The RecordBatches of a fetch.

    Args:
        records: the batches, verified.
        in_columns: whether their records are wanted in columns.
        first: the offset that was asked for.

    Attributes:
        data: the bytes of the fetch.
        decompressed_bytes: how many bytes batches had after decompression.
    """

    __slots__ = ("_alone_up_to", "_first", "_in_columns", "_records", "_rows_apart", "data", "decompressed_bytes")

    def __init__(self, records: CheckedRecords, in_columns: bool, first: int) -> None:
        self.data = records.data
        self.decompressed_bytes = 0
        self._records = records
        self._in_columns = in_columns
        self._first = first
        self._alone_up_to = 0
        """Up to where no batches are read together, because one of them is damaged."""
        self._rows_apart = 0
        """How many records are in columns for which no batch with few records is."""

    def has_next(self) -> bool:
        """Return whether there is a further batch."""
        return bool(self._records.has_next())

    def next_batch(self) -> _Batch | _Run:
        """Return the next batch, or some plain ones that follow each other."""
        at = self._records.last[1]
        run = batches_at(self.data, at, _RUN_BYTES, _BLOCK_RECORDS) if at >= self._alone_up_to else None
        if run is not None:
            # aiokafka goes back to the end of a batch before the offset; no broker sends one.
            is_before = not at and unread_range(self.data, 0)[0].stop <= self._first
            records = None if is_before else self._records_of_run(at, run)
            if records is not None:
                self._records.pass_over(run.stop)
                return _Run(records, run.next_offset)
            self._alone_up_to = 1 if is_before else run.stop
        return _Batch(self._records.next_batch(), self, *self._records.last)

    def _records_of_run(self, at: int, run: BatchRun) -> Sequence[Record] | None:
        """Return the records of batches that are read together; None if one of them is damaged."""
        rows = self._in_turn(partial(rows_of_run, self.data, at, run)) if self._in_columns else None
        if rows is not None:
            return rows
        try:
            return list(records_of_run(self.data, at, run))
        except _DAMAGE:
            return None

    def rows(self, data: bytes, at: int, stop: int, batch: Any) -> FetchedRows | None:
        """Return the records of a batch in columns; None if that is not wanted, or not possible."""
        return self._in_turn(partial(rows_of, data, at, stop, batch)) if self._in_columns else None

    def _in_turn(self, read: Callable[..., FetchedRows | None]) -> FetchedRows | None:
        """Return records in columns; also few, if so many others are in columns that these would make objects of."""
        rows = read()
        if rows is not None:
            self._rows_apart += len(rows)
        elif self._rows_apart >= _ROWS_PER_FEW:
            self._rows_apart -= _ROWS_PER_FEW
            rows = read(few=True)
        return rows


class FetchedRecords(fetcher.PartitionRecords):
    """Fetched records of a partition as aiokafka's parser makes them, without copies as `ConsumerRecord`s.

    They have no topic and no partition, which the reader knows, and take a third of the memory. The copies would cost
    more CPU than everything that a shard does with a message by reference. `CheckedRecords` has verified the checksums.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._check_crcs = False
        self._records: Any = _Batches(args[1], args[0].topic in FetchedRows.wanted, args[3])
        self._ahead: Sequence[Record] = ()
        """Records of a batch of which only a part was taken."""

    def _consumer_record(self, tp: Any, record: _Block) -> Sequence[Record]:
        """Return the records of a block without those before the requested offset."""
        records, first = record.records, self.next_fetch_offset
        if records[0].offset >= first:
            return records
        if isinstance(records, FetchedRows):
            return records[int(np.searchsorted(records.offsets, first)) :]
        return [one for one in records if one.offset >= first]

    def take(self, most: int | None) -> tuple[Sequence[Record], bool]:
        """Take at most `most` records; return them, and whether they were the last."""
        blocks: list[Sequence[Record]] = [self._ahead] if self._ahead else []
        are_last = False
        count, self._ahead = len(self._ahead), ()
        end_bytes = self._records.decompressed_bytes + _TAKEN_BYTES
        while (most is None or count < most) and self._records.decompressed_bytes < end_bytes:
            if blocks and _are_unread(blocks[-1]):
                break
            block = next(self, None)
            if block is None:
                are_last = True
                break
            if blocks and _is_apart(block, blocks[-1]):
                self._ahead = block
                break
            blocks.append(block)
            count += len(block)
        records = joined_blocks(blocks)
        if are_last:
            return records, True
        if most is not None and count > most:
            self._ahead = records[most:]
            records = records[:most]
        if records:
            # The position must not be behind records that were not taken.
            self.next_fetch_offset = records[-1].offset + 1
        return records, False


def _are_unread(records: Sequence[Record]) -> bool:
    """Return whether these records were not read. They are taken apart from others, so that one look is enough."""
    return type(records) is list and type(records[0]) is UnreadRecord


def _is_apart(block: Sequence[Record], before: Sequence[Record]) -> bool:
    """Return whether a block is not taken together with the one before it. So many records stay in columns."""
    return _are_unread(block) or (len(block) > _BLOCK_RECORDS and not isinstance(before, FetchedRows))


def joined_blocks(blocks: Sequence[Sequence[Record]]) -> Sequence[Record]:
    """Join records that were taken one after the other, in columns if all of them are."""
    if len(blocks) == 1:
        return blocks[0]
    rows_only = [block for block in blocks if isinstance(block, FetchedRows)]
    if blocks and len(rows_only) == len(blocks):
        rows = joined(rows_only)
        if rows is not None:
            return rows
    return list(chain.from_iterable(blocks))


class TakenBytes:
    """How many bytes were decompressed in a turn, of all partitions of a consumer."""

    __slots__ = ("count",)

    def __init__(self) -> None:
        self.count = 0


class FetchedPartition(fetcher.FetchResult):
    """The fetched records of a partition.

    Attributes:
        taken: what the consumer has taken in this turn; None if nobody counts that.
    """

    _partition_records: Any
    taken: TakenBytes | None = None

    def getall(self, max_records: int | None = None) -> Sequence[Record]:
        """Return at most `max_records` records, like aiokafka's; none if the consumer's position has changed.

        Also none if others have taken so much in this turn that these wait for a later one.
        """
        if not self.check_assignment(self._topic_partition) or not self.has_more():
            return []
        fetched: FetchedRecords = self._partition_records
        batches, taken = fetched._records, self.taken
        if taken is not None and taken.count >= _TAKEN_BYTES and any_compressed(batches.data):
            return []  # it comes in a later turn
        before = batches.decompressed_bytes
        records, are_last = fetched.take(max_records)
        if taken is not None:
            taken.count += batches.decompressed_bytes - before
        self._update_position()
        if are_last:
            self._partition_records = None
        return records
