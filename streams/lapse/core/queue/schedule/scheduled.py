"""Scheduled message: not visible before its instant (L5), nor before there is room for it (C51)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.arrival.trait import OWN_GROUP, Flag, TraitReader, Traits
from lapse.core.queue.change import Change, transferred_counts
from lapse.core.queue.life.message_state import State
from lapse.core.retry_delay import UNSTATED
from lapse.core.transfer_counts import NONE as NO_COUNTS
from lapse.core.transfer_counts import Counts


class Scheduled(NamedTuple):
    """A message that is not visible yet: before its instant (L5), in a transfer (Q17), or held (C51).

    Attributes:
        at_ms: the instant at which it materialises, ms since the epoch; `NEVER` during a transfer.
        deadline_ms: its deadline, ms since the epoch; `NEVER` without one.
        rank: its priority.
        flags: its `Flag`s.
        group: hash of its group.
        transfer: id of its transfer; empty = none.
        then_ms: the instant that counts after the transfer, ms since the epoch; 0 = visible at once.
        in_transfer: whether the transfer takes it from here; otherwise it was put here and is not confirmed.
        held: whether its instant has come, and it waits for room below the target depth (C51).
        retry_ms: the delay that it states for its retries, ms; `UNSTATED` without one (Q24).
        counts: its deliveries and cancels at the deployment that it comes from (C73).
    """

    at_ms: int
    deadline_ms: int
    rank: int = 0
    flags: int = 0
    group: int = OWN_GROUP
    transfer: str = ""
    then_ms: int = 0
    in_transfer: bool = False
    held: bool = False
    retry_ms: int = UNSTATED
    counts: Counts = NO_COUNTS

    @property
    def state(self) -> State:
        """Its state, one of those without a place."""
        if self.held:
            return State.HELD
        if self.transfer:
            return State.TRANSFERRING_EARLY if self.in_transfer else State.UNCONFIRMED
        return State.SCHEDULED

    def traits(self, of: TraitReader) -> Traits:
        """Return the traits that the queue uses."""
        flags = (Flag.RANKED if of.priority is not None else 0) | (Flag.BARRIER if of.barrier is not None else 0)
        flags |= self.flags & Flag.HANDED_OVER
        return Traits(
            np.array([self.rank], np.uint64) if of.priority is not None else None,
            np.array([self.flags & flags], np.uint8) if flags else None,
            np.array([self.group], np.int64) if of.group is not None else None,
            self._retries(),
        )

    def all_traits(self) -> Traits:
        """Return all its traits, whether the queue uses them or not."""
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
        """The instant at which it materialises, or its deadline if that is earlier, ms since the epoch."""
        return min(self.at_ms, self.deadline_ms)


def parse_scheduled(change: Change) -> Scheduled:
    """Return the message of a SCHEDULED change."""
    traits = change.traits
    return Scheduled(
        change.until_ms,
        NEVER if change.deadlines_ms is None else int(change.deadlines_ms[0]),
        0 if traits.ranks is None else int(traits.ranks[0]),
        0 if traits.flags is None else int(traits.flags[0]),
        OWN_GROUP if traits.groups is None else int(traits.groups[0]),
        change.facts.get("transfer", ""),
        change.facts.get("then_ms", 0),
        change.facts.get("in_transfer", False),
        change.facts.get("held", False),
        UNSTATED if traits.retries is None else int(traits.retries[0]),
        transferred_counts(change),
    )
