"""Decisions: what all parts of a shard use to change it. Each decision is applied at once and added to the step."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.narrow_order import argsort_narrow, inverse_of
from lapse.core.queue.arrival.trait import Traits
from lapse.core.queue.change import Change, Places, join_places, with_counts
from lapse.core.queue.inquiry.horizon import Horizon
from lapse.core.queue.inquiry.matching import YES, Matching
from lapse.core.queue.life.message_state import FILLS, state_mask
from lapse.core.queue.life.table import Row
from lapse.core.queue.segments.segment import SIZE, Segment, State, slots_of
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.state import QueueState
from lapse.core.queue.step import Messages, Removal, Step
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.transfer_counts import NONE as NO_COUNTS
from lapse.core.transfer_counts import Counts

Slots = list[tuple[Segment, NDArray[np.intp]]]
"""Places by segment: the ascending slots of each."""


class Decisions:
    """The state, the settings, and the one way to carry out a decision.

    Attributes:
        settings: the queue's settings.
        state: the shard's state.
        matching: what is known of which messages match which filters.
        horizon: the range of the purge or settlement by filter that is being carried out.
        began_ms: start of the owner's epoch, ms since 1970; no decision is dated before it.
    """

    def __init__(self, settings: QueueSettings, state: QueueState, matching: Matching) -> None:
        self.settings = settings
        self.state = state
        self.matching = matching
        self.horizon = Horizon()
        self.began_ms = 0
        self._expires = settings.expiration.enabled

    def apply_change(self, change: Change, step: Step) -> None:
        """Apply a change and add it to the step."""
        state, known = self.state, len(self.state.dropped)
        state.apply(change)
        step.changes.append(change)
        if len(state.dropped) > known:
            self.matching.drop(state.dropped[known:])

    def enter(
        self,
        row: Row,
        source: int,
        offset: int,
        deadlines_ms: NDArray[np.int64],
        traits: Traits,
        step: Step,
        counts: Counts = NO_COUNTS,
    ) -> None:
        """Give consecutive messages of a source the next places, as a row says; `counts` is for a single message."""
        self.apply_change(
            Change(
                row.changes[-1],
                [(self.state.next_place, len(deadlines_ms))],
                source=source,
                offset=offset,
                deadlines_ms=None if deadlines_ms.item(0) == NEVER and (deadlines_ms == NEVER).all() else deadlines_ms,
                traits=traits,
                facts=with_counts({}, counts),
            ),
            step,
        )

    def deadlines_count_ms(self, now_ms: int) -> int:
        """Return the instant up to which deadlines count as passed; -1 if expiration is off."""
        return now_ms if self._expires else -1

    def decided_ms(self, at_ms: int) -> int:
        """Return the instant that dates a decision effective at `at_ms`: not before the epoch began (C53)."""
        return max(at_ms, self.began_ms)

    def refuse(
        self,
        number: int,
        offset: int,
        deadline_ms: int,
        reasons: tuple[Reason, ...],
        at_ms: int,
        step: Step,
        detail: str = "",
        followers: int = 0,
    ) -> None:
        """Record the removal of a message that never had a place.

        `followers` is the number of later messages of the source that already have places.
        """
        self.refuse_one(self.unplaced_message(number, offset, deadline_ms), reasons, at_ms, step, detail, followers)

    def refuse_one(
        self,
        messages: Messages,
        reasons: tuple[Reason, ...],
        at_ms: int,
        step: Step,
        detail: str,
        followers: int = 0,
    ) -> None:
        """Record the removal of one message without a place, given as `Messages` with its counts."""
        self.record_removal(
            messages, np.array([self.state.next_place - followers], np.int64), reasons, at_ms, step, detail
        )

    def refuse_all(
        self,
        number: int,
        messages: Sequence[tuple[int, int, Counts]],
        reasons: tuple[Reason, ...],
        at_ms: int,
        step: Step,
        detail: str,
    ) -> None:
        """Record the removal of messages of one source without places, as (offset, deadline, counts) by offset."""
        source = self.state.sources[number]
        columns = np.array([(offset, deadline_ms, *counts) for offset, deadline_ms, counts in messages], np.int64)
        removed = Messages(
            source.topic,
            source.partition,
            columns[:, 0].copy(),
            None if bool((columns[:, 1] == NEVER).all()) else columns[:, 1].copy(),
            columns[:, 2].astype(np.uint32),
            columns[:, 3].astype(np.uint32) if columns[:, 3].any() else None,
        )
        self.record_removal(
            removed, np.full(len(messages), self.state.next_place, np.int64), reasons, at_ms, step, detail
        )

    def record_removal(
        self,
        messages: Messages,
        places: NDArray[np.int64],
        reasons: tuple[Reason, ...],
        at_ms: int,
        step: Step,
        detail: str = "",
        subscription: str = "",
    ) -> None:
        """Record the removal of messages for reasons, with dead letters if the queue writes them for these reasons."""
        letter = self.settings.writes_letter(reasons)
        number = self.state.sources.find(messages.topic, messages.partition)
        incarnation = 0 if number is None else self.state.sources[number].since_epoch
        at_ms = self.decided_ms(at_ms)
        step.removals.append(Removal(messages, reasons, at_ms, letter, detail, subscription, places, incarnation))

    def record_event(
        self, kind: EventKind, slots: Slots, now_ms: int, step: Step, subscription: str, detail: str
    ) -> None:
        """Record an event about messages, one per run of one source."""
        for messages in self.messages(slots):
            step.events.append(ShardEvent(kind, now_ms, messages, subscription, detail))

    # Look-ups

    def unplaced_message(self, number: int, offset: int, deadline_ms: int, counts: Counts = NO_COUNTS) -> Messages:
        """Return one message without a place; `number` is its source's, `counts` come from another deployment."""
        source = self.state.sources[number]
        return Messages(
            source.topic,
            source.partition,
            np.array([offset], np.int64),
            None if deadline_ms == NEVER else np.array([deadline_ms], np.int64),
            np.array([counts.deliveries], np.uint32),
            np.array([counts.cancels], np.uint32) if counts.cancels else None,
        )

    def messages(self, slots: Slots) -> Iterable[Messages]:
        """Return messages for events and deliveries, in runs of one source."""
        if len(slots) == 1:
            return self.state.sources.messages(*slots[0])
        return chain.from_iterable(self.state.sources.messages(segment, some) for segment, some in slots)

    def messages_at(self, places: list[int] | NDArray[np.int64], in_order: Places | None = None) -> list[Messages]:
        """Return messages in runs of one source, in the order of the given places; `in_order` is the same as ranges."""
        if len(places) == 1:
            index, slot = divmod(int(places[0]), SIZE)
            segment = self.state.segments.find(index)
            return [] if segment is None else [self.state.sources.find_single(segment, slot)[1]]
        in_order = join_places(np.sort(places)) if in_order is None else in_order
        found = list(self.messages(self.slots(in_order)))
        if len(in_order) == 1 and places[0] == in_order[0][0] and isinstance(places, list) and sorted(places) == places:
            return found  # true for most deliveries
        wanted = np.asarray(places, np.int64)
        if bool((wanted[1:] > wanted[:-1]).all()):
            return found
        # Each message's number in `found`, in the order that is wanted.
        order = inverse_of(argsort_narrow(wanted))
        numbers: dict[tuple[str, int], int] = {}
        sources = [numbers.setdefault((one.topic, one.partition), len(numbers)) for one in found]
        of = np.repeat(sources, [len(one) for one in found])[order]
        names, whole = list(numbers), Messages.concatenate(found).select(order)
        edges = [0, *(np.flatnonzero(np.diff(of)) + 1).tolist(), len(of)]
        return [whole.part(names[int(of[first])], first, stop) for first, stop in pairwise(edges)]

    def slots(self, places: Places) -> Slots:
        """Return places by segment."""
        return [(segment, slots_of(where)) for segment, where in self.state.parts(places)]

    def slots_in(self, segment: Segment, states: Sequence[State], text: str = "", code: int = YES) -> NDArray[np.intp]:
        """Return a segment's slots in some states; with a filter, only those with the given verdict `code`."""
        slots = np.flatnonzero(state_mask(*states)[segment.state[: segment.used]])
        return slots[self.matching.codes(text, segment.index, slots) == code] if text else slots

    def backlog_places(self, number: int) -> Slots:
        """Return the places that fill a subscription's backlog: leased, or sent at most once."""
        found: Slots = []
        for index in sorted(self.state.segments):
            if not self.state.outline(index).may_be_held_by(number):
                continue
            segment = self.state.segments[index]
            if segment.holder is None:
                continue
            mine = segment.holder[: segment.used] == number
            slots = np.flatnonzero(mine & FILLS[segment.state[: segment.used]])
            if len(slots):
                found.append((segment, slots))
        return found


def places_of(slots: Slots) -> Places:
    """Return places by segment as ranges."""
    if len(slots) == 1:
        segment, of_one = slots[0]
        return [(segment.base + int(of_one[0]), 1)] if len(of_one) == 1 else join_places(of_one + segment.base)
    some = [(segment.base, of_segment) for segment, of_segment in slots if len(of_segment)]
    dense = [int(one[-1]) - int(one[0]) == len(one) - 1 for _, one in some]
    if 2 * sum(dense) < len(some):
        return join_places(np.concatenate([base + one for base, one in some]))
    places: list[tuple[int, int]] = []
    for (base, one), is_dense in zip(some, dense, strict=True):
        if is_dense:
            places.append((base + int(one[0]), len(one)))
        else:
            places.extend((first + base, count) for first, count in join_places(one))
    return places


def last_place(slots: Slots) -> int:
    """Return the last of places by segment, which are ascending."""
    segment, some = slots[-1]
    return segment.base + int(some[-1])
