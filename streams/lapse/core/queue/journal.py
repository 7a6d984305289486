"""The journal of a queue shard: what is written for a step, and how the state comes back from it.

The changelog topic keeps the latest record of every key, so the journal is laid out in keys:

- `d` epoch slot: the changes of one step. Slots are a ring of `RING`; before one is used again, every segment that
  its changes touched has been written whole.
- `g` epoch segment: a segment, whole, with the sequence of the last step that it contains; no value once it is gone.
- `c` epoch number: a subscription. `s` epoch source offset: a scheduled message. `a` epoch source offset: a
  remembered acknowledgment. `i` epoch number: message ids that were seen within the window. `y` epoch source offset: a
  dying message. `t` epoch number: a transfer under way. `r` epoch number: deliveries that count in windows of rates.
  `w` epoch number: a rewind. `h` epoch source stretch: messages that a rewind does not bring back.
- `z` epoch 0: how far the queue's end is. `u` epoch 0: when a temporary queue was last used.

The epoch is part of each key: what a worker writes after its shard was taken over cannot overwrite, nor compact away,
what the new owner writes. Segments that the new owner inherited stand under older epochs until `maintain` has moved
them, a few between two steps; only until then can a late write of the old owner compact one away, so the changelog's
`min.compaction.lag.ms` has to be longer than that. Which epochs count is decided by `restore`'s caller, by where they
stand in the log.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from lapse.core.queue import packed_change, scheduled_record
from lapse.core.queue.change import HANDS_OUT, Change, ChangeKind
from lapse.core.queue.counted import batch_of
from lapse.core.queue.ending import entry
from lapse.core.queue.pending_letter import pending_letter_of
from lapse.core.queue.scheduled import scheduled_of
from lapse.core.queue.segment import Segment
from lapse.core.queue.segment_spill import Segments, SpillStore
from lapse.core.queue.source import Source
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step
from lapse.core.repeats import chunk_of

RING: Final = 256
Items = list[tuple[bytes, bytes | None]]
_AHEAD: Final = 16
"""So many segments are written whole ahead of need between two steps."""

_MOVED: Final = 4
"""So many inherited segments are written under the new epoch between two steps."""

_EPOCH: Final = struct.Struct(">q")
_KEY: Final = struct.Struct(">cqq")
_SCHEDULED_KEY: Final = struct.Struct(">cqiq")
_HEAD: Final = struct.Struct("<BqqqBHI")
_SOURCE: Final = struct.Struct("<Hiq")
_AS_OF: Final = struct.Struct("<q")
_FORMAT: Final = 1
_KEPT_APART: Final = frozenset(
    {
        ChangeKind.SUBSCRIBED,
        ChangeKind.UNSUBSCRIBED,
        ChangeKind.SCHEDULED,
        ChangeKind.UNSCHEDULED,
        ChangeKind.REMEMBERED,
        ChangeKind.HONOURED,
        ChangeKind.IDENTIFIED,
        ChangeKind.FORGOTTEN,
        ChangeKind.LETTER_PENDING,
        ChangeKind.LETTER_WRITTEN,
        ChangeKind.RETIRING,
        ChangeKind.USED,
        ChangeKind.TRANSFER,
        ChangeKind.REWIND,
        ChangeKind.DEPARTED,
        ChangeKind.COUNTED,
        ChangeKind.UNCOUNTED,
    }
)


@dataclass(slots=True)
class Restored:
    """What the changelog held at take-over.

    Attributes:
        state: the shard's state.
        whole_at: under which key each whole segment stands.
        obsolete: keys that can go once the new epoch has begun.
        released: barriers of the last step, which may not have been sent (C35).
        handed_out: what the last steps handed out, each change with the sequence of its step (C55).
    """

    state: QueueState
    whole_at: dict[int, bytes] = field(default_factory=dict)
    obsolete: list[bytes] = field(default_factory=list)
    released: list[Change] = field(default_factory=list)
    handed_out: list[tuple[int, Change]] = field(default_factory=list)


class QueueJournal:
    """Writes the steps of one epoch over a shard.

    Args:
        state: the shard's.
        epoch: the epoch's number.
        restored: what the changelog held at take-over; None for a new shard.
    """

    def __init__(self, state: QueueState, epoch: int, restored: Restored | None = None) -> None:
        self._state = state
        self._epoch = epoch
        self._whole_at: dict[int, bytes] = dict(restored.whole_at) if restored else {}
        self._obsolete: list[bytes] = list(restored.obsolete) if restored else []
        self._released = list(restored.released) if restored else []
        self._inherited: list[int] = sorted(self._whole_at, reverse=True)

    def begin(self) -> Items:
        """What the first step of an epoch writes: everything that is not a whole segment yet, then what can go.

        May be larger than one batch; nothing else is written before all of it is durable.
        """
        state = self._state
        items: Items = []
        for index in list(state.dirty):
            items += self._whole(index)
        for subscription in state.subscriptions.values():
            key = _KEY.pack(b"c", self._epoch, subscription.number)
            items.append((key, json.dumps(subscription.facts()).encode()))
        for (source, offset), scheduled in state.scheduled.items():
            items.append((_SCHEDULED_KEY.pack(b"s", self._epoch, source, offset), scheduled_record.pack(scheduled)))
        for transfer in state.transfers:
            key = _KEY.pack(b"t", self._epoch, transfer.number)
            items.append((key, json.dumps(transfer.facts()).encode()))
        for rewind in state.rewinds:
            items.append((_KEY.pack(b"w", self._epoch, rewind.number), json.dumps(rewind.facts()).encode()))
        for stretch, departed in state.rewinds.departed.items():
            key = _SCHEDULED_KEY.pack(b"h", self._epoch, *stretch)
            items.append((key, json.dumps(departed.facts()).encode()))
        items += [(_SCHEDULED_KEY.pack(b"a", self._epoch, *one), b"") for one in sorted(state.remembered)]
        for name, dying in state.pending.items():
            items.append((_SCHEDULED_KEY.pack(b"y", self._epoch, *name), json.dumps(dying.facts()).encode()))
        for number, chunk in state.repeats.chunks.items():
            items.append((_KEY.pack(b"i", self._epoch, number), json.dumps(chunk).encode()))
        for number, batch in state.counted.batches.items():
            items.append((_KEY.pack(b"r", self._epoch, number), json.dumps(batch.facts()).encode()))
        items += [(_KEY.pack(kind, self._epoch, 0), value) for kind, value in state.ending.entries()]
        items.append((_KEY.pack(b"d", self._epoch, state.sequence % RING), _encode(state, self._released)))
        items += [(key, None) for key in self._obsolete]
        self._obsolete.clear()
        items += self._dropped()
        state.sequence += 1
        return items

    def maintain(self) -> Items:
        """Segments to be written whole before the next step, so that the ring's oldest slot becomes free.

        To be called between steps: a segment is written as the last durable step left it. May be larger than a batch.
        """
        state = self._state
        items: Items = []
        while self._inherited and len(items) < _MOVED:
            index = self._inherited.pop()
            if self._stands_elsewhere(index):
                items += self._whole(index)
        if not state.dirty:
            return items
        soon, now = state.sequence - RING // 2, state.sequence - RING + 1
        for index, since in list(state.dirty.items()):
            if since <= now or (since <= soon and len(items) < _AHEAD):
                items += self._whole(index)
        return items

    def encode(self, step: Step) -> Items:
        """What has to be durable for a step, all of it in one batch."""
        state = self._state
        items: Items = [self._apart(change) for change in step.changes if change.kind in _KEPT_APART]
        items.append((_KEY.pack(b"d", self._epoch, state.sequence % RING), _encode(state, step.changes)))
        items += self._dropped()
        state.sequence += 1
        return items

    def _dropped(self) -> Items:
        state = self._state
        items: Items = []
        for index in state.dropped:
            key = self._whole_at.pop(index, None)
            if key is not None:
                items.append((key, None))
        state.dropped.clear()
        return items

    def _apart(self, change: Change) -> tuple[bytes, bytes | None]:
        if change.kind is ChangeKind.SUBSCRIBED:
            return _KEY.pack(b"c", self._epoch, change.holder), json.dumps(change.facts).encode()
        if change.kind is ChangeKind.UNSUBSCRIBED:
            return _KEY.pack(b"c", self._epoch, change.holder), None
        if change.kind in (ChangeKind.REMEMBERED, ChangeKind.HONOURED):
            key = _SCHEDULED_KEY.pack(b"a", self._epoch, change.source, change.offset)
            return key, b"" if change.kind is ChangeKind.REMEMBERED else None
        if change.kind in (ChangeKind.LETTER_PENDING, ChangeKind.LETTER_WRITTEN):
            key = _SCHEDULED_KEY.pack(b"y", self._epoch, change.source, change.offset)
            return key, json.dumps(change.facts).encode() if change.kind is ChangeKind.LETTER_PENDING else None
        if change.kind in (ChangeKind.IDENTIFIED, ChangeKind.FORGOTTEN):
            chunk = (change.source, change.until_ms, change.facts.get("ids"))
            value = json.dumps(chunk).encode() if change.kind is ChangeKind.IDENTIFIED else None
            return _KEY.pack(b"i", self._epoch, change.offset), value
        if change.kind in (ChangeKind.COUNTED, ChangeKind.UNCOUNTED):
            value = json.dumps(change.facts).encode() if change.kind is ChangeKind.COUNTED else None
            return _KEY.pack(b"r", self._epoch, change.offset), value
        if change.kind in (ChangeKind.RETIRING, ChangeKind.USED):
            kind, ending = entry(change)
            return _KEY.pack(kind, self._epoch, 0), ending
        if change.kind in (ChangeKind.TRANSFER, ChangeKind.REWIND):
            value = json.dumps(change.facts).encode() if change.facts else None
            kind = b"t" if change.kind is ChangeKind.TRANSFER else b"w"
            return _KEY.pack(kind, self._epoch, change.holder), value
        if change.kind is ChangeKind.DEPARTED:
            value = json.dumps(change.facts).encode() if change.facts else None
            return _SCHEDULED_KEY.pack(b"h", self._epoch, change.source, change.offset), value
        key = _SCHEDULED_KEY.pack(b"s", self._epoch, change.source, change.offset)
        if change.kind is ChangeKind.UNSCHEDULED or change.deadlines_ms is None:
            return key, None
        return key, scheduled_record.pack(scheduled_of(change))

    def _stands_elsewhere(self, index: int) -> bool:
        """Whether a segment stands under the key of an older epoch."""
        return self._whole_at.get(index, b"")[1:9] not in (b"", _EPOCH.pack(self._epoch))

    def _whole(self, index: int) -> Items:
        state = self._state
        state.dirty.pop(index, None)
        key = _KEY.pack(b"g", self._epoch, index)
        items: Items = [(key, _AS_OF.pack(state.sequence - 1) + bytes(state.segments.encoded(index)))]
        before = self._whole_at.get(index)
        if before is not None and before != key:
            items.append((before, None))
        self._whole_at[index] = key
        return items


def restore(items: Iterable[tuple[bytes, bytes]], segments: Segments | None = None) -> Restored:
    """Rebuild the state from the latest record of every key.

    A take-over that did not come to its end has left records of two epochs: what the lower ones say of steps,
    subscriptions and the schedule counts exactly as long as no higher one has written its first step.

    Args:
        items: the records, in any order, each asked for once.
        segments: takes the segments in, as they come; None = all stay in memory.

    Raises:
        ValueError: a record of another format than this version writes.
    """
    state = QueueState(segments)
    restored = Restored(state)
    steps: dict[int, bytes] = {}
    columns: SpillStore = {} if state.segments.spill_store is None else state.segments.spill_store
    whole, rest = _sort_out(items, columns, restored.obsolete)
    rest.sort(key=_epoch_and_number)
    epoch = max((key[1:9] for key, _ in rest if key[:1] == b"d"), default=b"")
    for key, value in rest:
        kind = key[:1]
        restored.obsolete.append(key)
        if key[1:9] < epoch:
            continue
        if kind == b"d":
            steps[_HEAD.unpack_from(value)[1]] = value
        else:
            _restore_apart(state, key, value)
    state.pending = dict(sorted(state.pending.items(), key=lambda item: (item[1].at_ms, item[0])))
    if not steps:
        return restored
    sequences = sorted(steps)
    last = steps[sequences[-1]]
    _restore_sources(state, last)
    for index, (as_of, key) in sorted(whole.items()):
        state.adopt(Segment.decode(columns[index]))
        state.as_of[index] = as_of
        restored.whole_at[index] = key
    state.recovering = True
    for sequence in sequences:
        state.sequence = sequence
        for change in _decode(steps[sequence]):
            state.apply(change)
            if change.kind is ChangeKind.RELEASED and sequence == sequences[-1]:
                restored.released.append(change)
            elif change.kind in HANDS_OUT:
                restored.handed_out.append((sequence, change))
        state.segments.make_room()
    _restore_head(state, last)
    state.sequence = sequences[-1] + 1
    state.settle_indexes()
    return restored


def _sort_out(
    items: Iterable[tuple[bytes, bytes]], columns: SpillStore, obsolete: list[bytes]
) -> tuple[dict[int, tuple[int, bytes]], list[tuple[bytes, bytes]]]:
    """Put the columns of each segment aside, those of its highest epoch.

    Returns:
        Of each segment the last step that it contains, and its key; and all records that are no segments.
    """
    whole: dict[int, tuple[int, bytes]] = {}
    rest: list[tuple[bytes, bytes]] = []
    for key, value in items:
        if key[:1] != b"g":
            rest.append((key, value))
            continue
        as_of, index = _AS_OF.unpack_from(value)[0], _KEY.unpack(key)[2]
        known = whole.get(index)
        if known is not None:
            obsolete.append(min(known[1], key))
        if known is None or known[1] < key:
            whole[index] = (as_of, key)
            columns[index] = memoryview(value)[_AS_OF.size :]
    return whole, rest


def _epoch_and_number(item: tuple[bytes, bytes]) -> bytes:
    return item[0][1:]


def _encode(state: QueueState, changes: list[Change]) -> bytes:
    told = [change for change in changes if change.kind not in _KEPT_APART]
    parts = [
        _HEAD.pack(
            _FORMAT,
            state.sequence,
            state.next_place,
            state.subscription_table.next_number,
            state.paused,
            len(state.sources),
            len(told),
        )
    ]
    for source in state.sources:
        name = source.topic.encode()
        parts += [_SOURCE.pack(len(name), source.partition, source.next_offset), name]
    for change in told:
        parts += packed_change.pack(change)
    return b"".join(parts)


def _after_sources(value: bytes) -> tuple[list[Source], int]:
    source_count = _HEAD.unpack_from(value)[5]
    at = _HEAD.size
    sources: list[Source] = []
    for _ in range(source_count):
        length, partition, next_offset = _SOURCE.unpack_from(value, at)
        at += _SOURCE.size
        sources.append(Source(value[at : at + length].decode(), partition, next_offset))
        at += length
    return sources, at


def _restore_apart(state: QueueState, key: bytes, value: bytes) -> None:
    """Take over what has a key of its own."""
    match key[:1]:
        case b"c":
            facts = json.loads(value)
            state.apply(Change(ChangeKind.SUBSCRIBED, holder=facts["number"], facts=facts))
        case b"a":
            state.remembered.add(_SCHEDULED_KEY.unpack(key)[2:])
        case b"y":
            state.pending[_SCHEDULED_KEY.unpack(key)[2:]] = pending_letter_of(json.loads(value))
        case b"i":
            state.repeats.add(_KEY.unpack(key)[2], chunk_of(*json.loads(value)))
        case b"s":
            _, _, source, offset = _SCHEDULED_KEY.unpack(key)
            state.scheduled.add(source, offset, scheduled_record.unpack(value))
        case b"r":
            state.counted.add(_KEY.unpack(key)[2], batch_of(json.loads(value)))
        case b"t":
            state.transfers.add(json.loads(value))
        case b"w":
            state.rewinds.add(json.loads(value))
        case b"h":
            _, _, source, stretch = _SCHEDULED_KEY.unpack(key)
            state.rewinds.depart(Change(ChangeKind.DEPARTED, source=source, offset=stretch, facts=json.loads(value)))
        case kind:
            state.ending.restore(kind, value)


def _restore_sources(state: QueueState, value: bytes) -> None:
    for source in _after_sources(value)[0]:
        state.sources.add(source)
    state.rewinds.settle_generations()


def _restore_head(state: QueueState, value: bytes) -> None:
    form, _, next_place, next_number, paused, _, _ = _HEAD.unpack_from(value)
    if form != _FORMAT:
        raise ValueError(f"journal step of format {form}; this version of lapse reads format {_FORMAT}")
    state.next_place, state.subscription_table.next_number, state.paused = next_place, next_number, bool(paused)


def _decode(value: bytes) -> Iterable[Change]:
    _, at = _after_sources(value)
    return packed_change.unpack(value, at, _HEAD.unpack_from(value)[6])
