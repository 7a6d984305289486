"""Lots of deliveries by reference, whose records the client has read itself."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Collection, Sequence
from typing import NamedTuple

from confluent_kafka import Message

from lapse.core.generation import generation_of, position_of
from lapse.core.lifetime import NEVER
from lapse.protocol import header
from lapse.protocol.bookmark import BookmarkRange
from lapse_client.delivery.lot import Lot, overdue_indexes
from lapse_client.kafka.headers import Headers, headers_of
from lapse_client.kafka.record_columns import ColumnSpan
from lapse_client.session.shard import Shard
from lapse_client.subscriber.settler import Settler


class HandedOut(NamedTuple):
    """What a reference says of a range of messages.

    Attributes:
        settler: sends the settlements.
        shard: the shard that handed them out.
        messages: the range of bookmarks.
        deadlines_ms: deadline of each offset of the range, `NEVER` without one; empty if none has one.
        lease: end of the leases, as in the header; None for at-most-once deliveries.
        epoch: the shard's epoch, as in the header.
        landed: when the delivery reached Kafka; see `landed_ms`.
    """

    settler: Settler
    shard: Shard
    messages: BookmarkRange
    deadlines_ms: Sequence[int]
    lease: bytes | None
    epoch: bytes
    landed: float


class ReferencedLot(Lot):
    """Messages that were handed out by reference. The client knows nothing of them but their records.

    Args:
        handed: what the reference says of them.
        count: how many there are.
        first: the offset of the first record.
        last: the offset of the last one.
    """

    __slots__ = ("_deadlines_ms", "_first")

    def __init__(self, handed: HandedOut, count: int, first: int, last: int) -> None:
        some = handed.messages
        generation = generation_of(some.first)
        offsets: Sequence[int] = range(position_of(first, generation), position_of(last, generation) + 1)
        if len(offsets) != count:
            offsets = [position_of(offset, generation) for offset in self.record_offsets()]
        super().__init__(
            handed.settler,
            handed.shard,
            f"{some.topic}:{some.partition}".encode(),
            offsets,
            (some.delivery_count or 0,) * count,
            lease=handed.lease,
            epoch=handed.epoch,
        )
        self._first = some.first
        self._deadlines_ms = handed.deadlines_ms
        if self._deadlines_ms:
            self.overdue = overdue_indexes([self._deadlines_ms[one - some.first] for one in offsets], handed.landed)

    @abstractmethod
    def record_offsets(self) -> Sequence[int]:
        """Return the offset of each record."""

    def deadline_ms(self, at: int) -> int | None:
        """See `Lot`."""
        if not self._deadlines_ms:
            return None
        deadline_ms = self._deadlines_ms[self.offsets[at] - self._first]
        return None if deadline_ms == NEVER else deadline_ms


class RecordLot(ReferencedLot):
    """Messages whose records are objects. Keys and values are read from `records` by the functions of the delivery."""

    __slots__ = ("records",)

    def __init__(self, handed: HandedOut, records: Sequence[Message]) -> None:
        self.records: Sequence[Message] = records
        super().__init__(handed, len(records), records[0].offset() or 0, records[-1].offset() or 0)

    def record_offsets(self) -> Sequence[int]:
        """See `ReferencedLot`."""
        return [message.offset() or 0 for message in self.records]

    def key(self, at: int) -> bytes | None:
        """See `Lot`."""
        return self.records[at].key()

    def value(self, at: int) -> bytes | None:
        """See `Lot`."""
        return self.records[at].value()

    def headers(self, at: int) -> Headers:
        """See `Lot`."""
        return _handed_out(headers_of(self.records[at]))

    def timestamp_ms(self, at: int) -> int:
        """See `Lot`."""
        return self.records[at].timestamp()[1]


class ColumnLot(ReferencedLot):
    """Messages whose records are columns. Keys and values are read from `data` by the functions of the delivery."""

    __slots__ = ("_columns", "_from", "_stop", "data", "key_bounds", "value_bounds")

    def __init__(self, handed: HandedOut, span: ColumnSpan) -> None:
        columns, first, stop = self._columns, self._from, self._stop = span
        super().__init__(handed, stop - first, columns.offsets[first], columns.offsets[stop - 1])
        self.data = columns.data
        whole = stop - first == len(columns)
        self.key_bounds = _bounds(columns.key_bounds, first, stop, whole, columns.null_keys)
        self.value_bounds = _bounds(columns.value_bounds, first, stop, whole, columns.null_values)

    def record_offsets(self) -> Sequence[int]:
        """See `ReferencedLot`."""
        return self._columns.offsets[self._from : self._stop]

    def key(self, at: int) -> bytes | None:
        """See `Lot`."""
        columns, at = self._columns, self._from + at
        return None if at in columns.null_keys else self.data[columns.key_bounds[at] : columns.key_bounds[at + 1]]

    def value(self, at: int) -> bytes | None:
        """See `Lot`."""
        columns, at = self._columns, self._from + at
        return None if at in columns.null_values else self.data[columns.value_bounds[at] : columns.value_bounds[at + 1]]

    def headers(self, at: int) -> Headers:
        """See `Lot`."""
        return _handed_out(self._columns.headers(self._from + at))

    def timestamp_ms(self, at: int) -> int:
        """See `Lot`."""
        return self._columns.timestamps_ms[self._from + at]


def _bounds(bounds: Sequence[int], first: int, stop: int, whole: bool, null: Collection[int]) -> Sequence[int] | None:
    """Return the bounds of some records; None if one of all records is null, so that each must be looked up."""
    if null:
        return None
    return bounds if whole else bounds[first : stop + 1]


def _handed_out(headers: Headers) -> Headers:
    return [item for item in headers if header.is_handed_out(item[0])]
