"""Fetched records, taken block by block: what aiokafka does for each record is done once for all of a block.

What counts as read, and which transactions were aborted, is still decided by aiokafka's own code.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, Final

from aiokafka.consumer import fetcher

Record = Any
"""aiokafka's `DefaultRecord`, which has no types; it has no topic and partition."""


_BLOCK_RECORDS: Final = 1_000
"""A RecordBatch may hold a hundred thousand. To make objects of so many takes a while, in which others wait (C60)."""


class _Block:
    """Some records of a RecordBatch; aiokafka's loop takes it for its last record."""

    __slots__ = ("offset", "records")

    def __init__(self, records: list[Record]) -> None:
        self.records = records
        self.offset: int = records[-1].offset


class _Batch:
    """A RecordBatch that is a few blocks to who goes through its records."""

    __slots__ = ("_batch",)

    def __init__(self, batch: Any) -> None:
        self._batch = batch

    def __getattr__(self, name: str) -> Any:
        return getattr(self._batch, name)

    def __next__(self) -> Record:
        """The record of a control batch, of which aiokafka asks what it marks."""
        return next(self._batch)

    def __iter__(self) -> Iterator[_Block]:
        left = chain(self._batch)  # aiokafka's batch may be asked for an iterator once
        while records := list(islice(left, _BLOCK_RECORDS)):
            yield _Block(records)


class _Batches:
    """The RecordBatches of a fetch."""

    __slots__ = ("_records",)

    def __init__(self, records: Any) -> None:
        self._records = records

    def has_next(self) -> bool:
        """Whether there is a further batch."""
        return bool(self._records.has_next())

    def next_batch(self) -> _Batch:
        """The next batch."""
        return _Batch(self._records.next_batch())


class FetchedRecords(fetcher.PartitionRecords):
    """Fetched records of a partition, as aiokafka's parser makes them, not copied into `ConsumerRecord`s.

    They have no topic and partition, which whoever reads them knows, and take a third of the memory; the copy costs
    more CPU than everything that a shard does with a message by reference. `CheckedRecords` has seen their checksums.
    """

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self._check_crcs = False
        self._records: Any = _Batches(args[1])
        self._ahead: list[Record] = []
        """Records of a batch of which not all were taken."""

    def _consumer_record(self, tp: Any, record: _Block) -> list[Record]:
        """The records of a block that are to be read: not those before the offset that was asked for."""
        records, first = record.records, self.next_fetch_offset
        return records if records[0].offset >= first else [one for one in records if one.offset >= first]

    def take(self, most: int | None) -> tuple[list[Record], bool]:
        """Take records, at most `most` of them; and whether these were the last."""
        records, self._ahead = self._ahead, []
        while most is None or len(records) < most:
            block = next(self, None)
            if block is None:
                return records, True
            records = records + block if records else block
        if len(records) > most:
            self._ahead = records[most:]
            records = records[:most]
        if records:
            # What is ahead was not read: who asks for the position must not be told that it was.
            self.next_fetch_offset = records[-1].offset + 1
        return records, False


class FetchedPartition(fetcher.FetchResult):
    """What a fetch brought of a partition."""

    _partition_records: Any

    def getall(self, max_records: int | None = None) -> list[Record]:
        """As aiokafka's: at most so many records, none if the consumer stands elsewhere by now."""
        if not self.check_assignment(self._topic_partition) or not self.has_more():
            return []
        fetched: FetchedRecords = self._partition_records
        records, are_last = fetched.take(max_records)
        self._update_position()
        if are_last:
            self._partition_records = None
        return records
