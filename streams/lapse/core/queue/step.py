"""A step: the results of a queue shard's inputs: changes for the journal, and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.change import Change
from lapse.core.queue.segments.segment import State
from lapse.core.queue.subscriptions.subscription import Payload
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind, ShardEvent
from lapse.core.shard.step import Step as ShardStep

T = TypeVar("T", np.int64, np.uint32)


@dataclass(slots=True)
class Messages:
    """Messages of one source, with what the shard knows of each: deliveries in their order, all else in that of places.

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

    @staticmethod
    def joined(some: Sequence[Messages]) -> Messages:
        """All messages, one after the other, as if they were of the first one's source."""
        counts = [len(one) for one in some]
        return Messages(
            some[0].topic,
            some[0].partition,
            np.concatenate([one.offsets for one in some]),
            _column([one.deadlines_ms for one in some], counts, NEVER, np.int64),
            np.concatenate([one.deliveries for one in some]),
            _column([one.cancels for one in some], counts, 0, np.uint32),
        )

    def cut(self, first: int, stop: int) -> Messages:
        """Those from `first` on, before `stop`."""
        return self.part((self.topic, self.partition), first, stop)

    def part(self, source: tuple[str, int], first: int, stop: int) -> Messages:
        """Those from `first` on, before `stop`, as messages of that topic and partition."""
        return Messages(
            *source,
            self.offsets[first:stop],
            None if self.deadlines_ms is None else self.deadlines_ms[first:stop],
            self.deliveries[first:stop],
            None if self.cancels is None else self.cancels[first:stop],
        )

    def ranges(self) -> Iterator[tuple[int, int]]:
        """First and last offset of each run of consecutive ones."""
        offsets = self.offsets
        if len(offsets) < 2:
            for offset in offsets.tolist():
                yield offset, offset
            return
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        firsts = [0, *(breaks + 1).tolist()]
        lasts = [*breaks.tolist(), len(offsets) - 1]
        for first, last in zip(firsts, lasts, strict=True):
            yield int(offsets[first]), int(offsets[last])


def _column(
    parts: Sequence[NDArray[T] | None], counts: Sequence[int], missing: int, kind: type[T]
) -> NDArray[T] | None:
    """Columns of several messages as one. An empty column gets its default value for each message."""
    if all(part is None for part in parts):
        return None
    filled = [
        np.full(count, missing, kind) if part is None else part for part, count in zip(parts, counts, strict=True)
    ]
    return np.concatenate(filled)


@dataclass(slots=True)
class Queued:
    """One message as a peek shows it (Q15).

    Attributes:
        topic: underlying topic.
        partition: its partition.
        offset: its offset.
        state: where it stands; None = scheduled, held for want of room, or dying.
        deadline_ms: its deadline, ms since the epoch; None without one.
        deliveries: deliveries so far.
        cancels: cancels so far.
        subscription: who holds its lease, or the id of its transfer; empty = nobody.
        until_ms: end of the lease or delay, or the scheduled instant, ms since the epoch.
        pending: whether only its dead letter is still to come (C27).
        confirmed: False = a transfer has put it here, and it is not to be seen yet (Q17).
        ready: whether its instant has come, and only the target depth keeps it out (C51).
        waits_for: what a barrier waits for, the rate that an available message waits for and until when, or why the
            broker refuses the dead letter; empty = nothing (C48).
        since_ms: when its lease began, ms since the epoch; None = it has none, or that is not known.
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
    pending: bool = False
    confirmed: bool = True
    ready: bool = False
    waits_for: str = ""
    since_ms: int | None = None

    @property
    def stands(self) -> str:
        """Its state in a word."""
        if self.state is None:
            if self.pending or self.ready:
                return "dying" if self.pending else "held"
            return "scheduled" if self.confirmed else "unconfirmed"
        return self.state.name.lower()


@dataclass(slots=True)
class Delivery:
    """Messages that go to a subscription.

    Attributes:
        subscription: its id.
        messages: which.
        until_ms: end of the lease, ms since the epoch; 0 without a lease (at-most-once).
        payload: how they are written; a barrier stands in a record of its own in any case.
        barrier: whether this is a barrier, which nobody has to settle (Q12).
    """

    subscription: str
    messages: Messages
    until_ms: int
    payload: Payload = "inline"
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
        places: place of each message; of one that never had any, the place of the next that comes. None = not known.
    """

    messages: Messages
    reasons: tuple[Reason, ...]
    at_ms: int
    letter: bool
    detail: str = ""
    subscription: str = ""
    places: NDArray[np.int64] | None = None

    def place(self, at: int) -> int:
        """Where a message stood, by its index; the first place of all where that is not known."""
        return 0 if self.places is None else int(self.places[at])

    def event(self) -> ShardEvent[Messages]:
        """The event that reports it."""
        kind = EventKind.DEAD_LETTERED if self.letter else EventKind.EXPIRED
        return ShardEvent(kind, self.at_ms, self.messages, self.subscription, self.detail, self.reasons)


@dataclass(slots=True)
class Step(ShardStep[Messages, Removal, Delivery]):
    """Everything that one batch of inputs causes.

    Attributes:
        changes: already applied to the shard, to be made durable.
    """

    changes: list[Change] = field(default_factory=list)
