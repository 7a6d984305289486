"""Step: the results of a queue shard's inputs, which are changes for the journal and outputs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

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
    """Messages of one source in columns. In deliveries they are in the order of delivery, elsewhere by place.

    Attributes:
        topic: the underlying topic.
        partition: the topic's partition.
        offsets: offset of each message.
        deadlines_ms: deadline of each message, ms since the epoch; None = none expires.
        deliveries: delivery count of each message.
        cancels: cancel count of each message; None = all 0.
    """

    topic: str
    partition: int
    offsets: NDArray[np.int64]
    deadlines_ms: NDArray[np.int64] | None
    deliveries: NDArray[np.uint32]
    cancels: NDArray[np.uint32] | None

    def __len__(self) -> int:
        return len(self.offsets)

    def select(self, which: NDArray[np.intp]) -> Messages:
        """Return the messages at some indexes."""
        return Messages(
            self.topic,
            self.partition,
            self.offsets[which],
            None if self.deadlines_ms is None else self.deadlines_ms[which],
            self.deliveries[which],
            None if self.cancels is None else self.cancels[which],
        )

    @staticmethod
    def concatenate(some: Sequence[Messages]) -> Messages:
        """Concatenate messages, as if all were of the first one's source."""
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
        """Return the messages from index `first` up to `stop`."""
        return self.part((self.topic, self.partition), first, stop)

    def part(self, source: tuple[str, int], first: int, stop: int) -> Messages:
        """Return the messages from index `first` up to `stop`, as messages of the given topic and partition."""
        return Messages(
            *source,
            self.offsets[first:stop],
            None if self.deadlines_ms is None else self.deadlines_ms[first:stop],
            self.deliveries[first:stop],
            None if self.cancels is None else self.cancels[first:stop],
        )

    def ranges(self) -> Iterator[tuple[int, int]]:
        """Yield first and last offset of each run of consecutive offsets."""
        if len(self.offsets) < 2:
            for offset in self.offsets.tolist():
                yield offset, offset
            return
        firsts, lasts = self.range_columns()
        yield from zip(firsts.tolist(), lasts.tolist(), strict=True)

    def range_columns(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first and last offsets of all runs of consecutive offsets."""
        offsets = self.offsets
        breaks = np.flatnonzero(np.diff(offsets) != 1)
        return np.concatenate((offsets[:1], offsets[breaks + 1])), np.concatenate((offsets[breaks], offsets[-1:]))


def _column(
    parts: Sequence[NDArray[T] | None], counts: Sequence[int], missing: int, kind: type[T]
) -> NDArray[T] | None:
    """Concatenate columns. A missing column counts as its default value; None if all are missing."""
    if all(part is None for part in parts):
        return None
    filled = [
        np.full(count, missing, kind) if part is None else part for part, count in zip(parts, counts, strict=True)
    ]
    return np.concatenate(filled)


@dataclass(slots=True)
class Queued:
    """A message as a peek shows it (Q15).

    Attributes:
        topic: the underlying topic.
        partition: the topic's partition.
        offset: its offset.
        state: its state; None = scheduled, held, unconfirmed or dying.
        deadline_ms: its deadline, ms since the epoch; None without one.
        deliveries: its delivery count.
        cancels: its cancel count.
        subscription: id of the subscription that holds its lease, or of its transfer; empty = none.
        until_ms: end of the lease or delay, or the scheduled instant, ms since the epoch.
        pending: whether it is dying: removed, with a dead letter that the broker refuses (C27).
        confirmed: False = a transfer has put it here and not confirmed it (Q17).
        held: whether its instant has come, and only the target depth holds it (C51).
        waits_for: what a barrier waits for, the rates that an available message waits for, or why the broker refuses
            the dead letter; empty = nothing (C48).
        since_ms: start of its lease, ms since the epoch; None = no lease, or not known.
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
    held: bool = False
    waits_for: str = ""
    since_ms: int | None = None

    @property
    def state_name(self) -> str:
        """The name of its state."""
        if self.state is None:
            if self.pending or self.held:
                return "dying" if self.pending else "held"
            return "scheduled" if self.confirmed else "unconfirmed"
        return self.state.name.lower()


@dataclass(slots=True)
class Delivery:
    """Messages handed to a subscription.

    Attributes:
        subscription: id of the subscription.
        messages: the messages.
        until_ms: end of the lease, ms since the epoch; 0 without a lease (at-most-once).
        payload: how the messages are written; a barrier always gets its own record.
        barrier: whether this is a barrier, which need not be settled (Q12).
    """

    subscription: str
    messages: Messages
    until_ms: int
    payload: Payload = "inline"
    barrier: bool = False


@dataclass(slots=True)
class Removal:
    """Messages that left for reasons of L14.

    Attributes:
        messages: the messages.
        reasons: the reasons, in L14's order.
        at_ms: instant of the decision, ms since the epoch.
        letter: whether they get dead letters.
        detail: text of the fault; empty = a standard sentence.
        subscription: id of the subscription that caused it; empty = none did.
        places: place of each message; for a message that never had one, the next place then. None = not known.
        incarnation: distinguishes their topic from earlier ones with the same name (C42); 0 = there were none.
    """

    messages: Messages
    reasons: tuple[Reason, ...]
    at_ms: int
    letter: bool
    detail: str = ""
    subscription: str = ""
    places: NDArray[np.int64] | None = None
    incarnation: int = 0

    def place(self, at: int) -> int:
        """Return the place of a message, by its index; 0 if places are not known."""
        return 0 if self.places is None else int(self.places[at])

    def event(self) -> ShardEvent[Messages]:
        """Return the event that reports the removal."""
        kind = EventKind.DEAD_LETTERED if self.letter else EventKind.EXPIRED
        return ShardEvent(kind, self.at_ms, self.messages, self.subscription, self.detail, self.reasons)


@dataclass(slots=True, init=False)
class Step(ShardStep[Messages, Removal, Delivery]):
    """All effects of one batch of inputs.

    Attributes:
        changes: the changes, already applied to the shard, to be journaled.
        lost: the facts of each subscription with messages out that ended because its consumer is lost. They are
            journaled before anything of this step is written (C5).
    """

    changes: list[Change] = field(default_factory=list)
    lost: list[dict[str, Any]] = field(default_factory=list)

    def __init__(self) -> None:
        """Begin empty. The constructor that a dataclass would get takes three times as long."""
        self.events = []
        self.removals = []
        self.deliveries = []
        self.answers = []
        self.shard_messages = []
        self.verdicts = []
        self.changes = []
        self.lost = []
