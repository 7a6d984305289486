"""Turns a queue shard's step into records: events, dead letters and deliveries (D2 to D4)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from lapse.core.generation import FIRST_REWOUND, format_position
from lapse.core.lifetime import EXPIRES_AT_MS, NEVER, Headers
from lapse.core.queue.removal.truncation import UNREAD
from lapse.core.queue.step import Delivery, Messages, Removal
from lapse.core.shard.event import ShardEvent
from lapse.protocol import header, packed_delivery, reference
from lapse.protocol.bookmark import BookmarkRange
from lapse.runtime.kafka.fetched_rows import FetchedRows
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.packed_record import NULL, VARINT, packed_header, packed_headers, packed_name
from lapse.runtime.kafka.range_columns import RangeColumns, SourceRanges
from lapse.runtime.letters.packed_letter import PackedLetters, with_records
from lapse.runtime.letters.row_letters import RowLetters
from lapse.runtime.queue.packed_delivery import packed_records
from lapse.runtime.shard.output import ShardOutput

_BOOKMARK: Final = packed_name(header.BOOKMARK)
_DELIVERY_COUNT: Final = packed_name(header.DELIVERY_COUNT)
_TIMESTAMP: Final = packed_name(header.TIMESTAMP_MS)
_EXPIRES_AT: Final = packed_name(EXPIRES_AT_MS)


_MANY: Final = 24
"""From this number on, the ranges of an event are packed in columns. For fewer that costs more."""


def _ranges(some: Sequence[Messages]) -> tuple[BookmarkRange, ...] | RangeColumns:
    if sum(map(len, some)) >= _MANY:
        columns = [SourceRanges(one.topic, one.partition, *one.range_columns()) for one in some]
        if sum(len(one.firsts) for one in columns) >= _MANY:
            return RangeColumns(columns)
        return tuple(
            BookmarkRange(topic, partition, first, last)
            for topic, partition, firsts, lasts in columns
            for first, last in zip(firsts.tolist(), lasts.tolist(), strict=True)
        )
    return tuple(
        BookmarkRange(messages.topic, messages.partition, first, last)
        for messages in some
        for first, last in messages.ranges()
    )


def _shared(values: Any) -> int | None:
    """Return the value that all messages share; 0 without values, None if they differ."""
    if values is None:
        return 0
    alike = len(values) == 1 or (len(values) > 1 and bool((values == values[0]).all()))
    return int(values[0]) if alike else None


class QueueOutput(ShardOutput):
    """Turns events, letters, deliveries and answers of a queue shard into records.

    Attributes:
        ignores_lifetimes: whether deadlines are stored but have no effect (L6). Deliveries then say so.
    """

    ignores_lifetimes = False

    def events(self, events: Sequence[ShardEvent[Messages]], removals: Sequence[Removal]) -> list[Output]:
        """Return one event for all messages with the same kind, instant, subscription, reasons and detail (D4)."""
        shared: dict[tuple[Any, ...], list[Messages]] = {}
        for one in (*events, *(removal.event() for removal in removals)):
            key = (one.kind, one.at_ms, one.subscription, one.reasons, one.detail)
            shared.setdefault(key, []).extend([one.messages] if one.messages is not None else [])
        outputs: list[Output] = []
        for (kind, at_ms, subscription, reasons, detail), some in shared.items():
            single = some[0] if len(some) == 1 else None
            outputs += self._event_records(
                kind,
                at_ms,
                _ranges(some),
                reasons,
                subscription,
                detail,
                expires_at_ms=_deadline(single, 0) if single is not None and len(single) == 1 else None,
                delivery_count=_shared(single.deliveries) if single is not None else None,
                cancel_count=_shared(single.cancels) if single is not None else None,
            )
        return outputs

    def report_unread(self, source: str, partition: int, ranges: Sequence[tuple[int, int]], at_ms: int) -> list[Output]:
        """Return events for messages of an underlying partition that Kafka removed before they were read (C80)."""
        named = [BookmarkRange(source, partition, *one) for one in ranges]
        detail = "Kafka removed the record before it was read"
        assert UNREAD.reason is not None
        return self._event_records(UNREAD.event, at_ms, named, (UNREAD.reason,), detail=detail)

    def letters(self, removal: Removal, messages: Messages, records: Sequence[Any | None]) -> Packed:
        """Return the dead letters of a removal, or of some of its messages (D2).

        Args:
            removal: the removal.
            messages: the messages.
            records: their records, None where Kafka lost one (C40).
        """
        source = messages.topic, messages.partition
        death = self._death(source, removal.reasons, removal.at_ms, removal.detail, removal.incarnation)
        if isinstance(records, FetchedRows):
            return self._packed(source, RowLetters(death).pack(messages, records))
        return self._packed(source, PackedLetters(death).pack(with_records(messages, records)))

    def deliveries(self, delivery: Delivery, records: Sequence[Any | None]) -> Packed:
        """Return the records of a delivery: one per message, or packed ones if the subscription wants them (D4)."""
        messages = delivery.messages
        to, subscription = self.address(delivery.subscription)
        together = delivery.payload == "packed" and not delivery.barrier
        kind = packed_delivery.KIND if together else b"delivery"
        shared = [
            (header.KIND, b"barrier" if delivery.barrier else kind),
            (header.SUBSCRIPTION, subscription.encode()),
            (header.EPOCH, self._epoch_bytes),
        ]
        if delivery.until_ms:
            shared.append((header.LEASE_UNTIL_MS, b"%d" % delivery.until_ms))
        shared += self._ignored(messages)
        head = packed_headers(shared)
        if together:
            return Packed(to, self._partition, packed_records(messages, records, head, len(shared)))
        prefix = f"{messages.topic}:{messages.partition}:".encode() + b"%d"
        counts = messages.deliveries.tolist()
        deadlines = [NEVER] * len(counts) if messages.deadlines_ms is None else messages.deadlines_ms.tolist()
        rows: list[bytes] = []
        put, join, varint = rows.append, b"".join, VARINT
        count, deadline_ms, timestamp_ms, own = -1, NEVER, -2, None
        before = behind = b""
        for record, times, until_ms in zip(records, counts, deadlines, strict=True):
            if record is None:
                continue
            if times != count or until_ms != deadline_ms or record.timestamp != timestamp_ms or record.headers != own:
                # Most messages of a delivery have these in common.
                count, deadline_ms, timestamp_ms, own = times, until_ms, record.timestamp, record.headers
                headers, behind = _behind_bookmark(count, deadline_ms, timestamp_ms, own)
                before = varint[len(shared) + 1 + headers] + head + _BOOKMARK
            place = record.offset
            bookmark = prefix % place if place < FIRST_REWOUND else prefix[:-2] + format_position(place).encode()
            key, value = record.key, record.value
            put(
                join(
                    (
                        NULL if key is None else varint[len(key)] + key,
                        NULL if value is None else varint[len(value)] + value,
                        before, varint[len(bookmark)], bookmark, behind,
                    )
                )
            )  # fmt: skip
        return Packed(to, self._partition, rows)

    def reference(self, delivery: Delivery) -> Output:
        """Return one record that hands out many messages, by their bookmarks only."""
        messages = delivery.messages
        to, subscription = self.address(delivery.subscription)
        offsets, counts = messages.offsets, messages.deliveries
        breaks = np.flatnonzero((np.diff(offsets) != 1) | (np.diff(counts.astype(np.int32)) != 0))
        firsts = [0, *(breaks + 1).tolist()]
        lasts = [*breaks.tolist(), len(offsets) - 1]
        ranges = [
            (int(offsets[first]), int(offsets[last]), int(counts[first]))
            for first, last in zip(firsts, lasts, strict=True)
        ]
        deadlines_ms = messages.deadlines_ms
        none_expires = deadlines_ms is None or bool((deadlines_ms == NEVER).all())
        headers = [
            (header.KIND, reference.KIND),
            (header.SUBSCRIPTION, subscription.encode()),
            (header.EPOCH, self._epoch_bytes),
        ]
        if delivery.until_ms:
            headers.append((header.LEASE_UNTIL_MS, b"%d" % delivery.until_ms))
        headers += self._ignored(messages)
        body = reference.encode(
            messages.topic,
            messages.partition,
            ranges,
            b"" if none_expires or deadlines_ms is None else deadlines_ms.astype("<i8", copy=False).tobytes(),
        )
        return Output(to, self._partition, None, body, headers)

    def _ignored(self, messages: Messages) -> list[tuple[str, bytes]]:
        """Return the header that says that these deadlines have no effect; none if they have, or there are none."""
        deadlines_ms = messages.deadlines_ms
        if not self.ignores_lifetimes or deadlines_ms is None or bool((deadlines_ms == NEVER).all()):
            return []
        return [(header.LIFETIMES, header.LIFETIMES_IGNORED)]


def _behind_bookmark(times: int, deadline_ms: int, timestamp_ms: int, own: Headers) -> tuple[int, bytes]:
    """Return the headers of a delivery behind its bookmark: their number, and their bytes."""
    delivered, stamp = b"%d" % times, b"%d" % timestamp_ms
    count = 2
    packed = _DELIVERY_COUNT + VARINT[len(delivered)] + delivered + _TIMESTAMP + VARINT[len(stamp)] + stamp
    if deadline_ms != NEVER:
        count += 1
        until = b"%d" % deadline_ms
        packed += _EXPIRES_AT + VARINT[len(until)] + until
    for name, value in own:
        if header.is_handed_out(name):
            count += 1
            packed += packed_header(name, value)
    return count, packed


def _deadline(messages: Messages, at: int) -> int | None:
    if messages.deadlines_ms is None or messages.deadlines_ms[at] == NEVER:
        return None
    return int(messages.deadlines_ms[at])
