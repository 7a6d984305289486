"""The states of a message and their meaning, the same for all features (see `table`).

The state alone decides whether a message counts in the depth, expires at its deadline, fills a subscription's backlog,
or binds its group. Each meaning is also a column of booleans, to look up many states at once.
"""

from __future__ import annotations

from enum import IntEnum
from functools import cache
from typing import Final, NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

_Value = TypeVar("_Value", bound=np.generic)


class State(IntEnum):
    """The state of a message. The numbers up to TRANSFERRING belong to messages with places, and are persisted."""

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
    """The meaning of a state.

    Attributes:
        description: a description of the state for people.
        place: the message has a place; otherwise it is known by source and offset.
        there: the message occupies its place, so its segment cannot be dropped.
        counts: the message counts in the depth (C12).
        expires: the message expires at its deadline. A lease prevents that, and a message sent at most once has
            left (L11, C79).
        ends: the state ends at the instant in the column of instants.
        fills: the message fills the backlog of the subscription that holds it (Q3).
        binds: the message's group waits for it (Q20), and the columns of holders and instants apply to it.
        deferred: the message has no place yet, and is known by source and offset (L5, Q17, C51).
        protects: the message keeps a temporary queue in use (C50, C77).
    """

    description: str
    place: bool = False
    there: bool = False
    counts: bool = False
    expires: bool = False
    ends: bool = False
    fills: bool = False
    binds: bool = False
    deferred: bool = False
    protects: bool = False


MEANINGS: Final[dict[State, Meaning]] = {
    State.UNREAD: Meaning("in the log, not taken in yet"),
    State.SCHEDULED: Meaning("out of sight before its instant", expires=True, deferred=True, protects=True),
    State.HELD: Meaning(
        "its instant has come, only the target depth keeps it out of sight",
        expires=True,
        deferred=True,
        protects=True,
    ),
    State.UNCONFIRMED: Meaning("put here by a transfer, and not confirmed", expires=True, deferred=True, protects=True),
    State.TRANSFERRING_EARLY: Meaning(
        "in a transfer before it had a place; shown as `transferring`",
        expires=True,
        deferred=True,
        protects=True,
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
        protects=True,
    ),
    State.LEASED: Meaning(
        "a subscription works on it", place=True, there=True, counts=True, ends=True, fills=True, binds=True
    ),
    State.SENT: Meaning("sent at most once, not settled yet", place=True, there=True, fills=True, binds=True),
    State.TRANSFERRING: Meaning(
        "in a transfer", place=True, there=True, counts=True, expires=True, binds=True, protects=True
    ),
    State.PENDING: Meaning("left, and its dead letter is still refused; shown as `dying`"),
    State.EXPIRED: Meaning("left at its deadline, which a later settlement learns from its result", place=True),
    State.GONE: Meaning("left", place=True),
}


@cache
def state_mask(*states: State) -> NDArray[np.bool_]:
    """Return a column that says of each state whether it is among the given ones."""
    return np.isin(np.arange(len(State)), states)


def _meaning(name: str) -> NDArray[np.bool_]:
    return state_mask(*(state for state in State if getattr(MEANINGS[state], name)))


THERE: Final = _meaning("there")
"""By state: whether the message occupies its place."""

EXPIRES: Final = _meaning("expires")
"""By state: whether the message expires at its deadline."""

ENDS: Final = _meaning("ends")
"""By state: whether the state ends at the instant in the column of instants."""

FILLS: Final = _meaning("fills")
"""By state: whether the message fills its holder's backlog."""

BINDS: Final = _meaning("binds")
"""By state: whether the message binds its group, and the columns of holders and instants apply to it."""

LIVE: Final = tuple(state for state in State if MEANINGS[state].counts)
"""States that count in the depth (C12)."""

PROTECTING: Final = tuple(state for state in State if MEANINGS[state].protects and MEANINGS[state].place)
"""States of messages with places that keep a temporary queue in use. Every message without a place does so."""


STATES: Final = tuple(State)
"""All states, by their numbers."""


def state_of_all(states: NDArray[np.uint8]) -> State | None:
    """Return the state that all messages share, as most runs do; None if they differ."""
    if not len(states):
        return None
    first = states[0]
    if len(states) > 1 and np.count_nonzero(states == first) != len(states):
        return None
    return STATES[int(first)]


def by_state(column: NDArray[_Value], states: NDArray[np.uint8]) -> NDArray[_Value]:
    """Return the values of a column by state for each message, as a new array.

    Indexing costs about 1 ns a message. If all messages share a state, as in most runs, one look-up suffices.
    """
    state = state_of_all(states)
    return column[states] if state is None else np.full(len(states), column[state])
