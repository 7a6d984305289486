"""A queue's step in flight, with an estimate of its size in the journal, because it must fit into one RecordBatch."""

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
"""Name of the instant at which a step's last messages arrived. A batch's own instant has the batch's position behind
it."""

TAKEN: Final = "taken"
"""Prefix for how far a partition was read by one of several takes of a step; the take and the partition follow."""

EMITTED: Final = "emitted"
"""Name of the number of events of a step, kept among the instants. They may be written before the journal of the
step before."""

SET_BACK: Final = "back"
"""Name of the instant to which a step set the shard back at its beginning (C3)."""

_CHANGE_BYTES: Final = 64
"""Estimated bytes of a change in the journal, without its places."""


@dataclass(slots=True)
class QueueStepInFlight(StepInFlight[Step]):
    """A queue's step in flight.

    Attributes:
        weighed: the number of changes whose bytes in the journal are known, and the sum of these bytes.
        expected_bytes: about how many bytes the waiting commands will add.
        has_arrivals: whether messages arrived that do not count as use of the queue yet.
        unread: events about messages that Kafka removed before they were read (C80).
        stands_alone: see `Effects.stands_alone`. True after a command, or if not all could be handed out.
        takes: how many takes of messages from several partitions are noted.
        last_take: the next offsets after the last take. It is noted only if another take follows.
    """

    weighed: tuple[int, int] = (0, 0)
    expected_bytes: int = 0
    has_arrivals: bool = False
    unread: list[Output] = field(default_factory=list)
    stands_alone: bool = False
    takes: int = 0
    last_take: Mapping[TP, int] = field(default_factory=dict)

    def expect(self, changes: int) -> None:
        """Count a waiting command that will make about `changes` changes."""
        self.expected_bytes += _CHANGE_BYTES * changes

    @property
    def outcomes(self) -> int:
        """The number of events and removals so far."""
        return len(self.core.events) + len(self.core.removals)

    def came_at(self, records: Sequence[Any], now_ms: int, clock_ms: Callable[[], int]) -> tuple[int, int | None]:
        """Return the instant at which records arrived, ms since the epoch, and the same again if the clock gave it.

        The second value is None if the broker stamped the records, since a replay then finds the instant in them.

        Args:
            records: the records.
            now_ms: the latest instant that the shard knows, ms since the epoch.
            clock_ms: returns the time of the broker's clock, ms since the epoch.
        """
        if not records:
            return now_ms, None
        if getattr(records[-1], "timestamp_type", None) == BY_THE_BROKER:
            # The broker's timestamp may be later than any instant known so far, after a crash or a pause (C76).
            return max(now_ms, records[-1].timestamp), None
        self.instants[ARRIVED] = came_ms = max(now_ms, clock_ms())
        return came_ms, came_ms

    def note_batch(
        self, topic: str, partition: int, records: Sequence[Any], outcomes: int, clock_ms: int | None = None
    ) -> None:
        """Note which records arrived together if they caused an event, since its instant is the last record's (X10).

        A batch that was taken in only in part is noted, too, because a replay could not know how many records it had.

        Args:
            topic: the topic of the records.
            partition: its partition.
            records: the records, by their offsets.
            outcomes: the number of events and removals before; -1 to note the batch in any case.
            clock_ms: the instant of arrival, ms since the epoch; None if the broker's timestamp counts.
        """
        if self.outcomes != outcomes:
            first_bookmark = f"{topic}:{partition}:{records[0].offset}"
            self.instants[first_bookmark] = records[-1].offset + 1
            if clock_ms is not None:
                self.instants[f"{ARRIVED}:{first_bookmark}"] = clock_ms

    def note_set_back(self, now_ms: int) -> int:
        """Note that the step set the shard back to an instant, since a replay cannot know it (X10); return it."""
        self.instants[SET_BACK] = now_ms
        self.stands_alone = True
        return now_ms

    def note_take(self, ends: Mapping[TP, int]) -> None:
        """Note the take before this one, because a replay would make one of two takes of a step (X10).

        Args:
            ends: by partition, the next offset after this take.
        """
        if self.last_take:
            self.takes += 1
            for tp, end in self.last_take.items():
                self.instants[f"{TAKEN}:{self.takes}:{tp.topic}:{tp.partition}"] = end
        self.last_take = ends

    def journal_bytes(self) -> int:
        """Return about how many bytes the step takes in the journal, including those of waiting commands."""
        changes = self.core.changes
        count, size = self.weighed
        for change in changes[count:]:
            size += _CHANGE_BYTES + size_of(change.places)
            size += 0 if change.deadlines_ms is None else 8 * len(change.deadlines_ms)
        self.weighed = (len(changes), size)
        return size + self.expected_bytes
