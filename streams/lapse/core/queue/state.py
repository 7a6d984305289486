"""The state of a queue shard, and `apply`, the only function that mutates it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator
from typing import Final

import numpy as np

from lapse.core.generation import FIRST_REWOUND
from lapse.core.portions import Portions, clear_in_portions
from lapse.core.queue.arrival import repeats
from lapse.core.queue.arrival.source import Source
from lapse.core.queue.arrival.sources import Sources
from lapse.core.queue.arrival.trait import NONE
from lapse.core.queue.change import Change, ChangeKind, Places, transferred_counts
from lapse.core.queue.life.message_state import FILLS, THERE, State
from lapse.core.queue.life.movement import DEFERRALS, MOVES
from lapse.core.queue.life.mover import Mover
from lapse.core.queue.life.table import ImpossibleTransition
from lapse.core.queue.rates.counted import Counted
from lapse.core.queue.removal.pending_letter import PendingLetter, parse_pending_letter
from lapse.core.queue.retirement.ending import Ending
from lapse.core.queue.rewind.rewinds import Rewinds
from lapse.core.queue.schedule.agenda import Agenda
from lapse.core.queue.schedule.scheduled import parse_scheduled
from lapse.core.queue.schedule.scheduled_messages import ScheduledMessages
from lapse.core.queue.segments.cut import by_segment, cut
from lapse.core.queue.segments.index import Index
from lapse.core.queue.segments.segment import (
    AVAILABLE,
    EXPIRED,
    SIZE,
    Segment,
    Where,
)
from lapse.core.queue.segments.spill import Segments
from lapse.core.queue.segments.summary import Outline
from lapse.core.queue.segments.tops import Key
from lapse.core.queue.subscriptions.subscription import Subscription
from lapse.core.queue.subscriptions.subscription_table import SubscriptionTable
from lapse.core.queue.transfer.transfers import Transfers
from lapse.core.repeats import Repeats

REMEMBERED_EXPIRED: Final = 4096
"""How many ranges of expired messages are remembered after their segment was dropped, for answers."""

_ARRIVED: Final = ChangeKind.ARRIVED  # a look-up in the enumeration takes five times as long

_NOTHING: Final = Segment(-1)
"""An empty, read-only segment for dropped ones. It takes 20 KiB, so all shards share it."""


class QueueState:
    """Messages, leases, subscriptions and sources of one shard.

    Args:
        segments: an empty container for segments, which may spill them to disk; None = all stay in memory.

    Attributes:
        segments: the live segments by index.
        next_place: the place that the next message gets.
        sources: the sources by number.
        subscription_table: the subscriptions.
        subscriptions: the subscriptions by id, in the order in which they began.
        scheduled: messages that are not visible yet.
        agenda: the order in which scheduled messages become due or expire.
        pending: messages whose letters are refused, as (source, offset), in the order of removal (C27).
        remembered: acknowledged messages beyond the target depth, as (source, offset) (Q13).
        repeats: message ids that were seen within the window (X6).
        counted: deliveries that count in the windows of rates (Q25).
        transfers: unfinished transfers of messages (Q17).
        rewinds: the remembered rewinds, and notes of messages that must not come back (Q22).
        paused: whether deliveries are paused (C21).
        ending: the shard's last use and its retirement (C4, C39, Q18).
        dirty: by segment index, the sequence of the first change since the journal last held the segment whole.
        dropped: indexes of segments dropped since the journal was last written.
        recovering: whether changes come from the journal.
        as_of: during recovery, by segment index, the last step that the segment contains already.
        index: the indexes over the segments.
        expired: ranges (source, first offset, last offset) of expired messages whose segment was dropped.
    """

    def __init__(self, segments: Segments | None = None) -> None:
        self.segments = Segments() if segments is None else segments
        self.segments.resting.append(self._prepare_spill)
        self.next_place = 0
        self.sources = Sources()
        self.subscription_table = SubscriptionTable()
        self.subscriptions: dict[str, Subscription] = self.subscription_table.by_id
        self.scheduled = ScheduledMessages()
        self.agenda = Agenda(self.sources, self.scheduled)
        self.pending: dict[tuple[int, int], PendingLetter] = {}
        self.remembered: set[tuple[int, int]] = set()
        self.repeats = Repeats()
        self.transfers = Transfers()
        self.counted = Counted()
        self.rewinds = Rewinds(self.sources)
        self.paused = False
        self.ending = Ending()
        self.dirty: dict[int, int] = {}
        self.sequence = 0
        self.dropped: list[int] = []
        self.as_of: dict[int, int] = {}
        self.expired: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED_EXPIRED)
        self._head = 0
        self._first = 0
        self._first_pending: int | None = None
        self.recovering = False
        self.index = Index(self.segments, self._best)
        self._mover = Mover(self)

    def outline(self, index: int) -> Outline:
        """Return the outline of a segment; that of an empty one if it was dropped."""
        return self.segments.outline(index) or _NOTHING

    def look(self, index: int) -> Segment | None:
        """Return a segment for reading only; None if it was dropped."""
        return self.segments.look(index) if index in self.segments else None

    def _prepare_spill(self, segment: Segment) -> None:
        self.index.update_before_spill(segment)

    def _best(self, index: int) -> Key | None:
        return self.segments.look(index).best_key() if index in self.segments else None

    # Reading

    def spans(self, places: Places) -> Iterator[tuple[Segment, int, int]]:
        """Cut ranges of places at segment borders, and yield (segment, first slot, slot after the last)."""
        for index, slot, stop in cut(places, SIZE):
            segment = self.segments.find(index)
            if segment is not None and not (self.as_of and self._contains(index)):
                yield segment, slot, stop

    def parts(self, places: Places) -> Iterable[tuple[Segment, Where]]:
        """Return each segment of ascending places once, with the slots in it."""
        if len(places) == 1 and not self.as_of:
            first, count = places[0]
            index, slot = divmod(first, SIZE)
            if slot + count <= SIZE:  # true for most changes, and faster than a generator
                segment = self.segments.find(index)
                return () if segment is None else ((segment, slice(slot, slot + count)),)
        return self._parts(places)

    def _parts(self, places: Places) -> Iterator[tuple[Segment, Where]]:
        for index, where in by_segment(places, SIZE):
            segment = self.segments.find(index)
            if segment is not None and not (self.as_of and self._contains(index)):
                yield segment, where

    def with_available(self, hopeless: Callable[[int, int], bool] | None = None) -> Iterator[Segment]:
        """Yield segments with available messages by place, for reading only.

        Args:
            hopeless: returns whether to skip a segment, given its index and its number of used slots; None = none.
        """
        for index in range(self.first_available_segment(), (self.next_place - 1) // SIZE + 1):
            outline = self.outline(index)
            if outline.available and not (hopeless is not None and hopeless(index, outline.used)):
                yield self.segments.look(index)

    def first_with_available(self) -> Segment | None:
        """Return the first segment with available messages, for reading only; None if there is none."""
        index = self.first_available_segment()
        outline = self.segments.outline(index)
        if outline is None or not outline.available:
            return None
        return outline if isinstance(outline, Segment) else self.segments.look(index)

    def is_last(self, segment: Segment) -> bool:
        """Return whether all later places are unused."""
        return segment.base + segment.used == self.next_place

    def first_available_segment(self) -> int:
        """Return the index of a segment before which no message is available."""
        last = (self.next_place - 1) // SIZE
        while self._head < last and not self.outline(self._head).available:
            self._head += 1
        return self._head

    def first_occupied(self) -> int | None:
        """Return the first place whose message is still there; None if there is none."""
        # An empty place stays empty, so the search continues from the last result.
        while self._first < self.next_place:
            index, slot = divmod(self._first, SIZE)
            if self.outline(index).occupied:
                segment = self.segments.look(index)
                there = THERE[segment.state[slot : segment.used]]
                if there.any():
                    self._first += int(there.argmax())
                    return self._first
            self._first = min((index + 1) * SIZE, self.next_place)
        return None

    def first_pending(self) -> int:
        """Return the first place of a message whose letter is refused; `next_place` if there is none (C48)."""
        if not self.pending:
            return self.next_place
        if self._first_pending is None:
            self._first_pending = min(one.place for one in self.pending.values())
        return self._first_pending

    def held_sources(self) -> Iterator[Source]:
        """Yield the sources of which the shard may hold messages, scheduled ones included."""
        for number, source in enumerate(self.sources):
            if source.may_hold_messages or self.scheduled.count(number):
                yield source

    # Changes

    def apply(self, change: Change) -> None:
        """Carry out a change. This is the only mutation, in operation and in recovery alike."""
        move = MOVES.get(change.kind)
        if move is not None:
            self._mover.move(change, move)
        elif change.kind is _ARRIVED:
            self._arrive(change)
        else:
            self._apply_rare(change)

    def _apply_rare(self, change: Change) -> None:
        """Carry out a change of another kind than the life of most messages consists of."""
        match change.kind:
            case ChangeKind.SCHEDULED | ChangeKind.UNSCHEDULED:
                self._apply_scheduled(change)
            case ChangeKind.SUBSCRIBED:
                self.subscription_table.add(change.facts)
            case ChangeKind.UNSUBSCRIBED:
                self.subscription_table.remove(change.holder)
            case ChangeKind.REMEMBERED | ChangeKind.HONOURED | ChangeKind.LETTER_PENDING | ChangeKind.LETTER_WRITTEN:
                self._apply_note(change)
            case ChangeKind.IDENTIFIED | ChangeKind.FORGOTTEN:
                repeats.apply(self.repeats, change)
            case ChangeKind.REPLACED:
                self.sources.replace(change.source)
            case ChangeKind.COUNTED | ChangeKind.UNCOUNTED:
                self.counted.apply(change)
            case ChangeKind.TRANSFER:
                self.transfers.apply(change)
            case _:
                self._apply_to_shard(change)

    def _apply_to_shard(self, change: Change) -> None:
        match change.kind:
            case ChangeKind.PAUSED | ChangeKind.RESUMED:
                self.paused = change.kind is ChangeKind.PAUSED
            case ChangeKind.REWIND:
                self.rewinds.apply(change)
            case ChangeKind.DEPARTED:
                self.rewinds.depart(change)
            case _:
                self.ending.apply(change)

    def _apply_note(self, change: Change) -> None:
        """Remember or forget a message that has no place yet, or no place any more."""
        source_offset = change.source, change.offset
        match change.kind:
            case ChangeKind.REMEMBERED:
                self.remembered.add(source_offset)
            case ChangeKind.HONOURED:
                self.remembered.discard(source_offset)
            case ChangeKind.LETTER_PENDING:
                self.pending[source_offset] = letter = parse_pending_letter(change.facts)
                if self._first_pending is not None:
                    self._first_pending = min(self._first_pending, letter.place)
            case ChangeKind.LETTER_WRITTEN:
                written = self.pending.pop(source_offset, None)
                if written is not None and written.place == self._first_pending:
                    self._first_pending = None

    def _contains(self, index: int) -> bool:
        """Return whether, in recovery, a whole segment already contains the step that is applied."""
        return self.as_of.get(index, -1) >= self.sequence

    def _touch(self, segment: Segment, other_available: bool = True) -> None:
        """Note a change of a segment, and whether other messages than before are available."""
        self.dirty.setdefault(segment.index, self.sequence)
        if self.segments.spill_store is not None:
            self.segments.note_changed(segment)
        if other_available:
            self.index.touch(segment)

    def _arrive(self, change: Change) -> None:
        ((place, count),) = change.places
        offset, done = change.offset, 0
        source = self.sources[change.source]
        while done < count:
            index, slot = divmod(place + done, SIZE)
            fitting = count - done if slot + count - done <= SIZE else SIZE - slot
            if self.as_of and self._contains(index):
                done += fitting
                continue
            segment = self.segments.find(index)
            if segment is None:
                segment = self.segments[index] = Segment(index)
            entered = slice(slot, slot + fitting)
            where: int | slice = slot if fitting == 1 else entered  # a number takes a tenth
            segment.state[where] = AVAILABLE
            segment.used = slot + fitting
            segment.occupied += fitting
            segment.available += fitting
            if change.deadlines_ms is not None:
                deadlines_ms = change.deadlines_ms
                if fitting < count:
                    deadlines_ms = deadlines_ms[done : done + fitting]
                segment.deadlines()[where] = deadlines_ms.item() if fitting == 1 else deadlines_ms
                self.index.note_deadlines(segment, deadlines_ms)
            if change.facts:
                counts = transferred_counts(change)
                segment.delivery_counts()[slot : slot + fitting] = counts.deliveries
                if counts.cancels:
                    segment.cancel_counts()[slot : slot + fitting] = counts.cancels
            if change.traits is not NONE:
                segment.set_traits(slot, slot + fitting, change.traits.slice(done, done + fitting))
                self.index.note_traits(segment, slot, slot + fitting)
            self.index.note_available(segment, entered)
            segment.append_run(slot, change.source, offset + done, fitting)
            source.add(offset + done, place + done, fitting)
            self._touch(segment)
            done += fitting
        self.next_place = place + count
        if source.next_offset < offset + count and offset < FIRST_REWOUND:
            source.next_offset = offset + count

    def _apply_scheduled(self, change: Change) -> None:
        """Add, change or remove a message that has no place yet."""
        source_offset = change.source, change.offset
        known = self.scheduled.get(*source_offset)
        before = State.UNREAD if known is None else known.state
        scheduled = None if change.kind is ChangeKind.UNSCHEDULED else parse_scheduled(change)
        after = State.GONE if scheduled is None else scheduled.state
        if (change.kind, before, after) not in DEFERRALS:
            raise ImpossibleTransition(
                f"{change.kind.name} cannot take a message from {before.name} to {after.name}: {source_offset}"
            )
        if scheduled is None:
            self.scheduled.discard(*source_offset)
        else:
            self.scheduled.add(*source_offset, scheduled)
        self.agenda.sweep()

    def finish_change(self, segment: Segment, other_available: bool) -> None:
        """Note a change of messages of a segment, and drop the segment if none is left.

        Args:
            segment: the segment.
            other_available: whether other messages than before are available.
        """
        if not segment.occupied and segment.is_droppable:
            self._drop(segment)
        else:
            self._touch(segment, other_available)

    def note_head(self, index: int) -> None:
        """Note that a message of a segment has become available again."""
        self._head = min(self._head, index)

    def _drop(self, segment: Segment) -> None:
        expired = np.flatnonzero(segment.state == EXPIRED)
        for number, messages in self.sources.by_source(segment, expired):
            self.expired.extend((number, first, last) for first, last in messages.ranges())
        self.sources.drop(segment)
        del self.segments[segment.index]
        self.index.note_dropped(segment)
        self.dirty.pop(segment.index, None)
        self.dropped.append(segment.index)

    # Recovery

    def adopt(self, segment: Segment) -> None:
        """Add a segment of the journal."""
        self.segments.add_restored(segment)
        for run in segment.runs:
            source = self.sources[run.source]
            source.add(run.offset, segment.base + run.slot, run.count)
            if run.offset < FIRST_REWOUND:
                source.next_offset = max(source.next_offset, run.offset + run.count)
        self.segments.make_room()

    def compute_indexes(self) -> Portions[None]:
        """Compute, after recovery, every index and count that the journal does not hold."""
        self.recovering = False
        self.as_of.clear()
        self.index = Index(self.segments, self._best)
        self.subscription_table.forget_outstanding()
        for index in sorted(self.segments):
            segment = self.segments[index]
            segment.recount()
            if segment.is_droppable:
                self._drop(segment)
            else:
                self.index.add(segment)
                self._count_bound(segment)
            self.segments.make_room()
            yield
        self._head = min(self.segments, default=0)
        self.segments.loads = 0
        yield from self.agenda.restore_entries()

    def release_memory(self) -> Portions[None]:
        """Free the large parts of the state, in portions. The state is not used afterwards."""
        yield from self.scheduled.release_memory()
        yield from self.agenda.release_memory()
        yield from self.repeats.release_memory()
        yield from clear_in_portions(self.pending)

    def _count_bound(self, segment: Segment) -> None:
        """Count the outstanding messages of the holders in a segment."""
        if segment.holder is not None:
            self.subscription_table.count_each(segment.holder[FILLS[segment.state]], 1)
