"""A segment: 4,096 consecutive places of a queue shard, packed in columns.

A column exists only if it is needed: no deadlines while nothing expires, no leases while nothing is leased. A message
that waits for its first delivery costs 1 byte of state, and 8 more for a deadline. Once a message of its segment was
delivered it costs 4 more bytes for the count. Two would not do, since a message that always fails at once soon exceeds
65,535 deliveries.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import Final, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import Flag, Traits
from lapse.core.queue.life.message_state import ENDS, EXPIRES, MEANINGS, THERE
from lapse.core.queue.life.message_state import State as State
from lapse.core.retry_delay import UNSTATED

SIZE: Final = 4096
NOBODY: Final = -1


GONE: Final = np.uint8(State.GONE)
AVAILABLE: Final = np.uint8(State.AVAILABLE)
LEASED: Final = np.uint8(State.LEASED)
DELAYED: Final = np.uint8(State.DELAYED)
SENT: Final = np.uint8(State.SENT)
EXPIRED: Final = np.uint8(State.EXPIRED)
TRANSFERRING: Final = np.uint8(State.TRANSFERRING)
"""States as column values. Comparing a column with an enumeration member takes six times as long."""

_UNDELIVERED: Final[NDArray[np.uint32]] = np.zeros(SIZE, np.uint32)
"""The read-only counts that all segments without deliveries share."""
_UNDELIVERED.flags.writeable = False

_EMPTY: Final = bytes(state for state in State if not MEANINGS[state].there)
"""The states in which a place is empty."""

Where: TypeAlias = slice | NDArray[np.intp]
"""Slots of a segment: consecutive ones as a slice, or ascending ones as an array."""


class Run(NamedTuple):
    """Messages of one source with consecutive places and consecutive offsets."""

    slot: int
    source: int
    offset: int
    count: int  # type: ignore[assignment]  # hides tuple.count, which is not needed here


_BARE_BYTES: Final = 1_500
"""The memory of a segment without its columns, bytes."""

_RUN_BYTES: Final = 200


class Segment:
    """The columns of up to `SIZE` places from `base` on.

    Attributes:
        index: number of the segment, `base // SIZE`.
        used: how many places are used, from the first on.
        occupied: how many messages are there; a full segment with 0 can be dropped.
        available: how many messages are AVAILABLE.
        state: a `State` per place.
        deadline_ms: deadline per place, ms since the epoch; None while all are `NEVER`.
        deliveries: delivery count per place, read-only; `delivery_counts` returns it for writing.
        cancels: cancel count per place; None while all are 0.
        holder: number of the subscription that holds a LEASED or SENT place, or held an AVAILABLE one last (C49), or of
            the transfer that holds a TRANSFERRING one; None while there is none.
        until_ms: end of the lease or delay per place, ms since the epoch. For TRANSFERRING, it is the end of a former
            delay, 0 without one. None while there is none.
        since_ms: start of the lease per LEASED place, ms since the epoch, 0 = not known; None while there is none.
        ranks: priority per place that is RANKED; None while the queue has no priority.
        flags: `Flag`s per place; None while none is set.
        groups: hash of the group per place; None while the queue has no groups.
        retries: the retry delay that the message states, per place, ms; None while none states one (Q24).
        runs: the sources and offsets of the places, in order.
        min_deadline_ms: no unleased place expires before this instant.
        min_until_ms: no lease or delay ends before this instant.
    """

    __slots__ = (
        "_first_there",
        "_latest_deadline_ms",
        "_rank_order",
        "available",
        "cancels",
        "deadline_ms",
        "deliveries",
        "flags",
        "groups",
        "holder",
        "index",
        "min_deadline_ms",
        "min_until_ms",
        "occupied",
        "ranks",
        "retries",
        "runs",
        "since_ms",
        "state",
        "until_ms",
        "used",
    )

    def __init__(self, index: int) -> None:
        self.index = index
        self.used = 0
        self.occupied = 0
        self.available = 0
        self.state: NDArray[np.uint8] = np.zeros(SIZE, np.uint8)
        self.deadline_ms: NDArray[np.int64] | None = None
        self.deliveries = _UNDELIVERED
        self.cancels: NDArray[np.uint32] | None = None
        self.holder: NDArray[np.int32] | None = None
        self.until_ms: NDArray[np.int64] | None = None
        self.since_ms: NDArray[np.int64] | None = None
        self.ranks: NDArray[np.uint64] | None = None
        self.flags: NDArray[np.uint8] | None = None
        self.groups: NDArray[np.int64] | None = None
        self.retries: NDArray[np.int64] | None = None
        self._first_there = 0
        self._latest_deadline_ms: int | None = None
        self._rank_order: NDArray[np.uint16] | None = None
        self.runs: list[Run] = []
        self.min_deadline_ms = NEVER
        self.min_until_ms = NEVER

    @property
    def is_undelivered(self) -> bool:
        """Whether no message was ever delivered."""
        return self.deliveries is _UNDELIVERED

    @property
    def base(self) -> int:
        """The first place."""
        return self.index * SIZE

    @property
    def is_droppable(self) -> bool:
        """Whether every place was used and no message is there any more."""
        return self.occupied == 0 and self.used == SIZE

    @property
    def weight(self) -> int:
        """About how many bytes of memory the segment takes."""
        columns = (
            self.state,
            None if self.deliveries is _UNDELIVERED else self.deliveries,
            self.deadline_ms,
            self.cancels,
            self.holder,
            self.until_ms,
            self.since_ms,
            self.ranks,
            self.flags,
            self.groups,
            self.retries,
            self._rank_order,
        )
        return _BARE_BYTES + _RUN_BYTES * len(self.runs) + sum(0 if one is None else one.nbytes for one in columns)

    @property
    def most_deliveries(self) -> int:
        """The greatest delivery count."""
        return int(self.deliveries[: self.used].max(initial=0))

    @property
    def most_cancels(self) -> int:
        """The greatest cancel count."""
        return 0 if self.cancels is None else int(self.cancels[: self.used].max(initial=0))

    def first_there(self) -> int:
        """Return the first slot whose message may still be there; `used` if none is."""
        # An empty place stays empty, so the search continues from the last result.
        states = self.state[self._first_there : self.used].tobytes()
        self._first_there += len(states) - len(states.lstrip(_EMPTY))
        return self._first_there

    def count(self, state: State) -> int:
        """Return how many places are in a state."""
        return int(np.count_nonzero(self.state[: self.used] == state))

    def is_late(self, now_ms: int) -> bool:
        """Return whether all places are used and all their deadlines, which never change, have passed."""
        if self.used < SIZE or self.deadline_ms is None or self.min_deadline_ms > now_ms:
            return False
        if self._latest_deadline_ms is None:
            self._latest_deadline_ms = int(self.deadline_ms.max())
        return self._latest_deadline_ms <= now_ms

    def may_be_held_by(self, number: int) -> bool:
        """Return whether a subscription or transfer, given its number, may hold any of the messages."""
        return self.holder is not None

    def deadlines(self) -> NDArray[np.int64]:
        """Return the column of deadlines for writing, creating it if necessary."""
        if self.deadline_ms is None:
            self.deadline_ms = np.full(SIZE, NEVER, np.int64)
        return self.deadline_ms

    def leases(self) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
        """Return the columns of holders and instants for writing, creating them if necessary."""
        if self.holder is None or self.until_ms is None:
            self.holder = np.full(SIZE, NOBODY, np.int32)
            self.until_ms = np.zeros(SIZE, np.int64)
        return self.holder, self.until_ms

    def lease_starts(self) -> NDArray[np.int64]:
        """Return the column of the starts of leases for writing, creating it if necessary."""
        if self.since_ms is None:
            self.since_ms = np.zeros(SIZE, np.int64)
        return self.since_ms

    def delivery_counts(self) -> NDArray[np.uint32]:
        """Return the column of delivery counts for writing, creating it if necessary."""
        if self.deliveries is _UNDELIVERED:
            self.deliveries = np.zeros(SIZE, np.uint32)
        return self.deliveries

    def cancel_counts(self) -> NDArray[np.uint32]:
        """Return the column of cancel counts for writing, creating it if necessary."""
        if self.cancels is None:
            self.cancels = np.zeros(SIZE, np.uint32)
        return self.cancels

    def set_traits(self, first: int, stop: int, traits: Traits) -> None:
        """Write traits into the columns of slots `first` up to `stop`."""
        if traits.ranks is not None:
            if self.ranks is None:
                self.ranks = np.zeros(SIZE, np.uint64)
            self.ranks[first:stop] = traits.ranks
        if traits.flags is not None:
            if self.flags is None:
                self.flags = np.zeros(SIZE, np.uint8)
            self.flags[first:stop] = traits.flags
        if traits.groups is not None:
            if self.groups is None:
                self.groups = np.zeros(SIZE, np.int64)
            self.groups[first:stop] = traits.groups
        if traits.retries is not None:
            if self.retries is None:
                self.retries = np.full(SIZE, UNSTATED, np.int64)
            self.retries[first:stop] = traits.retries

    def rank_order(self) -> NDArray[np.uint16]:
        """Return all slots by priority, then place. The result is cached, since neither ever changes."""
        order = self._rank_order
        if order is None or len(order) < self.used:
            order = self._rank_order = self._with_new_ranks(np.zeros(0, np.uint16) if order is None else order)
        return order

    def _with_new_ranks(self, order: NDArray[np.uint16]) -> NDArray[np.uint16]:
        """Return a cached order with later slots inserted, each after those of equal priority."""
        new = np.arange(len(order), self.used, dtype=np.uint16)
        if self.ranks is None or self.flags is None:
            return np.concatenate((order, new))
        ranked = (self.flags[new] & Flag.RANKED) != 0
        unranked, new = new[~ranked], new[ranked]
        # The complement reverses the order of unsigned numbers without overflow.
        places = ~self.ranks[new]
        by_rank = np.argsort(places, kind="stable")
        count = int(np.count_nonzero(self.flags[order] & Flag.RANKED))
        at = np.searchsorted(~self.ranks[order[:count]], places[by_rank], "right")
        return np.concatenate((np.insert(order[:count], at, new[by_rank]), order[count:], unranked))

    def ranking(self, slots: NDArray[np.intp]) -> tuple[NDArray[np.bool_], NDArray[np.uint64]]:
        """Return the columns that sort before the place: whether it has no priority, and the priority's complement."""
        if self.ranks is None or self.flags is None:
            return np.ones(len(slots), bool), np.zeros(len(slots), np.uint64)
        unranked = (self.flags[slots] & Flag.RANKED) == 0
        return unranked, np.where(unranked, np.uint64(0), ~self.ranks[slots])

    def key(self, slot: int) -> tuple[int, int]:
        """Return the sort key of a slot: ranked places first, higher ranks before lower, then by place."""
        if self.ranks is None or self.flags is None or not self.flags[slot] & Flag.RANKED:
            return 0, self.base + slot
        return -int(self.ranks[slot]) - 1, self.base + slot

    def best_key(self) -> tuple[int, int] | None:
        """Return the sort key of the available place that priority puts first; None if none is available."""
        if not self.available:
            return None
        order = self.rank_order()
        return self.key(int(order[int((self.state[order] == AVAILABLE).argmax())]))

    @property
    def returned_mask(self) -> NDArray[np.bool_]:
        """By slot: whether the place is available and has a last holder."""
        if self.holder is None:
            return np.zeros(self.used, bool)
        there: NDArray[np.bool_] = (self.state[: self.used] == AVAILABLE) & (self.holder[: self.used] != NOBODY)
        return there

    def deadline_of(self, slot: int) -> int:
        """Return the deadline of one slot, ms since the epoch; `NEVER` without one."""
        return NEVER if self.deadline_ms is None else self.deadline_ms.item(slot)

    def cancels_of(self, slot: int) -> int:
        """Return the cancel count of one slot."""
        return 0 if self.cancels is None else self.cancels.item(slot)

    def recount(self) -> None:
        """Compute `held`, `available` and the earliest instants from the columns."""
        state = self.state[: self.used]
        self.available = int(np.count_nonzero(state == AVAILABLE))
        self.occupied = int(np.count_nonzero(THERE[state]))
        self.find_min_deadline()
        self.find_min_until()

    def find_min_deadline(self) -> None:
        """Compute `min_deadline_ms`, the earliest deadline of a message that expires."""
        self.min_deadline_ms = NEVER
        if self.deadline_ms is not None:
            first = self.first_there()
            waiting = EXPIRES.take(self.state[first : self.used]).nonzero()[0]  # indexing takes three times as long
            if len(waiting):
                deadlines_ms = self.deadline_ms[first:][waiting]
                self.min_deadline_ms = deadlines_ms.item(deadlines_ms.argmin())  # half of the time that `min` takes

    def find_min_until(self) -> None:
        """Compute `min_until_ms`, the earliest end of a lease or delay."""
        self.min_until_ms = NEVER
        if self.until_ms is not None:
            first = self.first_there()
            ending = ENDS.take(self.state[first : self.used]).nonzero()[0]
            if len(ending):
                untils_ms = self.until_ms[first:][ending]
                self.min_until_ms = untils_ms.item(untils_ms.argmin())

    def run_at(self, slot: int) -> Run:
        """Return the run that contains a slot."""
        last = self.runs[-1]
        return last if slot >= last.slot else self.runs[bisect_right(self.runs, slot, key=_slot_of) - 1]

    def append_run(self, slot: int, source: int, offset: int, count: int) -> None:
        """Append a run, joining it with the last one if it continues that."""
        if self.runs:
            from_slot, of, from_offset, before = self.runs[-1]
            if of == source and from_slot + before == slot and from_offset + before == offset:
                self.runs[-1] = Run(from_slot, source, from_offset, before + count)
                return
        self.runs.append(Run(slot, source, offset, count))


def _slot_of(run: Run) -> int:
    return run.slot


def where_of(cuts: list[tuple[int, int]]) -> Where:
    """Return the slots of ascending, disjoint cuts, each given as first slot and slot after the last."""
    if len(cuts) == 1:
        return slice(*cuts[0])
    edges = np.array(cuts, np.intp)
    return where_between(edges[:, 0], edges[:, 1])


def where_between(firsts: NDArray[np.int64], stops: NDArray[np.int64]) -> Where:
    """Return the slots of ascending, disjoint cuts, given as columns of first slots and slots after the last."""
    counts = stops - firsts
    total = int(counts.sum())
    if total == int(stops[-1]) - int(firsts[0]):
        return slice(int(firsts[0]), int(stops[-1]))
    if total == len(firsts):
        return firsts
    # Shift of each cut: its first slot less the number of slots before it. The n-th slot is n plus its shift.
    shifts = firsts - np.cumsum(counts) + counts
    slots: NDArray[np.intp] = np.arange(total) + np.repeat(shifts, counts)
    return slots


def slots_of(where: Where) -> NDArray[np.intp]:
    """Return slots as an array."""
    return np.arange(where.start, where.stop) if isinstance(where, slice) else where


def count_of(where: Where) -> int:
    """Return the number of slots."""
    return int(where.stop - where.start) if isinstance(where, slice) else len(where)
