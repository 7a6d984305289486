"""The state of a queue shard, and the one function that mutates it."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import Counter, deque
from collections.abc import Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, Places, Verb
from lapse.core.queue.instants import Instants
from lapse.core.queue.segment import NOBODY, SIZE, Run, Segment, State
from lapse.core.queue.source import Source
from lapse.core.queue.step import Messages
from lapse.core.queue.subscription import Subscription
from lapse.core.queue.tops import Tops
from lapse.core.queue.trait import NONE, OWN_GROUP, Flag, TraitReader, Traits

REMEMBERED_EXPIRED: Final = 4096
"""So many ranges of expired messages are remembered after their segment is gone, so that an answer can say so."""


class Scheduled(NamedTuple):
    """A message that is not visible yet (L5)."""

    at_ms: int
    deadline_ms: int
    rank: int = 0
    flags: int = 0
    group: int = OWN_GROUP

    def traits(self, of: TraitReader) -> Traits:
        """Its traits, as far as the queue asks for them."""
        flagged = of.priority is not None or of.barrier is not None
        return Traits(
            np.array([self.rank], np.uint64) if of.priority is not None else None,
            np.array([self.flags], np.uint8) if flagged else None,
            np.array([self.group], np.int64) if of.group is not None else None,
        )

    @property
    def due_ms(self) -> int:
        """When something has to happen: it materialises, or its absolute deadline comes first."""
        return min(self.at_ms, self.deadline_ms)


class QueueState:
    """Messages, leases, subscriptions and sources of one shard.

    Attributes:
        segments: live segments by index.
        next_place: where the next message will stand.
        sources: by number; a number is never used again.
        subscriptions: by id, in the order in which they came.
        scheduled: by (source, offset).
        remembered: acknowledgments of messages beyond the target depth, as (source, offset) (Q13).
        paused: whether deliveries are held back (C21).
        dirty: segments that changed since the journal last held them whole, with the sequence of the first change.
        deadlines: which segment has an unleased message that expires first.
        untils: which segment has a lease or delay that ends first.
        dropped: segments that are gone since the journal was last written.
        as_of: during recovery, the last step that a segment read whole already contains.
        barriers: places of barriers that are still there, ascending (Q12).
        ranked: whether priorities count.
        grouped: whether groups count.
        tops: which segment has the message that priority puts first.
        expired: ranges (source, first offset, last offset) that expired and whose segment is gone.
    """

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self.next_place = 0
        self.sources: list[Source] = []
        self.subscriptions: dict[str, Subscription] = {}
        self.scheduled: dict[tuple[int, int], Scheduled] = {}
        self.remembered: set[tuple[int, int]] = set()
        self.paused = False
        self.next_number = 0
        self.dirty: dict[int, int] = {}
        self.sequence = 0
        self.dropped: list[int] = []
        self.as_of: dict[int, int] = {}
        self.deadlines = Instants(lambda index: self._minimum(index).min_deadline_ms)
        self.untils = Instants(lambda index: self._minimum(index).min_until_ms)
        self.expired: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED_EXPIRED)
        self.barriers: list[int] = []
        self.ranked = False
        self.grouped = False
        self.tops = Tops(lambda index: self._minimum(index).best())
        self._bound_groups: Counter[int] = Counter()
        self._by_number: dict[int, Subscription] = {}
        self._source_numbers: dict[tuple[str, int], int] = {}
        self._head = 0
        self._nothing = Segment(-1)

    def _minimum(self, index: int) -> Segment:
        return self.segments.get(index, self._nothing)

    # Sources

    def source_number(self, topic: str, partition: int) -> int:
        """The number of a source, given out at its first message."""
        number = self._source_numbers.get((topic, partition))
        if number is None:
            number = self.add_source(Source(topic, partition))
        return number

    def add_source(self, source: Source) -> int:
        """Give a source its number."""
        number = len(self.sources)
        self.sources.append(source)
        self._source_numbers[source.topic, source.partition] = number
        return number

    def find_source(self, topic: str, partition: int) -> int | None:
        """The number of a source, None if no message of it was ever seen."""
        return self._source_numbers.get((topic, partition))

    # Reading

    def holder(self, number: int) -> Subscription | None:
        """The subscription behind a number in a column."""
        return self._by_number.get(number)

    def spans(self, places: Places) -> Iterator[tuple[Segment, int, int]]:
        """Cut ranges of places at segment borders: (segment, first slot, slot behind the last)."""
        for first, count in places:
            place, end = first, first + count
            while place < end:
                index, slot = divmod(place, SIZE)
                stop = min(SIZE, slot + end - place)
                segment = self.segments.get(index)
                if segment is not None and not (self.as_of and self._contains(index)):
                    yield segment, slot, stop
                place += stop - slot

    def messages(self, segment: Segment, slots: NDArray[np.intp]) -> Iterator[Messages]:
        """What is known of the messages at some slots, ascending, by runs of one source."""
        at = 0
        while at < len(slots):
            run = segment.run_at(int(slots[at]))
            stop = int(np.searchsorted(slots, run.slot + run.count))
            some = slots[at:stop]
            source = self.sources[run.source]
            yield Messages(
                source.topic,
                source.partition,
                (some + (run.offset - run.slot)).astype(np.int64),
                None if segment.deadline_ms is None else segment.deadline_ms[some],
                segment.deliveries[some],
                None if segment.cancels is None else segment.cancels[some],
            )
            at = stop

    def with_available(self) -> Iterator[Segment]:
        """Segments with something available, in the order of places."""
        last = (self.next_place - 1) // SIZE
        while self._head < last:
            segment = self.segments.get(self._head)
            if segment is not None and segment.available:
                break
            self._head += 1
        for index in range(self._head, last + 1):
            segment = self.segments.get(index)
            if segment is not None and segment.available:
                yield segment

    def first_held(self) -> int | None:
        """The first place whose message is still there; None if there is none."""
        for index in sorted(self.segments):
            segment = self.segments[index]
            if segment.held:
                state = segment.state[: segment.used]
                there = (state != State.GONE) & (state != State.EXPIRED)
                return segment.base + int(there.argmax())
        return None

    def bound_groups(self) -> set[int]:
        """Groups of which a message is leased, sent or delayed (Q20, C19)."""
        return set(self._bound_groups)

    def available(self, limit: int, now_ms: int) -> list[int]:
        """The first places that can be delivered, in order, at most `limit`; `now_ms` < 0 = deadlines do not count."""
        found: list[int] = []
        for segment in self.with_available():
            free = segment.state[: segment.used] == State.AVAILABLE
            if now_ms >= 0 and segment.min_deadline_ms <= now_ms and segment.deadline_ms is not None:
                free &= segment.deadline_ms[: segment.used] > now_ms
            slots = np.flatnonzero(free)[: limit - len(found)]
            found.extend((slots + segment.base).tolist())
            if len(found) >= limit:
                break
        return found

    # The one way in which anything changes

    def apply(self, change: Change) -> None:  # noqa: C901  # one line per verb is the point
        """Carry out a change: the only mutation, live and in recovery alike."""
        match change.verb:
            case Verb.ARRIVED:
                self._arrive(change)
            case Verb.LEASED | Verb.SENT:
                self._lease(change, State.LEASED if change.verb is Verb.LEASED else State.SENT)
            case Verb.RETURNED | Verb.CANCELLED:
                self._return(change)
            case Verb.RENEWED:
                for segment, first, stop in self.spans(change.places):
                    _, until_ms = segment.leases()
                    until_ms[first:stop] = change.until_ms
                    self._touch(segment)
                    self._bound(segment, change.until_ms)
            case Verb.SETTLED | Verb.EXPIRED | Verb.RELEASED:
                self._leave(change)
            case Verb.SCHEDULED:
                self.scheduled[change.source, change.offset] = scheduled_of(change)
            case Verb.UNSCHEDULED:
                self.scheduled.pop((change.source, change.offset), None)
            case Verb.SUBSCRIBED:
                self._subscribe(change)
            case Verb.UNSUBSCRIBED:
                gone = self._by_number.pop(change.holder, None)
                if gone is not None:
                    self.subscriptions.pop(gone.id, None)
            case Verb.REMEMBERED:
                self.remembered.add((change.source, change.offset))
            case Verb.HONOURED:
                self.remembered.discard((change.source, change.offset))
            case Verb.PAUSED:
                self.paused = True
            case Verb.RESUMED:
                self.paused = False

    def _contains(self, index: int) -> bool:
        """In recovery: whether a segment was read whole and already contains the step that is applied."""
        return self.as_of.get(index, -1) >= self.sequence

    def _touch(self, segment: Segment) -> None:
        self.dirty.setdefault(segment.index, self.sequence)
        if self.ranked:
            self.tops.touch(segment.index)

    def _note_traits(self, segment: Segment, first: int, stop: int) -> None:
        """Take notice of the traits of messages that came."""
        self.ranked |= segment.ranks is not None
        self.grouped |= segment.groups is not None
        if segment.flags is not None:
            state = segment.state[first:stop]
            there = (state != State.GONE) & (state != State.EXPIRED)
            for slot in np.flatnonzero(there & ((segment.flags[first:stop] & Flag.BARRIER) != 0)).tolist():
                insort(self.barriers, segment.base + first + slot)

    def _bind_groups(self, segment: Segment, first: int, stop: int, by: int) -> None:
        """Count messages of a group that are bound, one way or the other."""
        if segment.groups is None:
            return
        state = segment.state[first:stop]
        bound = (state == State.LEASED) | (state == State.SENT) | (state == State.DELAYED)
        for group in segment.groups[first:stop][bound].tolist():
            if group != OWN_GROUP:
                self._bound_groups[group] += by
                if self._bound_groups[group] <= 0:
                    del self._bound_groups[group]

    def _bound(self, segment: Segment, until_ms: int) -> None:
        if until_ms < segment.min_until_ms:
            segment.min_until_ms = until_ms
            self.untils.note(until_ms, segment.index)

    def _wait(self, segment: Segment, deadlines_ms: NDArray[np.int64]) -> None:
        earliest_ms = int(deadlines_ms.min())
        if earliest_ms < segment.min_deadline_ms:
            segment.min_deadline_ms = earliest_ms
            self.deadlines.note(earliest_ms, segment.index)

    def _arrive(self, change: Change) -> None:
        ((place, count),) = change.places
        offset, done = change.offset, 0
        source = self.sources[change.source]
        while done < count:
            index, slot = divmod(place + done, SIZE)
            some = min(SIZE - slot, count - done)
            if self.as_of and self._contains(index):
                done += some
                continue
            segment = self.segments.get(index)
            if segment is None:
                segment = self.segments[index] = Segment(index)
            segment.state[slot : slot + some] = State.AVAILABLE
            segment.used = slot + some
            segment.held += some
            segment.available += some
            if change.deadlines_ms is not None:
                deadlines_ms = change.deadlines_ms[done : done + some]
                segment.deadlines()[slot : slot + some] = deadlines_ms
                self._wait(segment, deadlines_ms)
            if change.traits is not NONE:
                segment.set_traits(slot, slot + some, change.traits.slice(done, done + some))
                self._note_traits(segment, slot, slot + some)
            _append_run(segment.runs, Run(slot, change.source, offset + done, some))
            source.add(offset + done, place + done, some)
            self._touch(segment)
            done += some
        self.next_place = place + count
        source.next_offset = max(source.next_offset, offset + count)

    def _lease(self, change: Change, state: State) -> None:
        subscription = self._by_number.get(change.holder)
        for segment, first, stop in self.spans(change.places):
            holder, until_ms = segment.leases()
            segment.state[first:stop] = state
            segment.deliveries[first:stop] += 1
            holder[first:stop] = change.holder
            until_ms[first:stop] = change.until_ms
            segment.available -= stop - first
            self._bind_groups(segment, first, stop, 1)
            if subscription is not None:
                subscription.outstanding += stop - first
            if state is State.LEASED:
                self._bound(segment, change.until_ms)
            self._touch(segment)

    def _return(self, change: Change) -> None:
        delayed = change.until_ms > 0
        for segment, first, stop in self.spans(change.places):
            holder, until_ms = segment.leases()
            state = segment.state[first:stop]
            segment.available -= int(np.count_nonzero(state == State.AVAILABLE))
            self._release(segment, first, stop)
            self._bind_groups(segment, first, stop, -1)
            holder[first:stop] = NOBODY
            if change.verb is Verb.CANCELLED:
                segment.cancel_counts()[first:stop] += 1
            if delayed:
                state[:] = State.DELAYED
                until_ms[first:stop] = change.until_ms
                self._bound(segment, change.until_ms)
                self._bind_groups(segment, first, stop, 1)
            else:
                state[:] = State.AVAILABLE
                segment.available += stop - first
                self._head = min(self._head, segment.index)
            if segment.deadline_ms is not None:
                self._wait(segment, segment.deadline_ms[first:stop])
            self._touch(segment)

    def _leave(self, change: Change) -> None:
        to = State.EXPIRED if change.verb is Verb.EXPIRED else State.GONE
        for segment, first, stop in self.spans(change.places):
            state = segment.state[first:stop]
            segment.available -= int(np.count_nonzero(state == State.AVAILABLE))
            segment.held -= int(np.count_nonzero((state != State.GONE) & (state != State.EXPIRED)))
            self._bind_groups(segment, first, stop, -1)
            self._forget_barriers(segment.base + first, segment.base + stop)
            if segment.holder is not None:
                self._release(segment, first, stop)
                segment.holder[first:stop] = NOBODY
            state[:] = to
            if segment.droppable:
                self._drop(segment)
            else:
                self._touch(segment)

    def _forget_barriers(self, first: int, stop: int) -> None:
        """Take out barriers that left; `stop` is the place behind the last."""
        low, high = bisect_left(self.barriers, first), bisect_left(self.barriers, stop)
        del self.barriers[low:high]

    def _release(self, segment: Segment, first: int, stop: int) -> None:
        """Give the holders of some places their backlog back."""
        if segment.holder is None:
            return
        state = segment.state[first:stop]
        bound = segment.holder[first:stop][(state == State.LEASED) | (state == State.SENT)]
        if not len(bound):
            return
        if int(bound[0]) == int(bound[-1]) and bool((bound == bound[0]).all()):
            numbers, counts = [int(bound[0])], [len(bound)]
        else:
            unique, sizes = np.unique(bound, return_counts=True)
            numbers, counts = unique.tolist(), sizes.tolist()
        for number, count in zip(numbers, counts, strict=True):
            subscription = self._by_number.get(number)
            if subscription is not None:
                subscription.outstanding -= count

    def _drop(self, segment: Segment) -> None:
        expired = np.flatnonzero(segment.state == State.EXPIRED)
        if len(expired):
            for messages in self.messages(segment, expired):
                number = self._source_numbers[messages.topic, messages.partition]
                self.expired.extend((number, first, last) for first, last in messages.ranges())
        for number in {run.source for run in segment.runs}:
            self.sources[number].drop(segment, number)
        del self.segments[segment.index]
        self.dirty.pop(segment.index, None)
        self.dropped.append(segment.index)

    def _subscribe(self, change: Change) -> None:
        facts = change.facts
        known = self.subscriptions.get(facts["id"])
        subscription = Subscription(**facts)
        if known is not None:
            subscription.outstanding = known.outstanding
        self.subscriptions[subscription.id] = subscription
        self._by_number[subscription.number] = subscription
        self.next_number = max(self.next_number, subscription.number + 1)

    # Recovery

    def adopt(self, segment: Segment) -> None:
        """Take a segment over as the journal holds it."""
        self.segments[segment.index] = segment
        for run in segment.runs:
            source = self.sources[run.source]
            source.add(run.offset, segment.base + run.slot, run.count)
            source.next_offset = max(source.next_offset, run.offset + run.count)
        self.next_place = max(self.next_place, segment.base + segment.used)

    def settle_indexes(self) -> None:
        """After recovery: derive every index and count that the journal does not hold."""
        self.as_of.clear()
        for segment in list(self.segments.values()):
            segment.recount()
            if segment.droppable:
                self._drop(segment)
        self._head = min(self.segments, default=0)
        for subscription in self.subscriptions.values():
            subscription.outstanding = 0
        self.deadlines = Instants(lambda index: self._minimum(index).min_deadline_ms)
        self.untils = Instants(lambda index: self._minimum(index).min_until_ms)
        self.barriers.clear()
        self._bound_groups.clear()
        for index, segment in sorted(self.segments.items()):
            self._note_traits(segment, 0, segment.used)
            self._bind_groups(segment, 0, segment.used, 1)
            self.tops.touch(index)
            self.deadlines.note(segment.min_deadline_ms, index)
            self.untils.note(segment.min_until_ms, index)
            if segment.holder is not None:
                bound = (segment.state == State.LEASED) | (segment.state == State.SENT)
                for number, count in zip(*np.unique(segment.holder[bound], return_counts=True), strict=True):
                    subscription_or_none = self._by_number.get(int(number))
                    if subscription_or_none is not None:
                        subscription_or_none.outstanding += int(count)


def scheduled_of(change: Change) -> Scheduled:
    """What a SCHEDULED change says of its message."""
    traits = change.traits
    return Scheduled(
        change.until_ms,
        NEVER if change.deadlines_ms is None else int(change.deadlines_ms[0]),
        0 if traits.ranks is None else int(traits.ranks[0]),
        0 if traits.flags is None else int(traits.flags[0]),
        OWN_GROUP if traits.groups is None else int(traits.groups[0]),
    )


def _append_run(runs: list[Run], run: Run) -> None:
    if runs:
        last = runs[-1]
        if (last.source, last.slot + last.count, last.offset + last.count) == (run.source, run.slot, run.offset):
            runs[-1] = Run(last.slot, last.source, last.offset, last.count + run.count)
            return
    runs.append(run)
