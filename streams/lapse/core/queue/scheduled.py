"""Scheduled messages: not visible before their instant (L5), nor before there is room for them (C51)."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import ItemsView, Iterable, Iterator
from typing import Final, NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change, counts_of
from lapse.core.queue.message_state import State
from lapse.core.queue.trait import OWN_GROUP, Flag, TraitReader, Traits
from lapse.core.retry_delay import UNSTATED
from lapse.core.transfer_counts import NONE as NO_COUNTS
from lapse.core.transfer_counts import Counts

_BLOCK: Final = 4_096
"""So many offsets of a source, one behind the other, are kept together."""

_SLACK: Final = 64


class Scheduled(NamedTuple):
    """A message that is not visible yet: before its instant (L5), in a transfer (Q17), or held for want of room (C51).

    Attributes:
        at_ms: the instant at which it materialises; `NEVER` while it is being transferred.
        deadline_ms: its deadline; `NEVER` without one.
        rank: its priority.
        flags: its `Flag`s.
        group: hash of its group.
        transfer: id of the transfer under way; empty = none is.
        then_ms: the instant that counts once the transfer is over; 0 = it is visible at once.
        held: whether it is to be handed over; else it was put here, and is not confirmed.
        ready: whether its instant has come, and it waits beyond the target depth, until there is room (C51).
        retry_ms: delay that it states for its retries, ms; `UNSTATED` without one (Q24).
        counts: what it has been through where it comes from (C73).
    """

    at_ms: int
    deadline_ms: int
    rank: int = 0
    flags: int = 0
    group: int = OWN_GROUP
    transfer: str = ""
    then_ms: int = 0
    held: bool = False
    ready: bool = False
    retry_ms: int = UNSTATED
    counts: Counts = NO_COUNTS

    @property
    def state(self) -> State:
        """Which of the states without a place it is in."""
        if self.ready:
            return State.HELD
        if self.transfer:
            return State.TRANSFERRING_EARLY if self.held else State.UNCONFIRMED
        return State.SCHEDULED

    def traits(self, of: TraitReader) -> Traits:
        """Its traits, as far as the queue asks for them."""
        flags = (Flag.RANKED if of.priority is not None else 0) | (Flag.BARRIER if of.barrier is not None else 0)
        flags |= self.flags & Flag.HANDED_OVER
        return Traits(
            np.array([self.rank], np.uint64) if of.priority is not None else None,
            np.array([self.flags & flags], np.uint8) if flags else None,
            np.array([self.group], np.int64) if of.group is not None else None,
            self._retries(),
        )

    def all_traits(self) -> Traits:
        """Everything that is known of it, whatever the queue asks for."""
        return Traits(
            np.array([self.rank], np.uint64),
            np.array([self.flags], np.uint8),
            np.array([self.group], np.int64),
            self._retries(),
        )

    def _retries(self) -> NDArray[np.int64] | None:
        return None if self.retry_ms == UNSTATED else np.array([self.retry_ms], np.int64)

    @property
    def due_ms(self) -> int:
        """When something has to happen: it materialises, or its absolute deadline comes first."""
        return min(self.at_ms, self.deadline_ms)


class _Block:
    """Offsets that lie close together, ascending; those of messages that are gone may be among them."""

    __slots__ = ("count", "offsets")

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.count = 0


class ScheduledMessages:
    """The scheduled messages of a shard by (source, offset), with an order of offsets for questions about ranges.

    The order is kept in blocks: what comes or goes moves the offsets of one block only, however many there are (C60).
    """

    def __init__(self) -> None:
        self._by_name: dict[tuple[int, int], Scheduled] = {}
        self._blocks: dict[int, dict[int, _Block]] = {}
        self._counts: dict[int, int] = {}
        self.held = 0
        """How many are to be handed over."""
        self.unconfirmed = 0
        """How many were put here by a transfer, and are not confirmed."""
        self.ready = 0
        """How many wait for room."""

    def __len__(self) -> int:
        return len(self._by_name)

    def __contains__(self, name: object) -> bool:
        return name in self._by_name

    def __getitem__(self, name: tuple[int, int]) -> Scheduled:
        return self._by_name[name]

    def get(self, source: int, offset: int) -> Scheduled | None:
        """One of them; None if it is none."""
        return self._by_name.get((source, offset))

    def names(self) -> list[tuple[int, int]]:
        """Source and offset of each."""
        return list(self._by_name)

    def items(self) -> ItemsView[tuple[int, int], Scheduled]:
        """All of them."""
        return self._by_name.items()

    def add(self, source: int, offset: int, scheduled: Scheduled) -> None:
        """Keep one."""
        known = self._by_name.get((source, offset))
        self._by_name[source, offset] = scheduled
        self._note(scheduled, 1)
        if known is not None:
            self._note(known, -1)
            return
        self._counts[source] = self._counts.get(source, 0) + 1
        block = self._blocks.setdefault(source, {}).setdefault(offset // _BLOCK, _Block())
        block.count += 1
        at = bisect_left(block.offsets, offset)
        if at == len(block.offsets) or block.offsets[at] != offset:
            block.offsets.insert(at, offset)

    def discard(self, source: int, offset: int) -> None:
        """Forget one."""
        known = self._by_name.pop((source, offset), None)
        if known is None:
            return
        self._note(known, -1)
        self._counts[source] -= 1
        blocks, number = self._blocks[source], offset // _BLOCK
        block = blocks[number]
        block.count -= 1
        # Offsets that are gone stay in the list until they are the greater part: taking out each would move the rest.
        if not block.count:
            del blocks[number]
        elif len(block.offsets) > 2 * block.count + _SLACK:
            block.offsets = [one for one in block.offsets if (source, one) in self._by_name]

    def count(self, source: int) -> int:
        """How many of a source there are."""
        return self._counts.get(source, 0)

    def _note(self, scheduled: Scheduled, by: int) -> None:
        self.ready += by * scheduled.ready
        if scheduled.transfer:
            if scheduled.held:
                self.held += by
            else:
                self.unconfirmed += by

    def between(self, source: int, first: int, last: int) -> Iterator[int]:
        """Their offsets within a range (both ends included), ascending."""
        blocks = self._blocks.get(source, {})
        within = range(first // _BLOCK, last // _BLOCK + 1)
        wanted: Iterable[int] = within
        if len(within) > len(blocks):
            wanted = sorted(number for number in blocks if number in within)
        for number in wanted:
            if number in blocks:
                offsets = blocks[number].offsets
                for offset in offsets[bisect_left(offsets, first) : bisect_right(offsets, last)]:
                    if (source, offset) in self._by_name:
                        yield offset


def scheduled_of(change: Change) -> Scheduled:
    """What a SCHEDULED change says of its message."""
    traits = change.traits
    return Scheduled(
        change.until_ms,
        NEVER if change.deadlines_ms is None else int(change.deadlines_ms[0]),
        0 if traits.ranks is None else int(traits.ranks[0]),
        0 if traits.flags is None else int(traits.flags[0]),
        OWN_GROUP if traits.groups is None else int(traits.groups[0]),
        change.facts.get("transfer", ""),
        change.facts.get("then_ms", 0),
        change.facts.get("held", False),
        change.facts.get("ready", False),
        UNSTATED if traits.retries is None else int(traits.retries[0]),
        counts_of(change),
    )
