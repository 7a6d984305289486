"""Changes: the only thing that mutates a queue shard, and what its journal holds.

A change is kept small: a kind, the places it is about as ranges, and the few values that the kind needs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.arrival.trait import NONE, Traits
from lapse.core.transfer_counts import NONE as NO_COUNTS
from lapse.core.transfer_counts import Counts

Places = list[tuple[int, int]]
"""Ranges of places: (first, count), ascending and disjoint."""


class ChangeKind(IntEnum):
    """What a change does. The numbers are persisted."""

    ARRIVED = 1
    LEASED = 2
    SENT = 3
    RETURNED = 4
    CANCELLED = 5
    RENEWED = 6
    SETTLED = 7
    EXPIRED = 8
    SCHEDULED = 9
    UNSCHEDULED = 10
    SUBSCRIBED = 11
    UNSUBSCRIBED = 12
    PAUSED = 13
    RESUMED = 14
    RELEASED = 15
    REMEMBERED = 16
    HONOURED = 17
    IDENTIFIED = 18
    FORGOTTEN = 19
    UNDELIVERED = 20
    LETTER_PENDING = 30
    LETTER_WRITTEN = 31
    REPLACED = 40
    RETIRING = 50
    USED = 51
    HELD = 60
    TRANSFER = 61
    REWIND = 62
    DEPARTED = 63
    COUNTED = 70
    UNCOUNTED = 71


HANDS_OUT: Final = frozenset({ChangeKind.LEASED, ChangeKind.SENT})
"""Changes that give messages to a subscription."""

COME_BACK: Final = frozenset({ChangeKind.RETURNED, ChangeKind.CANCELLED})
"""Changes by which messages come back, each perhaps after a delay of its own."""


@dataclass(slots=True)
class Change:
    """One mutation.

    Attributes:
        kind: what happens.
        places: to which places.
        source: ARRIVED, SCHEDULED, UNSCHEDULED, REMEMBERED, HONOURED, LETTER_PENDING, LETTER_WRITTEN, REPLACED:
            number of the source.
        offset: of the same: offset of the first message; DEPARTED: which stretch of the source; LEASED: the instant at
            which the lease begins, ms since the epoch, 0 in older journals.
        holder: LEASED, SENT, SUBSCRIBED, UNSUBSCRIBED: number of the subscription; HELD, TRANSFER: of the transfer;
            REWIND: of the rewind.
        until_ms: LEASED, RENEWED: end of the lease; CANCELLED, RETURNED: end of the delay, of the first one that ends
            where `untils_ms` says more, 0 without one;
            SCHEDULED: the instant at which it materialises. ms since the epoch.
        deadlines_ms: ARRIVED, SCHEDULED: deadline of each message; None = all never expire.
        untils_ms: CANCELLED, RETURNED: end of each message's delay, ms since the epoch; None = all end together.
        traits: ARRIVED, SCHEDULED: what the queue's expressions say of each message.
        facts: SUBSCRIBED: the subscription's own values; RELEASED: which message, and who receives it;
            COUNTED: deliveries that count in the windows of rates; `offset` is then the number of their batch, as it is
            of UNCOUNTED, which forgets one;
            IDENTIFIED: message ids; `offset` is then the number of their chunk, `until_ms` their latest timestamp;
            LETTER_PENDING: what the letter has to say.
            RETIRING: the retirement, empty = in service; USED: the configuration, `until_ms` is when.
            TRANSFER: the transfer's own values, none = it has ended; SCHEDULED: what a transfer says of the message;
            ARRIVED, SCHEDULED: `counts`, what the one message has been through elsewhere (C73).
            REWIND: the rewind's own values, DEPARTED: what is not to be brought back; none = forgotten.
    """

    kind: ChangeKind
    places: Places = field(default_factory=list)
    source: int = 0
    offset: int = 0
    holder: int = -1
    until_ms: int = 0
    deadlines_ms: NDArray[np.int64] | None = None
    untils_ms: NDArray[np.int64] | None = None
    traits: Traits = NONE
    facts: dict[str, Any] = field(default_factory=dict)


_COUNTS: Final = "counts"


def with_counts(facts: dict[str, Any], counts: Counts) -> dict[str, Any]:
    """The facts of a change to one message, with what it has been through elsewhere if that is anything (C73)."""
    return {**facts, _COUNTS: list(counts)} if counts != NO_COUNTS else facts


def counts_of(change: Change) -> Counts:
    """What the message of a change has been through elsewhere."""
    return Counts(*change.facts[_COUNTS]) if _COUNTS in change.facts else NO_COUNTS


def joined(places: Sequence[int] | NDArray[np.int64]) -> Places:
    """Join ascending places into ranges; each place is named once."""
    if not len(places):
        return []
    first, count = int(places[0]), len(places)
    if int(places[-1]) - first == count - 1:
        return [(first, count)]
    at = np.asarray(places, np.int64)
    begins = np.concatenate([[0], np.flatnonzero(np.diff(at) != 1) + 1])
    counts = np.diff(begins, append=count)
    return list(zip(at[begins].tolist(), counts.tolist(), strict=True))


def indexes_in(places: Places, wanted: NDArray[np.int64]) -> NDArray[np.intp]:
    """Which of the places that the ranges hold each of some places is, the first one being 0."""
    firsts, counts = np.array(places, np.int64).T
    ranges = np.searchsorted(firsts, wanted, "right") - 1
    indexes: NDArray[np.intp] = (wanted - firsts[ranges] + (np.cumsum(counts) - counts)[ranges]).astype(np.intp)
    return indexes


def total(places: Places) -> int:
    """How many places the ranges hold."""
    return sum(count for _, count in places)
