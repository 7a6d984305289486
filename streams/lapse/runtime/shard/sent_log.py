"""Tracks the outputs of a shard step by step, so that the next owner can find those that are missing (C55).

A step's journal names the first step whose outputs may be missing, and where each deliveries topic stood before that
step. A new owner reads from there, and writes what is missing. What was too late to be sent is missing as well, until a
journal says that it was taken back.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, Protocol

if TYPE_CHECKING:
    from lapse.runtime.kafka.record_batch import Leased  # aiokafka, which not all have

PROGRESS_KEY: Final = ":deliveries"
"""Key in the record of read positions. It resembles neither a topic's name nor a partition's key."""

INSTANTS: Final = "at"
"""Key beside the step's number: the instants that were taken from the clock, by name, for replays (X10)."""

STEPS: Final = "steps"
"""Key beside it: the preceding steps without changes, each with its end (`READ`) and its `INSTANTS`."""

READ: Final = "read"
"""Key in such a step: the next offset of each source behind it, by `topic:partition`."""

MOST_STEPS: Final = 192
"""The journal goes on at most so many steps behind a step whose outputs are not safe. Fewer than a queue's journal
holds, since a new owner must find there what that step handed out."""

AT_START: Final = "unsent at start"
"""Before the first step, for deliveries of the former owner. The epoch's beginning holds the result."""

BEGIN: Final = "unsent"
"""Before the messages and commands of a step."""

BEHIND: Final = "unsent behind"
"""Behind the messages and commands of a step, before its timers act."""

Sent = asyncio.Future[Any]


class TakesBack(Protocol):
    """Takes back the deliveries of a shard that reached nobody."""

    @property
    def step(self) -> int:
        """The number that the step in flight gets in the journal."""

    def take_back(self, batches: Iterable[Leased], where: str) -> None:
        """Take back the deliveries in batches that were never sent.

        Args:
            batches: the batches.
            where: at which point of the step: `AT_START`, `BEGIN` or `BEHIND`.
        """


@dataclass(slots=True)
class _Batch:
    """A batch of a step.

    Attributes:
        step: the step's number.
        leased: what the batch has under a lease.
        taken_with: number of the step that took its deliveries back; None if none did.
    """

    step: int
    leased: Leased
    taken_with: int | None = None


class UnderLease:
    """Batches that may never be sent, in the order of their steps."""

    def __init__(self) -> None:
        self._batches: deque[_Batch] = deque()

    def add(self, step: int, some: Iterable[Leased]) -> None:
        """Add the batches of a step."""
        self._batches.extend(_Batch(step, leased) for leased in some)

    def take_late(self, now_s: float, step: int) -> list[Leased]:
        """Return batches that were not sent and never will be, each once.

        Args:
            now_s: the instant, on the monotonic clock, s.
            step: number of the step that takes their deliveries back.
        """
        self._forget()
        late = [one for one in self._batches if one.taken_with is None and one.leased.is_late(now_s)]
        for one in late:
            one.taken_with = step
        return [one.leased for one in late]

    def first_step(self, step: int, otherwise: int) -> int:
        """Return the first step whose deliveries were not sent, while the journal does not say so yet (C55).

        Args:
            step: the step that is journaled now.
            otherwise: the result if there is no earlier one.
        """
        self._forget(step)
        return min([otherwise, *(one.step for one in self._batches)])

    def is_missing(self, step: int) -> bool:
        """Return whether a step, or an earlier one, has deliveries that were not sent and are not taken back yet."""
        return any(one.step <= step and not one.leased.is_sent for one in self._batches)

    def _forget(self, step: int = -1) -> None:
        """Forget what was sent, and what the journal says up to a step."""
        if self._batches:
            kept = (one for one in self._batches if one.taken_with is None or one.taken_with > step)
            self._batches = deque(one for one in kept if not one.leased.is_sent)


class SentLog:
    """Outputs that are being written, in order.

    Args:
        floors: for each deliveries topic, an offset below all outputs of this epoch; empty if no owner looks for them.

    Attributes:
        under_lease: batches that may never be sent.
    """

    def __init__(self, floors: Mapping[str, int]) -> None:
        self._floors = dict(floors)
        self._next_floors: dict[str, int] = {}
        self._waiting: deque[tuple[int, Sent]] = deque()
        self.under_lease = UnderLease()

    def __len__(self) -> int:
        return len(self._waiting)

    def __iter__(self) -> Iterator[Sent]:
        return (sent for _, sent in self._waiting)

    def add(self, step: int, some: Iterable[Sent]) -> None:
        """Add the outputs of a step."""
        self._waiting.extend((step, sent) for sent in some)

    async def first(self) -> None:
        """Wait for the oldest output, and remove it. Raise its error if it failed."""
        step, sent = self._waiting.popleft()
        try:
            metadata = await sent
            if self._floors and metadata is not None and metadata.topic in self._floors:
                self._next_floors[metadata.topic] = metadata.offset
        finally:
            is_last = not self._waiting or self._waiting[0][0] != step
            if is_last and not self.under_lease.is_missing(step):
                # All up to the step is safe. Its last batch is read again later, because its offset is that of its
                # first record.
                self._floors.update(self._next_floors)
                self._next_floors.clear()

    def holds_up(self, step: int) -> bool:
        """Return whether a step must not be journaled before the oldest output is safe."""
        return bool(self._floors and self._waiting) and self._waiting[0][0] <= step - MOST_STEPS

    def progress(self, step: int) -> dict[str, dict[str, Any]]:
        """Return what the journal of a step says of outputs.

        Args:
            step: the step that is journaled. Its own outputs are sent later.
        """
        if not self._floors:
            return {}
        first = self.under_lease.first_step(step, self._waiting[0][0] if self._waiting else step)
        return {PROGRESS_KEY: {"step": first, "from": dict(self._floors)}}
