"""Figures of one shard, counted per step and never per message; `metrics` exports them (D, Q15)."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.step import Messages
from lapse.core.queue.step import Step as QueueStep
from lapse.core.reason import Reason
from lapse.core.shard.event import EventKind
from lapse.core.sow.step import ExpiryBatch, Message
from lapse.core.sow.step import Step as SowStep

LATENESS_BOUNDS_S: Final = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0)
DURATION_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
LAG_BOUNDS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0)


class Distribution:
    """A histogram.

    Args:
        bounds: upper ends of the buckets, ascending. One more bucket counts greater values.
    """

    __slots__ = ("bounds", "counts", "total")

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.counts = [0] * (len(self.bounds) + 1)
        self.total = 0.0

    def add(self, value: float) -> None:
        """Count one value."""
        self.counts[bisect_left(self.bounds, value)] += 1
        self.total += value

    def add_all(self, values: NDArray[np.float64]) -> None:
        """Count many values."""
        found = np.bincount(np.searchsorted(self.bounds, values), minlength=len(self.counts))
        self.counts = (np.array(self.counts) + found).tolist()
        self.total += float(values.sum())

    def buckets(self) -> list[tuple[str, float]]:
        """Return each bucket's upper end, and the number of values up to it, as Prometheus expects."""
        ends = [*(str(bound) for bound in self.bounds), "+Inf"]
        return list(zip(ends, np.cumsum(self.counts).astype(float).tolist(), strict=True))


class ShardFigures:
    """What one shard has done since this worker took it over.

    Attributes:
        counts: messages by what happened to them: `delivered`, `arrived`, and the events' kinds.
        removals: messages by reason. One that left for two reasons counts under both.
        dead_letters: letters written.
        refused_commands: commands answered with an error.
        denied: commands whose sender was not authenticated or lacked the right, by cause (X4).
        journal_bytes: bytes written to the journal, before compression.
        letters_waiting: letters that are being written now.
        lateness: from deadline to decision, for messages that only their lifetime removed, s.
        step_duration: duration of steps, s.
        tick_lag: from a tick's timestamp to the step that handles it, s.
        stages: time of messages in each stage (see `lapse.runtime.shard.timeline`), s.
    """

    __slots__ = (
        "counts",
        "dead_letters",
        "denied",
        "journal_bytes",
        "lateness",
        "letters_waiting",
        "refused_commands",
        "removals",
        "stages",
        "step_duration",
        "tick_lag",
    )

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self.removals: Counter[str] = Counter()
        self.dead_letters = 0
        self.refused_commands = 0
        self.denied: Counter[str] = Counter()
        self.journal_bytes = 0
        self.letters_waiting = 0
        self.lateness = Distribution(LATENESS_BOUNDS_S)
        self.step_duration = Distribution(DURATION_BOUNDS_S)
        self.tick_lag = Distribution(LAG_BOUNDS_S)
        self.stages: defaultdict[str, Distribution] = defaultdict(lambda: Distribution(DURATION_BOUNDS_S))

    def queue_step(self, step: QueueStep) -> None:
        """Count a queue's step."""
        counts = self.counts
        for delivery in step.deliveries:
            counts["delivered"] += len(delivery.messages)
        for event in step.events:
            if event.ends_entity:
                continue  # it is about the queue, and the counts are about records
            if event.reasons and event.messages is not None:
                self._left(event.messages, event.reasons, event.at_ms, letter=True)  # a pending letter was written
            else:
                counts[event.kind] += 1 if event.messages is None else len(event.messages)
        for removal in step.removals:
            self._left(removal.messages, removal.reasons, removal.at_ms, letter=removal.letter)

    def _left(self, messages: Messages, reasons: Sequence[Reason], at_ms: int, *, letter: bool) -> None:
        """Count messages that left a queue."""
        size, deadlines_ms = len(messages), messages.deadlines_ms
        self.dead_letters += size if letter else 0
        for reason in reasons:
            self.removals[reason] += size
        if tuple(reasons) == (Reason.TIME_LIMIT,) and deadlines_ms is not None:
            # A lease delays expiry, and that is not lateness. So only messages without a delivery count.
            if size == 1:
                if not messages.deliveries[0]:
                    self.lateness.add((at_ms - int(deadlines_ms[0])) / 1000)
            else:
                self.lateness.add_all((at_ms - deadlines_ms[messages.deliveries == 0]) / 1000)

    def sow_step(self, step: SowStep) -> None:
        """Count a SOW topic's step."""
        late: list[int] = []
        fates: Counter[tuple[str, tuple[Reason, ...]]] = Counter()
        for one in step.events:
            if one.ends_entity:
                continue
            match one.messages:
                case ExpiryBatch(records):
                    fates[one.kind, one.reasons] += len(records)
                    late += [one.at_ms - deadline_ms for _, _, _, deadline_ms in records]
                case about:
                    fates[one.kind, one.reasons] += 1
                    by_time = one.reasons == (Reason.TIME_LIMIT,) and one.kind != EventKind.DYING
                    if by_time and about is not None and about.deadline_ms != NEVER:
                        late.append(one.at_ms - about.deadline_ms)
        for (kind, reasons), size in fates.items():
            self.counts[kind] += size
            self.dead_letters += size if kind == EventKind.DEAD_LETTERED else 0
            for reason in () if kind == EventKind.DYING else reasons:
                self.removals[reason] += size
        if late:
            self.lateness.add_all(np.array(late, np.float64) / 1000)
        self.counts["sow_messages"] += sum(
            1 if isinstance(one, Message) else len(one.records) for one in step.deliveries
        )
