"""Mover: moves messages with places from state to state, with all counts and indexes that depend on the state.

Most changes of a slow queue concern one message. Numbers are several times as fast for it as columns of one, so it has
a way of its own, `_move_one`. Both ways share the effects of leaving a state and of entering one. The two most frequent
movements of one message are in `single_moves`.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final, Protocol

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.change import Change, ChangeKind, Places, indexes_in
from lapse.core.queue.life.message_state import FILLS, MEANINGS, STATES, State, state_of_all
from lapse.core.queue.life.movement import Move, not_yet_applied, write_columns
from lapse.core.queue.life.single_moves import lease_one, settle_one
from lapse.core.queue.segments.index import Index
from lapse.core.queue.segments.segment import AVAILABLE, SIZE, Segment, Where, count_of, slots_of
from lapse.core.queue.segments.spill import Segments
from lapse.core.queue.subscriptions.subscription_table import SubscriptionTable

_AVAILABLE: Final = State.AVAILABLE  # a look-up in the enumeration takes five times as long
_LEASED: Final = State.LEASED
_HANDED_OUT: Final = ChangeKind.LEASED
_SETTLED: Final = ChangeKind.SETTLED


class MovedState(Protocol):
    """The part of a queue's state that movements change.

    Attributes:
        segments: the live segments by index.
        index: the indexes over the segments.
        subscription_table: the subscriptions.
        recovering: whether changes come from the journal.
    """

    segments: Segments
    index: Index
    subscription_table: SubscriptionTable
    recovering: bool

    @property
    def as_of(self) -> Mapping[int, int]:
        """During recovery, by segment index, the last step that the segment contains already."""

    def parts(self, places: Places) -> Iterable[tuple[Segment, Where]]:
        """Return each segment of ascending places once, with the slots in it."""

    def finish_change(self, segment: Segment, other_available: bool) -> None:
        """Note a change of messages of a segment, and drop the segment if none is left."""

    def note_head(self, index: int) -> None:
        """Note that a message of a segment has become available again."""


class Mover:
    """Carries out the movements of messages with places, for `QueueState.apply`.

    Args:
        state: the state.
    """

    def __init__(self, state: MovedState) -> None:
        self._state = state

    def move(self, change: Change, move: Move) -> None:
        """Move messages as a change says, by the table of life."""
        state, places = self._state, change.places
        if len(places) == 1 and change.untils_ms is None and not state.as_of:
            place, count = places[0]
            if count == 1:
                index, slot = divmod(place, SIZE)
                segment = state.segments.find(index)
                if segment is None or self._move_one(change, move, segment, slot):
                    return
        to = move.state_after(change.until_ms)
        for segment, where in state.parts(places):
            before = segment.state[where]
            alike = state_of_all(before)
            if not move.permits(before, alike):
                where, before = not_yet_applied(change, move, segment, where, state.recovering)
                alike = None
            if alike is None:
                self._leave_each(segment, where, before)
            elif alike is not to:
                self._leave(segment, where, count_of(where), alike)
            end_ms: int | NDArray[np.int64] = change.until_ms
            if change.untils_ms is not None:
                end_ms = change.untils_ms[indexes_in(places, slots_of(where) + segment.base)]
            write_columns(change, to, segment, where, before, alike, end_ms)
            segment.state[where] = to
            if alike is not to:
                self._enter(segment, where, count_of(where), to, change)
            if MEANINGS[to].ends and count_of(where):
                state.index.note_until(segment, end_ms if isinstance(end_ms, int) else int(end_ms.min()))
            state.finish_change(segment, alike in (None, _AVAILABLE) or to is _AVAILABLE)

    def _move_one(self, change: Change, move: Move, segment: Segment, slot: int) -> bool:
        """Move one message. Return False if its state does not permit that."""
        before, kind = STATES[segment.state.item(slot)], change.kind
        if kind is _HANDED_OUT and before is _AVAILABLE:
            lease_one(self._state, change, segment, slot)
            return True
        if kind is _SETTLED and before is _LEASED:
            settle_one(self._state, segment, slot)
            return True
        if before not in move.leaves:
            return False
        to, where = move.state_after(change.until_ms), slice(slot, slot + 1)
        if before is not to:
            self._leave(segment, where, 1, before)
        write_columns(change, to, segment, slot, before, before, change.until_ms)
        if before is not to:
            segment.state[slot] = to
            self._enter(segment, where, 1, to, change)
        if MEANINGS[to].ends:
            self._state.index.note_until(segment, change.until_ms)
        self._state.finish_change(segment, before is _AVAILABLE or to is _AVAILABLE)
        return True

    def _leave_each(self, segment: Segment, where: Where, before: NDArray[np.uint8]) -> None:
        """Undo the effects of messages' former states, which differ."""
        index = self._state.index
        segment.available -= int(np.count_nonzero(before == AVAILABLE))
        index.note_left(segment, where)
        index.bind_groups(segment, where, -1)
        if segment.holder is not None:
            self._state.subscription_table.count_each(segment.holder[where][FILLS[before]], -1)

    def _leave(self, segment: Segment, where: Where, count: int, alike: State) -> None:
        """Undo the effects of messages' common former state."""
        index, meaning = self._state.index, MEANINGS[alike]
        if alike is _AVAILABLE:
            segment.available -= count
            index.note_left(segment, where)
        if meaning.binds and segment.groups is not None:
            index.bind_groups(segment, where, -1, alike)
        if meaning.fills and segment.holder is not None:
            if count == 1:
                self._state.subscription_table.count(segment.holder[where].item(), -1)
            else:
                self._state.subscription_table.count_each(segment.holder[where], -1)

    def _enter(self, segment: Segment, where: Where, count: int, to: State, change: Change) -> None:
        """Apply the effects of messages' new state to counts and indexes."""
        state, index, meaning = self._state, self._state.index, MEANINGS[to]
        if not meaning.there:
            segment.occupied -= count
            if index.barriers:
                index.forget_barriers(segment, where)
        elif to is _AVAILABLE:
            segment.available += count
            index.came_back.add(segment.index)
            index.note_available(segment, where)
            state.note_head(segment.index)
        if meaning.expires and segment.deadline_ms is not None and count:
            index.note_deadlines(segment, segment.deadline_ms[where])
        if meaning.binds and segment.groups is not None:
            index.bind_groups(segment, where, 1, to)
        if meaning.fills:
            state.subscription_table.count(change.holder, count)
