"""Movements: the state transitions that each kind of change may make, derived from `table` for `QueueState.apply`.

A movement is looked up once for each run of messages. The meanings of the states before and after decide what else
`apply` does (see `message_state`). `write_columns` stores the other fields of a change.
"""

from __future__ import annotations

from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.change import HANDS_OUT, Change, ChangeKind
from lapse.core.queue.life.message_state import MEANINGS, State, state_mask
from lapse.core.queue.life.table import ROWS, ImpossibleTransition
from lapse.core.queue.segments.segment import DELAYED, NOBODY, TRANSFERRING, Segment, Where, slots_of


class Move(NamedTuple):
    """The permitted effect of a kind of change on messages with places: all rows that it carries out.

    Attributes:
        takes: by state: whether a message in this state may be changed.
        leaves: the same as a set of states.
        to: the state afterwards.
        later: the state afterwards if the change names an instant; None = `to`.
    """

    takes: NDArray[np.bool_]
    leaves: frozenset[State]
    to: State
    later: State | None

    def permits(self, states: NDArray[np.uint8], alike: State | None) -> bool:
        """Return whether all messages in these states may be changed; `alike` is their common state, if any."""
        return alike in self.leaves if alike is not None else bool(self.takes[states].all())

    def state_after(self, until_ms: int) -> State:
        """Return the state afterwards; `until_ms` is the change's instant, ms since the epoch, 0 without one."""
        return self.later if until_ms > 0 and self.later is not None else self.to


def _moves() -> dict[ChangeKind, Move]:
    ends: dict[ChangeKind, set[State]] = {}
    begins: dict[ChangeKind, set[State]] = {}
    for row in ROWS:
        if MEANINGS[row.state].there:
            carried = [(row.changes[0], row.to)]
            if row.reason is not None:
                carried.append((ChangeKind.EXPIRED, State.EXPIRED))
            for change, to in carried:
                begins.setdefault(change, set()).add(row.state)
                ends.setdefault(change, set()).add(to)
    moves: dict[ChangeKind, Move] = {}
    for change, states in begins.items():
        later = State.DELAYED if len(ends[change]) > 1 else None
        (to,) = ends[change] - {later}
        moves[change] = Move(state_mask(*states), frozenset(states), to, later)
    return moves


_LEASED: Final = ChangeKind.LEASED
ENDS_LIFE: Final = frozenset({ChangeKind.SETTLED, ChangeKind.EXPIRED, ChangeKind.RELEASED})
"""Kinds of change after which a message is not there any more. Look-ups in the enumeration take five times as long."""

MOVES: Final = _moves()
"""By kind of change: its permitted movement of messages with places."""

DEFERRALS: Final = frozenset(
    (change, row.state, row.to if change is ChangeKind.SCHEDULED else State.GONE)
    for row in ROWS
    for change in row.changes
    if change in (ChangeKind.SCHEDULED, ChangeKind.UNSCHEDULED)
)
"""The permitted movements of messages without a place: kind of change, state before, state after."""


def not_yet_applied(
    change: Change, move: Move, segment: Segment, where: Where, recovering: bool
) -> tuple[Where, NDArray[np.uint8]]:
    """Return the slots, with their states, to which a change applies in recovery.

    The journal may lack the start of a segment that was dropped soon after.

    Raises:
        ImpossibleTransition: no recovery is in progress, so the change is an error.
    """
    slots = slots_of(where)
    takes = move.takes[segment.state[slots]]
    if not recovering:
        wrong = int(slots[~takes][0])
        found = State(int(segment.state[wrong])).name
        raise ImpossibleTransition(f"{change.kind.name} takes no message that is {found}: place {segment.base + wrong}")
    return slots[takes], segment.state[slots[takes]]


def write_columns(
    change: Change,
    to: State,
    segment: Segment,
    where: Where | int,
    before: NDArray[np.uint8] | State,
    alike: State | None,
    end_ms: int | NDArray[np.int64],
) -> None:
    """Write a change's effect on the columns other than the state: holder, instant (`end_ms`) and counts."""
    kind = change.kind
    if kind in ENDS_LIFE:
        if segment.holder is not None:
            segment.holder[where] = NOBODY
        return
    holder, until_ms = segment.leases()
    if kind in HANDS_OUT:
        segment.delivery_counts()[where] += 1
        holder[where] = change.holder
        until_ms[where] = end_ms
        if kind is _LEASED and (change.offset or segment.since_ms is not None):
            segment.lease_starts()[where] = change.offset
        return
    match kind:
        case ChangeKind.RENEWED:
            until_ms[where] = end_ms
        case ChangeKind.TRANSFERRING:
            until_ms[where] = np.where(before == DELAYED, until_ms[where], 0)
            holder[where] = change.holder
        case _:
            if to is State.DELAYED:
                holder[where] = NOBODY
                until_ms[where] = end_ms
            elif alike in (None, State.TRANSFERRING):
                holder[where] = np.where(before == TRANSFERRING, NOBODY, holder[where])
            if kind is ChangeKind.CANCELLED:
                segment.cancel_counts()[where] += 1
            elif kind is ChangeKind.UNDELIVERED:
                segment.delivery_counts()[slice(where, where + 1) if isinstance(where, int) else where] -= 1
