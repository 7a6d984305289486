"""The life of a message: the table of states and triggers, with guards and effects, by which the shard decides.

Each row says what a trigger does to a message in a state: the change that carries it out, the state afterwards, the
event that reports it, and the reason for which the message leaves. A trigger without a row for a state does not affect
messages in it. So a lease protects from expiry because DEADLINE has no row for LEASED (Q10). `QueueState.apply`
rejects every change without a row here, and the parts of the shard choose their rows by `route`. A new feature adds
rows or a guard.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from enum import StrEnum
from functools import cache
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.change import ChangeKind
from lapse.core.queue.life.message_state import LIVE, MEANINGS, State
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind


class Trigger(StrEnum):
    """What happens to a message, from outside or through time."""

    ARRIVE = "arrive"
    REWIND = "rewind"
    SPOIL = "spoil"
    COME_DUE = "come due"
    DEADLINE = "deadline passes"
    DELIVER = "deliver"
    RELEASE = "release"
    END = "end of lease or delay"
    LOSE_CONSUMER = "lose its consumer"
    UNDELIVER = "undeliver"
    EXCEED = "exceed a limit"
    ACKNOWLEDGE = "acknowledge"
    CANCEL = "cancel"
    EXPIRE = "expire"
    RENEW = "renew"
    PURGE = "purge"
    TRUNCATE = "truncate"
    REPLACE_TOPIC = "replace the topic"
    RETIRE = "retire the queue"
    BEGIN_TRANSFER = "begin a transfer"
    CONFIRM_TRANSFER = "confirm a transfer"
    ABANDON_TRANSFER = "abandon a transfer"
    ACCEPT = "accept what a transfer put here"
    DISCARD = "discard what a transfer put here"
    REFUSE_LETTER = "refuse its letter"
    WRITE_LETTER = "write its letter"


class Guard(StrEnum):
    """The condition of a row if a trigger has several rows for one state."""

    VISIBLE = "it is visible now"
    LATER = "its instant is still to come"
    FROM_TRANSFER = "a transfer put it there"
    UNREADABLE = "its lifetime cannot be read"
    LATE = "its deadline has passed"
    REPEATED = "its id was seen within the window"
    RECORDLESS = "Kafka has removed its record, and nobody gets it"
    REFUSED = "the target of forwarding does not take it"
    ROOM = "there is room below the target depth"
    NO_ROOM = "there is no room below the target depth"
    AT_LEAST_ONCE = "at-least-once, or it is forwarded"
    AT_MOST_ONCE = "at-most-once, and it is not forwarded"
    DELAY = "with a delay, or a delay that is not over"
    LEASED_TOO = "leased messages too"
    DELIVERIES = "it was delivered as often as may be"
    CANCELS = "it was cancelled more often than may be"
    IDLE = "the queue was idle"


class Row(NamedTuple):
    """The effect of a trigger on a message in a state.

    Attributes:
        trigger: the trigger.
        state: the message's state before.
        when: the guard; None = always, or if the guard of no other row holds.
        changes: the kinds of change that carry it out, in order; empty = the message leaves no trace in the state.
        to: the state afterwards; a message that leaves past its deadline becomes EXPIRED instead of GONE.
        emits: the event; None = no event, or that of the removal.
        reason: the reason of L14 for which the message leaves, if any; other reasons that hold are added (C22).
    """

    trigger: Trigger
    state: State
    when: Guard | None
    changes: tuple[ChangeKind, ...]
    to: State
    emits: EventKind | None = None
    reason: Reason | None = None

    @property
    def event(self) -> EventKind:
        """The event of a row that has one."""
        assert self.emits is not None
        return self.emits


_IDLE: Final = (State.AVAILABLE, State.DELAYED)
_WAITING: Final = (*_IDLE, State.TRANSFERRING)
_PLANNED: Final = (State.SCHEDULED, State.HELD)
_DEFERRED: Final = tuple(state for state in State if MEANINGS[state].deferred)
_EXPIRING: Final = tuple(state for state in State if MEANINGS[state].expires)
_LEFT: Final = (State.GONE, State.EXPIRED)
_ENTERS: Final = (ChangeKind.UNSCHEDULED, ChangeKind.ARRIVED)
_Changes = ChangeKind | tuple[ChangeKind, ...]


def _rows(
    trigger: Trigger,
    states: State | Iterable[State],
    changes: _Changes,
    to: State,
    emits: EventKind | None = None,
    reason: Reason | None = None,
    when: Guard | None = None,
) -> Iterator[Row]:
    done = (changes,) if isinstance(changes, ChangeKind) else changes
    for state in (states,) if isinstance(states, State) else states:
        yield Row(trigger, state, when, done, to, emits, reason)


def _removal_rows(
    trigger: Trigger, states: State | Iterable[State], reason: Reason, when: Guard | None = None
) -> Iterator[Row]:
    """Yield rows of messages that leave for a reason, with a place or without one."""
    for state in (states,) if isinstance(states, State) else states:
        change = ChangeKind.UNSCHEDULED if MEANINGS[state].deferred else ChangeKind.SETTLED
        yield Row(trigger, state, when, (change,), State.GONE, None, reason)


def _return_rows(trigger: Trigger, state: State, emits: EventKind) -> Iterator[Row]:
    """Yield the rows of a message without a place that a transfer returns."""
    yield Row(trigger, state, Guard.LATER, (ChangeKind.SCHEDULED,), State.SCHEDULED, emits)
    yield Row(trigger, state, Guard.NO_ROOM, (ChangeKind.SCHEDULED,), State.HELD, emits)
    yield Row(trigger, state, Guard.ROOM, _ENTERS, State.AVAILABLE, emits)


def _table() -> Iterator[Row]:
    kind, state = ChangeKind, State
    at = Trigger.ARRIVE
    yield from _rows(at, state.UNREAD, kind.ARRIVED, state.AVAILABLE, when=Guard.VISIBLE)
    yield from _rows(at, state.UNREAD, kind.SCHEDULED, state.SCHEDULED, EventKind.SCHEDULED, when=Guard.LATER)
    yield from _rows(at, state.UNREAD, kind.SCHEDULED, state.UNCONFIRMED, when=Guard.FROM_TRANSFER)
    yield from _rows(at, state.UNREAD, (), state.GONE, reason=Reason.INVALID_LIFETIME, when=Guard.UNREADABLE)
    yield from _rows(at, state.UNREAD, (), state.GONE, reason=Reason.TIME_LIMIT, when=Guard.LATE)
    yield from _rows(at, state.UNREAD, (), state.GONE, EventKind.REPEATED, when=Guard.REPEATED)
    yield from _rows(at, state.REMEMBERED, kind.HONOURED, state.GONE)
    at, emits = Trigger.REWIND, EventKind.REWOUND
    yield from _rows(at, state.UNREAD, kind.ARRIVED, state.AVAILABLE, emits, when=Guard.ROOM)
    yield from _rows(at, state.UNREAD, kind.SCHEDULED, state.HELD, emits, when=Guard.NO_ROOM)
    yield from _rows(at, state.UNREAD, kind.SCHEDULED, state.SCHEDULED, emits, when=Guard.LATER)
    at = Trigger.SPOIL
    yield from _rows(at, state.UNREAD, (), state.GONE, reason=Reason.UNDECODABLE)
    yield from _rows(at, state.REMEMBERED, kind.HONOURED, state.GONE)
    yield from _removal_rows(at, LIVE, Reason.UNDECODABLE)
    at = Trigger.COME_DUE
    yield from _rows(at, state.SCHEDULED, kind.SCHEDULED, state.HELD, EventKind.HELD, when=Guard.NO_ROOM)
    yield from _rows(at, _PLANNED, _ENTERS, state.AVAILABLE, when=Guard.ROOM)
    yield from _removal_rows(Trigger.DEADLINE, _EXPIRING, Reason.TIME_LIMIT)
    at = Trigger.DELIVER
    yield from _rows(at, state.AVAILABLE, kind.LEASED, state.LEASED, when=Guard.AT_LEAST_ONCE)
    yield from _rows(
        at, state.AVAILABLE, kind.SENT, state.SENT, EventKind.DELIVERED_AT_MOST_ONCE, when=Guard.AT_MOST_ONCE
    )
    at, reason = Trigger.RELEASE, Reason.UNDECODABLE
    yield from _rows(at, state.AVAILABLE, kind.RELEASED, state.GONE, EventKind.BARRIER_RELEASED)
    yield from _rows(at, state.AVAILABLE, kind.RELEASED, state.GONE, reason=reason, when=Guard.REFUSED)
    yield from _removal_rows(at, state.AVAILABLE, Reason.LOG_TRUNCATED, Guard.RECORDLESS)
    yield from _rows(Trigger.END, state.LEASED, kind.RETURNED, state.AVAILABLE, EventKind.LEASE_RETURNED)
    yield from _rows(
        Trigger.END, state.LEASED, kind.RETURNED, state.DELAYED, EventKind.LEASE_RETURNED, when=Guard.DELAY
    )
    yield from _rows(Trigger.END, state.DELAYED, kind.RETURNED, state.AVAILABLE)
    at, emits = Trigger.LOSE_CONSUMER, EventKind.LEASE_RETURNED
    yield from _rows(at, state.LEASED, kind.RETURNED, state.AVAILABLE, emits)
    yield from _rows(at, state.LEASED, kind.RETURNED, state.DELAYED, emits, when=Guard.DELAY)
    yield from _rows(Trigger.LOSE_CONSUMER, state.SENT, kind.SETTLED, state.GONE)
    yield from _rows(Trigger.UNDELIVER, (state.LEASED, state.SENT), kind.UNDELIVERED, state.AVAILABLE)
    yield from _removal_rows(Trigger.EXCEED, _IDLE, Reason.MAX_DELIVERIES, Guard.DELIVERIES)
    yield from _removal_rows(Trigger.EXCEED, _IDLE, Reason.MAX_CANCELS, Guard.CANCELS)
    yield from _settlement_rows()
    yield from _removal_rows(Trigger.PURGE, (*_IDLE, *_PLANNED), Reason.PURGED)
    yield from _removal_rows(Trigger.PURGE, state.LEASED, Reason.PURGED, Guard.LEASED_TOO)
    at = Trigger.TRUNCATE
    yield from _removal_rows(at, (*_WAITING, *_DEFERRED), Reason.LOG_TRUNCATED)
    yield from _rows(at, state.UNREAD, (), state.GONE, EventKind.EXPIRED, Reason.LOG_TRUNCATED)
    yield from _rows(at, state.REMEMBERED, kind.HONOURED, state.GONE)
    at = Trigger.REPLACE_TOPIC
    yield from _removal_rows(at, (*LIVE, *_DEFERRED), Reason.LOG_TRUNCATED)
    yield from _rows(at, state.SENT, kind.SETTLED, state.GONE)
    yield from _rows(at, state.REMEMBERED, kind.HONOURED, state.GONE)
    yield from _removal_rows(Trigger.RETIRE, (*LIVE, *_DEFERRED), Reason.PURGED)
    yield from _removal_rows(Trigger.RETIRE, (*LIVE, *_DEFERRED), Reason.AUTO_DELETED, Guard.IDLE)
    yield from _transfer_rows()
    yield from _rows(Trigger.REFUSE_LETTER, _LEFT, kind.LETTER_PENDING, state.PENDING, EventKind.DYING)
    yield from _rows(Trigger.WRITE_LETTER, state.PENDING, kind.LETTER_WRITTEN, state.GONE)


def _settlement_rows() -> Iterator[Row]:
    """Yield the rows of settlements."""
    kind, state = ChangeKind, State
    at = Trigger.ACKNOWLEDGE
    yield from _rows(at, (state.LEASED, *_IDLE), kind.SETTLED, state.GONE, EventKind.ACKNOWLEDGED)
    yield from _rows(at, state.HELD, kind.UNSCHEDULED, state.GONE, EventKind.ACKNOWLEDGED)
    yield from _rows(at, state.UNREAD, kind.REMEMBERED, state.REMEMBERED, EventKind.ACKNOWLEDGED)
    yield from _rows(at, state.SENT, kind.SETTLED, state.GONE)
    at = Trigger.CANCEL
    yield from _rows(at, state.LEASED, kind.CANCELLED, state.AVAILABLE, EventKind.CANCELLED)
    yield from _rows(at, state.LEASED, kind.CANCELLED, state.DELAYED, EventKind.CANCELLED, when=Guard.DELAY)
    yield from _removal_rows(at, _PLANNED, Reason.WITHDRAWN)
    yield from _rows(at, state.SENT, kind.SETTLED, state.GONE)
    at = Trigger.EXPIRE
    yield from _removal_rows(at, (state.LEASED, *_IDLE), Reason.FORCED_EXPIRE)
    yield from _rows(at, state.SENT, kind.SETTLED, state.GONE)
    yield from _rows(Trigger.RENEW, state.LEASED, kind.RENEWED, state.LEASED, EventKind.RENEWED)


def _transfer_rows() -> Iterator[Row]:
    """Yield the rows of transfers, at the source and at the target (Q17)."""
    kind, state = ChangeKind, State
    at = Trigger.BEGIN_TRANSFER
    yield from _rows(at, _IDLE, kind.TRANSFERRING, state.TRANSFERRING, EventKind.TRANSFERRING)
    yield from _rows(at, _PLANNED, kind.SCHEDULED, state.TRANSFERRING_EARLY, EventKind.TRANSFERRING)
    at = Trigger.CONFIRM_TRANSFER
    yield from _rows(at, state.TRANSFERRING, kind.SETTLED, state.GONE, EventKind.TRANSFERRED)
    yield from _rows(at, state.TRANSFERRING_EARLY, kind.UNSCHEDULED, state.GONE, EventKind.TRANSFERRED)
    at, emits = Trigger.ABANDON_TRANSFER, EventKind.TRANSFER_CANCELLED
    yield from _rows(at, state.TRANSFERRING, kind.RETURNED, state.AVAILABLE, emits)
    yield from _rows(at, state.TRANSFERRING, kind.RETURNED, state.DELAYED, emits, when=Guard.DELAY)
    yield from _return_rows(at, state.TRANSFERRING_EARLY, emits)
    yield from _return_rows(Trigger.ACCEPT, state.UNCONFIRMED, EventKind.TRANSFER_CONFIRMED)
    yield from _removal_rows(Trigger.DISCARD, state.UNCONFIRMED, Reason.WITHDRAWN)


ROWS: Final = tuple(_table())
"""The table of a message's life."""


class ImpossibleTransition(RuntimeError):
    """A trigger has no row for a message's state. This is an error in the code, never in the input."""


class Route(NamedTuple):
    """The rows of a trigger under a guard, grouped by effect, for look-up by state.

    Attributes:
        rows: one row for each distinct effect, in the order of states.
        effects: by state: index into `rows`; -1 = the trigger does not affect the message.
        effect_of: the same as an array.
        takes: by state: whether there is a row.
    """

    rows: tuple[Row, ...]
    effects: tuple[int, ...]
    effect_of: NDArray[np.int8]
    takes: NDArray[np.bool_]

    def row(self, state: State) -> Row:
        """Return the row of a state.

        Raises:
            ImpossibleTransition: the state has no row.
        """
        effect = self.effects[state]
        if effect < 0:
            raise ImpossibleTransition(
                f"nothing is known of a message that is {state.name} for this trigger: {self.rows[0][0]}"
            )
        return self.rows[effect]


@cache
def route(trigger: Trigger, guard: Guard | None = None) -> Route:
    """Return the rows of a trigger: those with this guard, and those without a guard for all other states."""
    chosen: dict[State, Row] = {}
    for row in ROWS:
        if row.trigger is trigger and (row.when is guard or (row.when is None and row.state not in chosen)):
            chosen[row.state] = row
    rows: dict[object, Row] = {}
    effects = [-1] * len(State)
    for state in sorted(chosen):
        row = chosen[state]
        rows.setdefault(row[3:], row)
        effects[state] = list(rows).index(row[3:])
    column = np.array(effects, np.int8)
    return Route(tuple(rows.values()), tuple(effects), column, column >= 0)


def placed_states(trigger: Trigger) -> tuple[State, ...]:
    """Return the states of messages with places for which a trigger has a row."""
    return tuple(state for state in State if MEANINGS[state].place and route(trigger).takes[state])
