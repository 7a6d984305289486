"""A step: what a queue shard makes of its inputs, changes for the journal and outputs for the world."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.change import Change
from lapse.core.queue.segment import State
from lapse.core.reason import Reason
from lapse.core.retirement import Verdict, Word


@dataclass(slots=True)
class Messages:
    """Messages of one source, in the order of places, with what the shard knows of each.

    Attributes:
        topic: underlying topic.
        partition: its partition.
        offsets: one per message.
        deadlines_ms: one per message; None = all never expire.
        deliveries: deliveries so far, one per message.
        cancels: cancels so far, one per message; None = all 0.
    """

    topic: str
    partition: int
    offsets: NDArray[np.int64]
    deadlines_ms: NDArray[np.int64] | None
    deliveries: NDArray[np.uint32]
    cancels: NDArray[np.uint32] | None

    def __len__(self) -> int:
        return len(self.offsets)

    def some(self, which: NDArray[np.intp]) -> Messages:
        """Some of them, by their indexes, ascending."""
        return Messages(
            self.topic,
            self.partition,
            self.offsets[which],
            None if self.deadlines_ms is None else self.deadlines_ms[which],
            self.deliveries[which],
            None if self.cancels is None else self.cancels[which],
        )

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First and last offset of each run of consecutive ones."""
        offsets = self.offsets
        if not len(offsets):
            return
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        firsts = [0, *(breaks + 1).tolist()]
        lasts = [*breaks.tolist(), len(offsets) - 1]
        for first, last in zip(firsts, lasts, strict=True):
            yield int(offsets[first]), int(offsets[last])


@dataclass(slots=True)
class Queued:
    """One message as a peek shows it (Q15).

    Attributes:
        topic: underlying topic.
        partition: its partition.
        offset: its offset.
        state: where it stands; None = scheduled, or dying.
        deadline_ms: its deadline, ms since the epoch; None without one.
        deliveries: deliveries so far.
        cancels: cancels so far.
        subscription: who holds its lease, or the id of its transfer; empty = nobody.
        until_ms: end of the lease or delay, or the scheduled instant, ms since the epoch.
        dying: whether only its dead letter is still to come (C27).
        confirmed: False = a transfer has put it here, and it is not to be seen yet (Q17).
    """

    topic: str
    partition: int
    offset: int
    state: State | None
    deadline_ms: int | None
    deliveries: int = 0
    cancels: int = 0
    subscription: str = ""
    until_ms: int | None = None
    dying: bool = False
    confirmed: bool = True

    @property
    def stands(self) -> str:
        """Its state in a word."""
        if self.state is None:
            return "dying" if self.dying else "scheduled" if self.confirmed else "unconfirmed"
        return self.state.name.lower()


@dataclass(slots=True)
class Delivery:
    """Messages that go to a subscription.

    Attributes:
        subscription: its id.
        messages: which.
        until_ms: end of the lease, ms since the epoch; 0 without a lease (at-most-once).
        by_reference: whether they go without their payloads.
        barrier: whether this is a barrier, which nobody has to settle (Q12).
    """

    subscription: str
    messages: Messages
    until_ms: int
    by_reference: bool = False
    barrier: bool = False


@dataclass(slots=True)
class Removal:
    """Messages that left for L14's reasons.

    Attributes:
        messages: which.
        reasons: why, in L14's order.
        at_ms: instant of the decision, ms since the epoch.
        letter: whether they get dead letters.
        detail: the text of the fault; empty = a standard sentence.
        subscription: whose doing it was, if anyone's.
    """

    messages: Messages
    reasons: tuple[Reason, ...]
    at_ms: int
    letter: bool
    detail: str = ""
    subscription: str = ""


@dataclass(slots=True)
class Happening:
    """Something to be told on the event topic.

    Attributes:
        kind: the event's name.
        at_ms: its instant, ms since the epoch.
        messages: which messages; None where it is about the queue.
        subscription: whose.
        detail: a sentence for people.
    """

    kind: str
    at_ms: int
    messages: Messages | None = None
    subscription: str = ""
    detail: str = ""


@dataclass(slots=True)
class Step:
    """Everything that one batch of inputs causes.

    Attributes:
        changes: already applied to the shard, to be made durable.
        deliveries: to be sent once the changes are durable.
        removals: dead letters and events, to be safe before the changes are.
        happenings: events, likewise.
        words: to other shards of the queue, to be sent once the changes are durable (Q18).
        verdicts: answers to those who asked for a deletion, likewise.
    """

    changes: list[Change] = field(default_factory=list)
    deliveries: list[Delivery] = field(default_factory=list)
    removals: list[Removal] = field(default_factory=list)
    happenings: list[Happening] = field(default_factory=list)
    words: list[Word] = field(default_factory=list)
    verdicts: list[Verdict] = field(default_factory=list)
