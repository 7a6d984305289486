"""Changes: the mutations of a queue shard, which its journal records.

Only changes mutate a shard. A change is small: its kind, ranges of places, and the few values that the kind needs.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any, Final, overload

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.arrival.trait import NONE, Traits
from lapse.core.transfer_counts import NONE as NO_COUNTS
from lapse.core.transfer_counts import Counts

Places = Sequence[tuple[int, int]]
"""Ranges of places: (first, count), ascending and disjoint."""


class ChangeKind(IntEnum):
    """The effect of a change. The numbers are persisted."""

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
    TRANSFERRING = 60
    TRANSFER = 61
    REWIND = 62
    DEPARTED = 63
    COUNTED = 70
    UNCOUNTED = 71


HANDS_OUT: Final = frozenset({ChangeKind.LEASED, ChangeKind.SENT})
"""Kinds of change that give messages to a subscription."""

COME_BACK: Final = frozenset({ChangeKind.RETURNED, ChangeKind.CANCELLED})
"""Kinds of change that return messages to the queue, each with an optional delay."""


@dataclass(slots=True)
class Change:
    """One mutation of a queue shard.

    Attributes:
        kind: what the change does.
        places: the places that it changes.
        source: ARRIVED, SCHEDULED, UNSCHEDULED, REMEMBERED, HONOURED, LETTER_PENDING, LETTER_WRITTEN, REPLACED:
            number of the source.
        offset: same kinds: offset of the first message; DEPARTED: number of the source's stretch; LEASED: start of the
            lease, ms since the epoch, 0 in older journals.
        holder: LEASED, SENT, SUBSCRIBED, UNSUBSCRIBED: number of the subscription; TRANSFERRING, TRANSFER: of the
            transfer; REWIND: of the rewind.
        until_ms: LEASED, RENEWED: end of the lease; CANCELLED, RETURNED: end of the delay, 0 without one, the earliest
        end if `untils_ms` is set; SCHEDULED: the instant at which the message materialises. All are ms since the epoch.
        deadlines_ms: ARRIVED, SCHEDULED: deadline of each message, ms since the epoch; None = none expires.
        untils_ms: CANCELLED, RETURNED: end of each message's delay, ms since the epoch; None = all end together.
        traits: ARRIVED, SCHEDULED: the traits of each message.
        facts: SUBSCRIBED: the subscription's values; RELEASED: the message and its receivers;
            COUNTED: deliveries that count in the windows of rates, and `offset` is the number of their batch;
            UNCOUNTED: nothing, and `offset` is the number of the batch to forget;
            IDENTIFIED: message ids, `offset` is the number of their chunk, `until_ms` their latest timestamp;
            LETTER_PENDING: the content of the letter;
            RETIRING: the retirement, empty = in service; USED: the configuration, and `until_ms` is the instant of use;
            TRANSFER: the transfer's values, empty = it has ended; SCHEDULED: the transfer of the message, if any;
            ARRIVED, SCHEDULED: `counts`, deliveries and cancels of a single message elsewhere (C73);
            REWIND: the rewind's values, DEPARTED: offsets that are not brought back; empty = forgotten.
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
    """Return the facts of a change to one message, with its counts from another deployment if it has any (C73)."""
    return {**facts, _COUNTS: list(counts)} if counts != NO_COUNTS else facts


def transferred_counts(change: Change) -> Counts:
    """Return the counts from another deployment of a change's message (C73)."""
    return Counts(*change.facts[_COUNTS]) if _COUNTS in change.facts else NO_COUNTS


def join_places(places: Sequence[int] | NDArray[np.int64]) -> Places:
    """Join ascending, distinct places into ranges."""
    if not len(places):
        return []
    first, count = int(places[0]), len(places)
    if int(places[-1]) - first == count - 1:
        return [(first, count)]
    at = np.asarray(places, np.int64)
    stops = (at[1:] - at[:-1] != 1).nonzero()[0] + 1
    edges = np.empty(len(stops) + 2, np.int64)
    edges[0], edges[1:-1], edges[-1] = 0, stops, count
    return _Ranges(at, at[edges[:-1]], edges[1:] - edges[:-1])


class _Ranges(Sequence[tuple[int, int]]):
    """Ranges of places in columns, with all their places. The tuples are made only when they are asked for."""

    __slots__ = ("_columns", "counts", "every", "firsts")

    def __init__(self, every: NDArray[np.int64], firsts: NDArray[np.int64], counts: NDArray[np.int64]) -> None:
        self.every = every
        self.firsts = firsts
        self.counts = counts
        self._columns: NDArray[np.int64] | None = None

    @property
    def columns(self) -> NDArray[np.int64]:
        """See `columns_of`."""
        if self._columns is None:
            self._columns = np.stack((self.firsts, self.counts))
        return self._columns

    def __len__(self) -> int:
        return len(self.firsts)

    def __iter__(self) -> Iterator[tuple[int, int]]:
        return zip(self.firsts.tolist(), self.counts.tolist(), strict=True)

    @overload
    def __getitem__(self, at: int) -> tuple[int, int]: ...

    @overload
    def __getitem__(self, at: slice) -> Places: ...

    def __getitem__(self, at: int | slice) -> tuple[int, int] | Places:
        if isinstance(at, slice):
            return list(self)[at]
        return int(self.firsts[at]), int(self.counts[at])

    def __eq__(self, other: object) -> bool:
        return list(self) == list(other) if isinstance(other, list | _Ranges) else NotImplemented

    __hash__ = None  # type: ignore[assignment]

    def __repr__(self) -> str:
        return repr(list(self))


def columns_of(places: Places) -> NDArray[np.int64]:
    """Return two rows: the first place of each range, and its number of places."""
    if isinstance(places, _Ranges):
        return places.columns
    return np.array(places, np.int64).reshape(-1, 2).T


def every_of(places: Places) -> NDArray[np.int64] | None:
    """Return all places of many ranges, ascending, if they are at hand; else None."""
    return places.every if isinstance(places, _Ranges) else None


def indexes_in(places: Places, wanted: NDArray[np.int64]) -> NDArray[np.intp]:
    """Return the index of each wanted place among all places of the ranges, beginning with 0."""
    firsts, counts = columns_of(places)
    ranges = np.searchsorted(firsts, wanted, "right") - 1
    indexes: NDArray[np.intp] = (wanted - firsts[ranges] + (np.cumsum(counts) - counts)[ranges]).astype(np.intp)
    return indexes


def count_places(places: Places) -> int:
    """Return how many places the ranges hold."""
    every = every_of(places)
    return sum(count for _, count in places) if every is None else len(every)
