"""The state of a queue shard, and the one function that mutates it."""

from __future__ import annotations

from collections import deque
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

REMEMBERED_EXPIRED: Final = 4096
"""So many ranges of expired messages are remembered after their segment is gone, so that an answer can say so."""


class Scheduled(NamedTuple):
    """A message that is not visible yet (L5)."""

    at_ms: int
    deadline_ms: int

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
        paused: whether deliveries are held back (C21).
        dirty: segments that changed since the journal last held them whole, with the sequence of the first change.
        deadlines: which segment has an unleased message that expires first.
        untils: which segment has a lease or delay that ends first.
        dropped: segments that are gone since the journal was last written.
        as_of: during recovery, the last step that a segment read whole already contains.
        expired: ranges (source, first offset, last offset) that expired and whose segment is gone.
    """

    def __init__(self) -> None:
        self.segments: dict[int, Segment] = {}
        self.next_place = 0
        self.sources: list[Source] = []
        self.subscriptions: dict[str, Subscription] = {}
        self.scheduled: dict[tuple[int, int], Scheduled] = {}
        self.paused = False
        self.next_number = 0
        self.dirty: dict[int, int] = {}
        self.sequence = 0
        self.dropped: list[int] = []
        self.as_of: dict[int, int] = {}
        self.deadlines = Instants(lambda index: self._minimum(index).min_deadline_ms)
        self.untils = Instants(lambda index: self._minimum(index).min_until_ms)
        self.expired: deque[tuple[int, int, int]] = deque(maxlen=REMEMBERED_EXPIRED)
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

    def available(self, limit: int, now_ms: int) -> list[int]:
        """The first places that can be delivered, in order, at most `limit`; `now_ms` < 0 = deadlines do not count."""
        found: list[int] = []
        last = (self.next_place - 1) // SIZE
        while self._head < last:
            segment = self.segments.get(self._head)
            if segment is not None and segment.available:
                break
            self._head += 1
        index = self._head
        while len(found) < limit and index <= last:
            segment = self.segments.get(index)
            if segment is not None and segment.available:
                free = segment.state[: segment.used] == State.AVAILABLE
                if now_ms >= 0 and segment.min_deadline_ms <= now_ms and segment.deadline_ms is not None:
                    free &= segment.deadline_ms[: segment.used] > now_ms
                slots = np.flatnonzero(free)[: limit - len(found)]
                found.extend((slots + segment.base).tolist())
            index += 1
        return found

    # The one way in which anything changes

    def apply(self, change: Change) -> None:
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
            case Verb.SETTLED | Verb.EXPIRED:
                self._leave(change)
            case Verb.SCHEDULED:
                deadline_ms = NEVER if change.deadlines_ms is None else int(change.deadlines_ms[0])
                self.scheduled[change.source, change.offset] = Scheduled(change.until_ms, deadline_ms)
            case Verb.UNSCHEDULED:
                self.scheduled.pop((change.source, change.offset), None)
            case Verb.SUBSCRIBED:
                self._subscribe(change)
            case Verb.UNSUBSCRIBED:
                gone = self._by_number.pop(change.holder, None)
                if gone is not None:
                    self.subscriptions.pop(gone.id, None)
            case Verb.PAUSED:
                self.paused = True
            case Verb.RESUMED:
                self.paused = False

    def _contains(self, index: int) -> bool:
        """In recovery: whether a segment was read whole and already contains the step that is applied."""
        return self.as_of.get(index, -1) >= self.sequence

    def _touch(self, segment: Segment) -> None:
        self.dirty.setdefault(segment.index, self.sequence)

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
            holder[first:stop] = NOBODY
            if change.verb is Verb.CANCELLED:
                segment.cancel_counts()[first:stop] += 1
            if delayed:
                state[:] = State.DELAYED
                until_ms[first:stop] = change.until_ms
                self._bound(segment, change.until_ms)
            else:
                state[:] = State.AVAILABLE
                segment.available += stop - first
                self._head = min(self._head, segment.index)
            if segment.deadline_ms is not None:
                self._wait(segment, segment.deadline_ms[first:stop])
            self._touch(segment)

    def _leave(self, change: Change) -> None:
        to = State.GONE if change.verb is Verb.SETTLED else State.EXPIRED
        for segment, first, stop in self.spans(change.places):
            state = segment.state[first:stop]
            segment.available -= int(np.count_nonzero(state == State.AVAILABLE))
            segment.held -= int(np.count_nonzero((state != State.GONE) & (state != State.EXPIRED)))
            if segment.holder is not None:
                self._release(segment, first, stop)
                segment.holder[first:stop] = NOBODY
            state[:] = to
            if segment.droppable:
                self._drop(segment)
            else:
                self._touch(segment)

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
        for index, segment in sorted(self.segments.items()):
            self.deadlines.note(segment.min_deadline_ms, index)
            self.untils.note(segment.min_until_ms, index)
            if segment.holder is not None:
                bound = (segment.state == State.LEASED) | (segment.state == State.SENT)
                for number, count in zip(*np.unique(segment.holder[bound], return_counts=True), strict=True):
                    subscription_or_none = self._by_number.get(int(number))
                    if subscription_or_none is not None:
                        subscription_or_none.outstanding += int(count)


def _append_run(runs: list[Run], run: Run) -> None:
    if runs:
        last = runs[-1]
        if (last.source, last.slot + last.count, last.offset + last.count) == (run.source, run.slot, run.offset):
            runs[-1] = Run(last.slot, last.source, last.offset, last.count + run.count)
            return
    runs.append(run)
