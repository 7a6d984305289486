"""Turns a SOW shard's step into records: compacted state, messages, events and dead letters (S5 to S8, D2 to D4)."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from typing import Any, Final

import numpy as np

from lapse.core.lifetime import CE_EXPIRYTIME, EXPIRES_AT_MS, NEVER
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.sow import journal
from lapse.core.sow.arrival.origin import bookmark_of, path_of
from lapse.core.sow.records.record import HEAD, HEAD_BYTES, facts_of, unpack_headers
from lapse.core.sow.step import (
    EventRecord,
    ExpiryBatch,
    Kind,
    Message,
    OutOfFocus,
    OutOfFocusBatch,
    Removal,
    SowEvent,
    StateDelete,
)
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange, ranges, runs
from lapse.protocol.header import ORIGIN, ORIGIN_BOOKMARK
from lapse.runtime.kafka import columns
from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.kafka.packed_record import NULL, VARINT, packed, packed_header, packed_headers, packed_name
from lapse.runtime.kafka.packed_run import PackedRun, joined
from lapse.runtime.shard.output import ShardOutput

_OWN_PREFIX: Final = "lapse-"
_NAMED_ONE_BY_ONE: Final = 20
"""Up to this number, removals for the same reason have events with their keys. More removals share one with ranges."""

_EVENT_KEY_BYTES: Final = 64 << 10
"""A longer key is left out of its event; the bookmark is there."""

_REASONS: Final = {OutOfFocus.EXPIRED: b"time_limit"}
_BOOKMARK: Final = packed_name(header.BOOKMARK)
_TIMESTAMP: Final = packed_name(header.TIMESTAMP_MS)
_EXPIRES_AT: Final = packed_name(EXPIRES_AT_MS)

_FEW: Final = 16
"""For fewer records a call of the C library costs more than it saves."""

_BLOCKS: Final = 4_096
_BLOCK_BYTES: Final = 512
"""The number of header blocks whose encoded headers are cached, and the greatest size of such a block."""

_Headers = list[tuple[str, bytes]]


class SowOutput(ShardOutput):
    """Turns state, messages, events, letters and answers of a SOW shard into records."""

    def __init__(
        self, entity: str, partition: int, epoch: int, dead_letter_topic: str, dead_letter_partitions: int
    ) -> None:
        super().__init__(entity, partition, epoch, dead_letter_topic, dead_letter_partitions)
        self._state = topic.sow(entity)
        self._blocks: dict[bytes, tuple[int, bytes, bytes]] = {}

    def state(
        self,
        changes: Mapping[bytes, bytes | None],
        removals: Mapping[bytes, StateDelete],
        sources: Sequence[tuple[str, int]],
    ) -> Packed:
        """Return records of the compacted topic: the payload, or a tombstone that says how the record left (S8, S10).

        Args:
            changes: the changes of a step, by journal key. Only those of records are written.
            removals: how records left, as far as that is known.
            sources: topic and partition of every source, by its number.
        """
        record_prefix = journal.RECORD[0]
        records = [change for change in changes.items() if change[0][0] == record_prefix]
        run = self._run(records, sources)
        if run is None:
            return Packed(self._state, self._partition, self._one_by_one(records, removals, sources))
        return Packed(self._state, self._partition, run)

    def _run(
        self,
        records: Sequence[tuple[bytes, bytes | None]],
        sources: Sequence[tuple[str, int]],
        skip: int = len(journal.RECORD),
        before: tuple[int, bytes] = (0, b""),
        path_too: bool = True,
    ) -> PackedRun | None:
        """Return many records as one piece; None if they are few, one is a tombstone, or one has other headers.

        Args:
            records: journal key, or key, and packed record of each; None for a removed record.
            sources: topic and partition of every source, by its number.
            skip: how many bytes of a journal key come before the key.
            before: headers before the bookmark: their number, and their bytes.
            path_too: whether to add how a record was replicated.
        """
        if columns.LIBRARY is None or len(records) < _FEW:
            return None
        keys, entries = zip(*records, strict=True)
        if None in entries:
            return None
        block = entries[0][HEAD_BYTES : HEAD_BYTES + facts_of(entries[0]).headers_bytes]
        if not all(one.startswith(block, HEAD_BYTES) for one in (entries[len(entries) // 2], entries[-1])):
            return None  # most records have different headers
        count, tail, origin = self._block_headers(block) if block else (0, b"", b"")
        if origin and path_too:
            count, tail = count + 2, tail + origin
        titles = columns.Titles(before[1] + _BOOKMARK, _TIMESTAMP, _EXPIRES_AT)
        data, ends = columns.states(keys, entries, block, _prefixes(sources), titles, (before[0] + count, tail), skip)
        return PackedRun(data, ends) if ends[0] and (np.diff(ends) > 0).all() else None

    def _one_by_one(
        self,
        records: Iterable[tuple[bytes, bytes | None]],
        removals: Mapping[bytes, StateDelete],
        sources: Sequence[tuple[str, int]],
    ) -> list[bytes]:
        """Return records of the compacted topic, packed one by one."""
        rows: list[bytes] = []
        put, join, varint = rows.append, b"".join, VARINT
        prefixes = _prefixes(sources)
        unpack = HEAD.unpack_from
        tombstones: dict[StateDelete | None, bytes] = {}
        facts: tuple[int, int] | None = None
        block = head = tail = b""
        for journal_key, entry in records:
            key = journal_key[1:]
            if entry is None:
                removal = removals.get(journal_key)
                packed = tombstones.get(removal)
                if packed is None:  # records that leave together often have the same tombstone
                    packed = tombstones[removal] = _tombstone(removal)
                put(varint[len(key)] + key + packed)
                continue
            deadline_ms, timestamp_ms, _, offset, source, size = unpack(entry)
            headers_end = HEAD_BYTES + size
            if facts != (timestamp_ms, deadline_ms) or block != entry[HEAD_BYTES:headers_end]:
                # Most records that arrived together have these in common.
                facts, block = (timestamp_ms, deadline_ms), entry[HEAD_BYTES:headers_end]
                head, tail = self._around_bookmark(timestamp_ms, deadline_ms, block)
            bookmark = b"%b%d" % (prefixes[source], offset)
            put(
                join(
                    (
                        varint[len(key)], key, varint[len(entry) - headers_end], entry[headers_end:],
                        head, varint[len(bookmark)], bookmark, tail,
                    )
                )
            )  # fmt: skip
        return rows

    def _around_bookmark(self, timestamp_ms: int, deadline_ms: int, block: bytes) -> tuple[bytes, bytes]:
        """Return a record's headers before and behind the value of the first one, the bookmark."""
        stamp = b"%d" % timestamp_ms
        count, tail = 2, _TIMESTAMP + VARINT[len(stamp)] + stamp
        if deadline_ms != NEVER:
            expiry = b"%d" % deadline_ms
            count, tail = 3, tail + _EXPIRES_AT + VARINT[len(expiry)] + expiry
        if block:
            more, passed_on, origin = self._block_headers(block)
            count, tail = count + more, tail + passed_on
            if origin:
                count, tail = count + 2, tail + origin
        return VARINT[count] + _BOOKMARK, tail

    def _block_headers(self, block: bytes) -> tuple[int, bytes, bytes]:
        """Return the headers that are passed on of a block, number and bytes, and the two of a replicated record."""
        packed = self._blocks.get(block)
        if packed is None:
            headers = unpack_headers(block)
            passed_on = _passed_on(headers)
            packed = len(passed_on), packed_headers(passed_on), _origin(headers)
            if len(block) <= _BLOCK_BYTES:
                if len(self._blocks) >= _BLOCKS:
                    self._blocks.clear()
                self._blocks[block] = packed
        return packed

    def messages(
        self, messages: Iterable[Message | OutOfFocusBatch], sources: Sequence[tuple[str, int]]
    ) -> list[Packed]:
        """Return records for subscribers and for queries (S5 to S7), in order on each topic."""
        if self.users is None:
            return [Packed(self._deliveries, self._partition, self._messages(messages, sources))]
        by_topic: dict[str, list[Message | OutOfFocusBatch]] = {}
        for message in messages:
            to, own = self._addressed(message)
            by_topic.setdefault(to, []).append(own)
        return [Packed(to, self._partition, self._messages(some, sources)) for to, some in by_topic.items()]

    def _addressed(self, message: Message | OutOfFocusBatch) -> tuple[str, Message | OutOfFocusBatch]:
        """Return the topic of a message, and the message with the names by which its client knows them."""
        to, subscription = self.address(message.subscription)
        if isinstance(message, OutOfFocusBatch):
            return to, message._replace(subscription=subscription)
        asked, command_id = self.address(message.command_id) if message.command_id else (to, "")
        own = message._replace(subscription=subscription, command_id=command_id)
        return (to if message.subscription else asked), own

    def _messages(
        self, messages: Iterable[Message | OutOfFocusBatch], sources: Sequence[tuple[str, int]]
    ) -> Sequence[bytes]:
        messages = list(messages)
        batches = [message for message in messages if isinstance(message, OutOfFocusBatch)]
        if len(batches) == len(messages):
            return joined([self._out_of_focus_batch(batch, sources) for batch in batches])
        rows: list[bytes] = []
        heads: dict[tuple[object, ...], tuple[int, bytes]] = {}
        put, join, varint = rows.append, b"".join, VARINT
        for message in messages:
            if isinstance(message, OutOfFocusBatch):
                rows += self._out_of_focus_batch(message, sources)
                continue
            shared = message.kind, message.subscription, message.command_id, message.reason
            found = heads.get(shared)
            if found is None:
                found = heads[shared] = self._head(message)
            count, head = found
            facts = passed_on = b""
            if message.bookmark is not None:
                topic_name, partition, offset = message.bookmark
                bookmark = f"{topic_name}:{partition}:{offset}".encode()
                stamp = b"%d" % message.timestamp_ms
                count += 2
                facts = join((_BOOKMARK, varint[len(bookmark)], bookmark, _TIMESTAMP, varint[len(stamp)], stamp))
                if message.deadline_ms != NEVER:
                    count += 1
                    expiry = b"%d" % message.deadline_ms
                    facts += _EXPIRES_AT + varint[len(expiry)] + expiry
            if message.order_value is not None:
                count += 1
                facts += packed_header(header.ORDER_VALUE, json.dumps(message.order_value).encode())
            if message.headers:
                headers = _passed_on(message.headers)
                count += len(headers)
                passed_on = packed_headers(headers)
            put(packed(message.key, message.payload or b"", count, head + facts + passed_on))
        return rows

    def _head(self, message: Message) -> tuple[int, bytes]:
        """Return the headers that messages of one kind share for one subscription: their number, and their bytes."""
        headers: _Headers = [
            (header.KIND, message.kind.encode()),
            (header.SUBSCRIPTION, message.subscription.encode()),
            (header.EPOCH, self._epoch_bytes),
        ]
        if message.command_id:
            headers.append((header.COMMAND_ID, message.command_id.encode()))
        if message.kind is Kind.OUT_OF_FOCUS and message.reason is not None:
            headers.append((header.OPERATION, message.reason.encode()))
            if (reasons := _REASONS.get(message.reason)) is not None:
                headers.append((header.REASONS, reasons))
        return len(headers), packed_headers(headers)

    def _out_of_focus_batch(self, some: OutOfFocusBatch, sources: Sequence[tuple[str, int]]) -> Sequence[bytes]:
        """Return the records of `messages` for an `oof` of many expired records."""
        head = packed_headers(
            [
                (header.KIND, Kind.OUT_OF_FOCUS.encode()),
                (header.SUBSCRIPTION, some.subscription.encode()),
                (header.EPOCH, self._epoch_bytes),
                (header.OPERATION, OutOfFocus.EXPIRED.encode()),
                (header.REASONS, _REASONS[OutOfFocus.EXPIRED]),
            ]
        )
        run = self._run(some.records, sources, skip=0, before=(5, head), path_too=False)
        if run is not None:
            return run
        rows: list[bytes] = []
        put, join, varint = rows.append, b"".join, VARINT
        prefixes = _prefixes(sources)
        unpack = HEAD.unpack_from
        for key, entry in some.records:
            deadline_ms, timestamp_ms, _, offset, source, size = unpack(entry)
            bookmark = b"%b%d" % (prefixes[source], offset)
            stamp = b"%d" % timestamp_ms
            expiry = b"%d" % deadline_ms
            more, passed_on = self._block_headers(entry[HEAD_BYTES : HEAD_BYTES + size])[:2] if size else (0, b"")
            put(
                join(
                    (
                        varint[len(key)], key, varint[len(entry) - HEAD_BYTES - size], entry[HEAD_BYTES + size :],
                        varint[8 + more], head, _BOOKMARK, varint[len(bookmark)], bookmark,
                        _TIMESTAMP, varint[len(stamp)], stamp, _EXPIRES_AT, varint[len(expiry)], expiry, passed_on,
                    )
                )
            )  # fmt: skip
        return rows

    def letters(self, removals: Sequence[Removal], *, lost: bool = False) -> list[Packed]:
        """Return the dead letters in the order of removal.

        Those with the same source, reasons, instant and detail are one piece (D2, C27).

        Args:
            removals: the removals.
            lost: whether Kafka no longer has the records, so that key, value and headers are unknown.
        """
        if not self._letters:
            return []
        return [
            self._letters_of(
                source,
                reasons,
                at_ms,
                detail,
                incarnation,
                [(one.bookmark.offset, None if lost else one, 0, 0, one.deadline_ms) for one in alike],
            )
            for (source, reasons, at_ms, detail, incarnation), alike in groupby(removals, _fate)
        ]

    def events(self, events: Sequence[SowEvent], sources: Sequence[tuple[str, int]]) -> list[Output]:
        """Return events. Many records with the same fate share one, with ranges of bookmarks (S4, D4)."""
        shared: dict[tuple[object, ...], list[SowEvent]] = {}
        expired: dict[int, list[tuple[bytes, int, int, int]]] = {}
        for one in events:
            if isinstance(one.messages, ExpiryBatch):
                expired.setdefault(one.at_ms, []).extend(one.messages.records)
            else:
                fate = (one.kind, one.at_ms, one.reasons, one.subscription, one.detail, one.messages is None)
                shared.setdefault(fate, []).append(one)
        outputs: list[Output] = []
        for at_ms, records in expired.items():
            outputs += self._expiry_batch(at_ms, records, sources)
        for some in shared.values():
            about = [one.messages for one in some if isinstance(one.messages, EventRecord)]
            if not about:
                outputs += [output for one in some for output in self._events_of(one)]
            elif len(about) <= _NAMED_ONE_BY_ONE:
                outputs += [output for record in about for output in self._named(some[0], record)]
            else:
                outputs += self._events_of(some[0], ranges((record.bookmark, None) for record in about))
        return outputs

    def _expiry_batch(
        self, at_ms: int, records: Sequence[tuple[bytes, int, int, int]], sources: Sequence[tuple[str, int]]
    ) -> Iterator[Output]:
        fate: SowEvent = ShardEvent(EventKind.EXPIRED, at_ms, reasons=(Reason.TIME_LIMIT,))
        if len(records) <= _NAMED_ONE_BY_ONE:
            for key, source, offset, deadline_ms in records:
                yield from self._named(fate, EventRecord(Bookmark(*sources[source], offset), key, deadline_ms))
            return
        offsets: dict[int, list[int]] = {}
        for _, source, offset, _ in records:
            offsets.setdefault(source, []).append(offset)
        joined = [
            BookmarkRange(*sources[source], first, last)
            for source, found in offsets.items()
            for first, last in runs(found)
        ]
        yield from self._events_of(fate, joined)

    def _named(self, fate: SowEvent, record: EventRecord) -> list[Output]:
        """Return an event of one record, with its key and deadline."""
        (topic_name, partition, offset), key, deadline_ms = record
        return self._events_of(
            fate,
            [BookmarkRange(topic_name, partition, offset, offset)],
            key=key if key is not None and len(key) <= _EVENT_KEY_BYTES else None,
            expires_at_ms=deadline_ms if deadline_ms != NEVER else None,
        )

    def _events_of(self, fate: SowEvent, messages: Sequence[BookmarkRange] = (), **facts: Any) -> list[Output]:
        return self._event_records(
            fate.kind, fate.at_ms, messages, fate.reasons, fate.subscription, fate.detail, **facts
        )


def _tombstone(removal: StateDelete | None) -> bytes:
    """Return the bytes of a tombstone behind its key."""
    headers: _Headers = []
    if removal is not None:
        reason, timestamp_ms, path, unwritten, bookmark = removal
        headers = [(header.OPERATION, reason.encode()), (header.TIMESTAMP_MS, b"%d" % timestamp_ms)]
        if unwritten:
            headers.append((header.UNWRITTEN, b"true"))
        if path:
            headers.append((ORIGIN, path))
        if bookmark:
            headers.append((ORIGIN_BOOKMARK, bookmark))
    return NULL + VARINT[len(headers)] + packed_headers(headers)


def _origin(headers: Sequence[tuple[str, bytes | None]]) -> bytes:
    """Return the two headers that tell how a record was replicated; empty if it was published here."""
    path = path_of(headers)
    return packed_headers([(ORIGIN, path), (ORIGIN_BOOKMARK, bookmark_of(headers))]) if path else b""


def _prefixes(sources: Sequence[tuple[str, int]]) -> list[bytes]:
    """Return the beginning of each source's bookmarks."""
    return [f"{topic_name}:{partition}:".encode() for topic_name, partition in sources]


def _passed_on(headers: Iterable[tuple[str, bytes | None]]) -> _Headers:
    """Return the publisher's own headers, without those of the lifetime, because the deadline replaces them."""
    own: Iterable[Any] = headers  # a header may be null, which the wire allows
    return [item for item in own if not item[0].startswith(_OWN_PREFIX) and item[0] != CE_EXPIRYTIME]


def _fate(removal: Removal) -> tuple[tuple[str, int], tuple[Reason, ...], int, str, int]:
    """Return what letters in one piece share: source, reasons, instant, detail, incarnation."""
    return removal.bookmark[:2], removal.reasons, removal.at_ms, removal.detail, removal.incarnation
