"""The states of a message, and their meaning: one rule for all features (see `life`).

The state alone decides whether a message counts in the depth, expires at its deadline, fills a subscription's backlog,
or holds its group. These meanings are here, and also as columns of booleans, to look up many states at once.
"""

from __future__ import annotations

from enum import IntEnum
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value", bound=np.generic)


class State(IntEnum):
    """Where a message is in its life. Those up to TRANSFERRING are states of places, and their numbers persisted."""

    GONE = 0
    AVAILABLE = 1
    LEASED = 2
    DELAYED = 3
    SENT = 4
    EXPIRED = 5
    TRANSFERRING = 6

    UNREAD = 7
    SCHEDULED = 8
    HELD = 9
    UNCONFIRMED = 10
    TRANSFERRING_EARLY = 11
    REMEMBERED = 12
    PENDING = 13


class Meaning(NamedTuple):
    """What a state means.

    Attributes:
        says: the state, for people.
        place: it is a state of places; the others are known by source and offset.
        there: the message takes a place, so that its segment cannot be dropped.
        counts: it counts in the depth (C12).
        expires: its deadline takes it; a lease protects a message, and what was sent at most once has left (L11, C79).
        ends: it ends by itself, at the instant that is noted with it.
        fills: it fills the backlog of the subscription that holds it (Q3).
        binds: its group waits for it (Q20), and it is noted by whom it is held, or until when.
        deferred: it has no place yet, and is known by its source and offset (L5, Q17, C51).
    """

    says: str
    place: bool = False
    there: bool = False
    counts: bool = False
    expires: bool = False
    ends: bool = False
    fills: bool = False
    binds: bool = False
    deferred: bool = False


MEANINGS: Final[dict[State, Meaning]] = {
    State.UNREAD: Meaning("in the log, not taken in yet"),
    State.SCHEDULED: Meaning("out of sight before its instant", expires=True, deferred=True),
    State.HELD: Meaning(
        "its instant has come, only the target depth keeps it out of sight", expires=True, deferred=True
    ),
    State.UNCONFIRMED: Meaning("put here by a transfer, and not confirmed", expires=True, deferred=True),
    State.TRANSFERRING_EARLY: Meaning(
        "held for a transfer before it had a place; shown as `transferring`", expires=True, deferred=True
    ),
    State.REMEMBERED: Meaning("acknowledged before it was taken in"),
    State.AVAILABLE: Meaning("waits for a subscription", place=True, there=True, counts=True, expires=True),
    State.DELAYED: Meaning(
        "came back, not to be delivered for a while",
        place=True,
        there=True,
        counts=True,
        expires=True,
        ends=True,
        binds=True,
    ),
    State.LEASED: Meaning(
        "a subscription works on it", place=True, there=True, counts=True, ends=True, fills=True, binds=True
    ),
    State.SENT: Meaning("sent at most once, not settled yet", place=True, there=True, fills=True, binds=True),
    State.TRANSFERRING: Meaning("held for a transfer", place=True, there=True, counts=True, expires=True, binds=True),
    State.PENDING: Meaning("left, and its dead letter is still refused; shown as `dying`"),
    State.EXPIRED: Meaning("left at its deadline; a settlement is told so", place=True),
    State.GONE: Meaning("left", place=True),
}


def among(*states: State) -> NDArray[np.bool_]:
    """A column by state: which of all states are among some."""
    return np.isin(np.arange(len(State)), states)


def _meaning(name: str) -> NDArray[np.bool_]:
    return among(*(state for state in State if getattr(MEANINGS[state], name)))


THERE: Final = _meaning("there")
"""By state: whether a place is taken by a message that is still there."""

EXPIRES: Final = _meaning("expires")
"""By state: whether a deadline takes the message."""

ENDS: Final = _meaning("ends")
"""By state: whether it ends at the instant in the column of instants."""

FILLS: Final = _meaning("fills")
"""By state: whether it fills its holder's backlog."""

BINDS: Final = _meaning("binds")
"""By state: whether it binds its group, and the columns of holders and instants say something of it."""

LIVE: Final = tuple(state for state in State if MEANINGS[state].counts)
"""States that count in the depth (C12)."""


_STATES: Final = tuple(State)


def state_of_all(states: NDArray[np.uint8]) -> State | None:
    """The state that messages share; None if they share none. Most runs share one, so no column has to be read."""
    if not len(states):
        return None
    first = states[0]
    if len(states) > 1 and np.count_nonzero(states == first) != len(states):
        return None
    return _STATES[int(first)]


def by_state(column: NDArray[_Value], states: NDArray[np.uint8]) -> NDArray[_Value]:
    """What a column by state says of each message: a new array.

    Looking up costs about 1 ns a message; most runs share a state, and then it is one value.
    """
    state = state_of_all(states)
    return column[states] if state is None else np.full(len(states), column[state])
