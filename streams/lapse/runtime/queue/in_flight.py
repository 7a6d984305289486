"""A queue's step on its way, and about how large it is in the journal: a step is one RecordBatch."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from lapse.core.queue.journal.places import size_of
from lapse.core.queue.step import Step
from lapse.runtime.kafka.output import Output
from lapse.runtime.shard.effects import StepInFlight
from lapse.runtime.timers.clock import BY_THE_BROKER
from lapse.runtime.tp import TP

ARRIVED: Final = "arrived"
"""Name of the instant at which a step's last messages came; before the place of a batch, of that one's."""

TAKEN: Final = "taken"
"""Name of how far a partition was taken in by one of several takes of a step; before the take and the place."""

EMITTED: Final = "emitted"
"""Beside the instants: how many events a step emitted. They may be written before the journal of the step before is."""

_CHANGE_BYTES: Final = 64
"""What a change takes in the journal, its places left out."""


@dataclass(slots=True)
class QueueStepInFlight(StepInFlight[Step]):
    """A queue's step on its way.

    Attributes:
        weighed: of how many changes the bytes in the journal are known, and how many bytes those are.
        expected_bytes: about how many more the commands take that wait.
        has_arrivals: whether messages arrived that do not count as use yet.
        unread: events about messages that Kafka removed before they were read (C80).
        stands_alone: see `Effects.stands_alone`: a command was carried out, or not all could be handed out.
        takes: how many takes of messages, merged by time, are noted.
        last_take: how far the last one went, which is to be noted if another one follows.
    """

    weighed: tuple[int, int] = (0, 0)
    expected_bytes: int = 0
    has_arrivals: bool = False
    unread: list[Output] = field(default_factory=list)
    stands_alone: bool = False
    takes: int = 0
    last_take: Mapping[TP, int] = field(default_factory=dict)

    def expect(self, changes: int) -> None:
        """Know that a command waits that makes about so many changes."""
        self.expected_bytes += _CHANGE_BYTES * changes

    @property
    def outcomes(self) -> int:
        """How many events and removals it has so far."""
        return len(self.core.events) + len(self.core.removals)

    def came_at(self, records: Sequence[Any], now_ms: int, clock_ms: Callable[[], int]) -> tuple[int, int | None]:
        """The instant at which records arrived, ms since the epoch, and the same again if it is read from the clock.

        The second is None if the broker has stamped the records. Then a replay finds the instant in them.

        Args:
            records: the records.
            now_ms: the latest instant that the shard has heard of.
            clock_ms: the broker's clock.
        """
        if not records:
            return now_ms, None
        if getattr(records[-1], "timestamp_type", None) == BY_THE_BROKER:
            # The broker's stamp may be later than any instant heard before, after a crash or a pause (C76).
            return max(now_ms, records[-1].timestamp), None
        self.instants[ARRIVED] = came_ms = max(now_ms, clock_ms())
        return came_ms, came_ms

    def note_batch(
        self, topic: str, partition: int, records: Sequence[Any], outcomes: int, clock_ms: int | None = None
    ) -> None:
        """Note which records came together, if they caused an event: its instant is the last record's (X10).

        If there was room for some of them only, they are noted, too: a replay could not know how many came.

        Args:
            topic: their topic.
            partition: its partition.
            records: the records, by their offsets.
            outcomes: how many events and removals there were before; -1 = it is noted in any case.
            clock_ms: the instant at which they came, ms since the epoch; None = the broker's stamp says it.
        """
        if self.outcomes != outcomes:
            place = f"{topic}:{partition}:{records[0].offset}"
            self.instants[place] = records[-1].offset + 1
            if clock_ms is not None:
                self.instants[f"{ARRIVED}:{place}"] = clock_ms

    def took_together(self, ends: Mapping[TP, int]) -> None:
        """Note the take before this one: a replay finds all of a step at once, and would merge two takes (X10).

        Args:
            ends: how far this take went in each partition that it took something of.
        """
        if self.last_take:
            self.takes += 1
            for tp, end in self.last_take.items():
                self.instants[f"{TAKEN}:{self.takes}:{tp.topic}:{tp.partition}"] = end
        self.last_take = ends

    def journal_bytes(self) -> int:
        """About how many bytes it takes in the journal so far, what is expected included."""
        changes = self.core.changes
        count, size = self.weighed
        for change in changes[count:]:
            size += _CHANGE_BYTES + size_of(change.places)
            size += 0 if change.deadlines_ms is None else 8 * len(change.deadlines_ms)
        self.weighed = (len(changes), size)
        return size + self.expected_bytes
