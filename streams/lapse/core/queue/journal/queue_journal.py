"""The journal of a queue shard: the records that each step writes (`restored` reads them).

The changelog topic keeps the latest record of every key, so the journal is laid out in keys:

- `d` epoch slot: the changes of one step. Slots are a ring of `RING`. Before a slot is reused, every segment that its
  changes touched has been written whole.
- `g` epoch segment: a whole segment with the sequence of the last step that it contains; no value once it is dropped.
- `c` epoch number: a subscription. `s` epoch source offset: a scheduled message. `a` epoch source offset: a
  remembered acknowledgment. `i` epoch number: message ids that were seen within the window. `y` epoch source offset: a
  dying message. `t` epoch number: a transfer in progress. `r` epoch number: deliveries that count in windows of rates.
  `w` epoch number: a rewind. `h` epoch source stretch: messages that a rewind does not bring back.
- `z` epoch 0: the state of the queue's retirement. `u` epoch 0: when a temporary queue was last used.

The epoch is part of each key. So a worker that still writes after a take-over can neither overwrite nor compact away
records of the new owner. Inherited segments keep keys of older epochs until `maintain` has moved them, a few between
two steps. Until then a late write of the old owner can compact one away, so the changelog's `min.compaction.lag.ms`
must be longer than that. The caller of `restored.restore` decides which epochs count, by their order in the log.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable
from typing import Final

import orjson

from lapse.core.portions import PORTION, Portions, in_lots, run_to_end
from lapse.core.queue.change import Change, ChangeKind
from lapse.core.queue.journal.journal_record import AS_OF, KEPT_APART, KEY, NAMED_KEY, encode_step
from lapse.core.queue.journal.restored import Restored
from lapse.core.queue.retirement.ending import entry
from lapse.core.queue.schedule import scheduled_record
from lapse.core.queue.schedule.scheduled import parse_scheduled
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Step

RING: Final = 256
Items = list[tuple[bytes, bytes | None]]
_AHEAD: Final = 16
"""How many segments are written whole between two steps before it is necessary."""

_MOVED: Final = 4
"""How many inherited segments are written under the new epoch between two steps."""

_EPOCH: Final = struct.Struct(">q")


class QueueJournal:
    """Encodes the steps of one epoch of a shard.

    Args:
        state: the shard's state.
        epoch: number of the epoch.
        restored: the content of the changelog at take-over; None for a new shard.
    """

    def __init__(self, state: QueueState, epoch: int, restored: Restored | None = None) -> None:
        self._state = state
        self._epoch = epoch
        self._whole_at: dict[int, bytes] = dict(restored.whole_at) if restored else {}
        self._obsolete: list[bytes] = list(restored.obsolete) if restored else []
        self._released = list(restored.released) if restored else []
        self._inherited: list[int] = sorted(self._whole_at, reverse=True)

    def begin(self) -> Items:
        """Return all records of `beginning` at once."""
        return run_to_end(self.beginning())

    def beginning(self) -> Portions[Items]:
        """Return the records of an epoch's first step: all state outside whole segments, then deletions of old keys.

        They may exceed one batch. Nothing else is written before all of them are durable.
        """
        state, epoch = self._state, self._epoch
        items: Items = []
        for index in list(state.dirty):
            items += self._segment_records(index)
            yield
        for subscription in state.subscriptions.values():
            key = KEY.pack(b"c", epoch, subscription.number)
            items.append((key, json.dumps(subscription.facts()).encode()))
        for some in in_lots(state.scheduled.packed()):
            items += [(NAMED_KEY.pack(b"s", epoch, *name), packed) for name, packed in some]
            yield
        for transfer in state.transfers:
            items.append((KEY.pack(b"t", epoch, transfer.number), json.dumps(transfer.facts()).encode()))
        for rewind in state.rewinds:
            items.append((KEY.pack(b"w", epoch, rewind.number), json.dumps(rewind.facts()).encode()))
        for stretch, departed in state.rewinds.departed.items():
            items.append((NAMED_KEY.pack(b"h", epoch, *stretch), json.dumps(departed.facts()).encode()))
        for names in in_lots(state.remembered):
            items += [(NAMED_KEY.pack(b"a", epoch, *name), b"") for name in names]
            yield
        for letters in in_lots(state.pending.items()):
            items += [(NAMED_KEY.pack(b"y", epoch, *name), json.dumps(one.facts()).encode()) for name, one in letters]
            yield
        for number, chunk in state.repeats.chunks.items():
            items.append((KEY.pack(b"i", epoch, number), json.dumps(chunk).encode()))
            yield
        for number, batch in state.counted.batches.items():
            items.append((KEY.pack(b"r", epoch, number), orjson.dumps(batch.facts())))
        items += [(KEY.pack(kind, epoch, 0), value) for kind, value in state.ending.entries()]
        items.append((KEY.pack(b"d", epoch, state.sequence % RING), encode_step(state, self._released)))
        for keys in in_lots(self._obsolete, 16 * PORTION):
            items += [(key, None) for key in keys]
            yield
        self._obsolete.clear()
        items += self._dropped_segments()
        state.sequence += 1
        return items

    def maintain(self) -> Items:
        """Return the segments to write whole before the next step, so that the ring's oldest slot becomes free.

        Call it between steps, since segments are written as the last durable step left them. The result may exceed a
        batch.
        """
        state = self._state
        items: Items = []
        while self._inherited and len(items) < _MOVED:
            index = self._inherited.pop()
            if self._has_older_key(index):
                items += self._segment_records(index)
        if not state.dirty:
            return items
        soon, now = state.sequence - RING // 2, state.sequence - RING + 1
        for index, since in list(state.dirty.items()):
            if since <= now or (since <= soon and len(items) < _AHEAD):
                items += self._segment_records(index)
        return items

    def encode(self, step: Step) -> Items:
        """Return the records of a step, all of which go into one batch."""
        state = self._state
        apart = [change for change in step.changes if change.kind in KEPT_APART]
        items: Items = [self._separate_record(one) for one in apart if one.kind is not ChangeKind.DEPARTED]
        items += self._departed_records({(one.source, one.offset) for one in apart if one.kind is ChangeKind.DEPARTED})
        items.append((KEY.pack(b"d", self._epoch, state.sequence % RING), encode_step(state, step.changes)))
        items += self._dropped_segments()
        state.sequence += 1
        return items

    def lost(self, step: Step) -> Items:
        """Return the records that say, ahead of a step's own, which of its subscriptions have lost their consumers."""
        return [(KEY.pack(b"c", self._epoch, one["number"]), json.dumps(one).encode()) for one in step.lost]

    def _dropped_segments(self) -> Items:
        state = self._state
        items: Items = []
        for index in state.dropped:
            key = self._whole_at.pop(index, None)
            if key is not None:
                items.append((key, None))
        state.dropped.clear()
        return items

    def _separate_record(self, change: Change) -> tuple[bytes, bytes | None]:
        if change.kind is ChangeKind.SUBSCRIBED:
            return KEY.pack(b"c", self._epoch, change.holder), json.dumps(change.facts).encode()
        if change.kind is ChangeKind.UNSUBSCRIBED:
            return KEY.pack(b"c", self._epoch, change.holder), None
        if change.kind in (ChangeKind.REMEMBERED, ChangeKind.HONOURED):
            key = NAMED_KEY.pack(b"a", self._epoch, change.source, change.offset)
            return key, b"" if change.kind is ChangeKind.REMEMBERED else None
        if change.kind in (ChangeKind.LETTER_PENDING, ChangeKind.LETTER_WRITTEN):
            key = NAMED_KEY.pack(b"y", self._epoch, change.source, change.offset)
            return key, json.dumps(change.facts).encode() if change.kind is ChangeKind.LETTER_PENDING else None
        if change.kind in (ChangeKind.IDENTIFIED, ChangeKind.FORGOTTEN):
            chunk = (change.source, change.until_ms, change.facts.get("ids"))
            value = json.dumps(chunk).encode() if change.kind is ChangeKind.IDENTIFIED else None
            return KEY.pack(b"i", self._epoch, change.offset), value
        if change.kind in (ChangeKind.COUNTED, ChangeKind.UNCOUNTED):
            value = orjson.dumps(change.facts) if change.kind is ChangeKind.COUNTED else None
            return KEY.pack(b"r", self._epoch, change.offset), value
        if change.kind in (ChangeKind.RETIRING, ChangeKind.USED):
            kind, ending = entry(change)
            return KEY.pack(kind, self._epoch, 0), ending
        if change.kind in (ChangeKind.TRANSFER, ChangeKind.REWIND):
            value = json.dumps(change.facts).encode() if change.facts else None
            kind = b"t" if change.kind is ChangeKind.TRANSFER else b"w"
            return KEY.pack(kind, self._epoch, change.holder), value
        key = NAMED_KEY.pack(b"s", self._epoch, change.source, change.offset)
        if change.kind is ChangeKind.UNSCHEDULED or change.deadlines_ms is None:
            return key, None
        return key, scheduled_record.pack(parse_scheduled(change))

    def _departed_records(self, stretches: Iterable[tuple[int, int]]) -> Items:
        """Return the notes about stretches as a step has left them, since a step may change a note very often."""
        departed, items = self._state.rewinds.departed, list[tuple[bytes, bytes | None]]()
        for stretch in sorted(stretches):
            value = json.dumps(departed[stretch].facts()).encode() if stretch in departed else None
            items.append((NAMED_KEY.pack(b"h", self._epoch, *stretch), value))
        return items

    def _has_older_key(self, index: int) -> bool:
        """Return whether a segment is stored under the key of an older epoch."""
        return self._whole_at.get(index, b"")[1:9] not in (b"", _EPOCH.pack(self._epoch))

    def _segment_records(self, index: int) -> Items:
        state = self._state
        state.dirty.pop(index, None)
        key = KEY.pack(b"g", self._epoch, index)
        items: Items = [(key, AS_OF.pack(state.sequence - 1) + bytes(state.segments.encoded(index)))]
        before = self._whole_at.get(index)
        if before is not None and before != key:
            items.append((before, None))
        self._whole_at[index] = key
        return items
