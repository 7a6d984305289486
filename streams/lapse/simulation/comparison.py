"""Compares recorded events with those of a replay of the same stretch."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from lapse.protocol.event import Event
from lapse.runtime.queue.in_flight import EMITTED
from lapse.simulation.recorded_journal import RecordedEpoch, RecordedJournal


class RecordedEvent(NamedTuple):
    """A recorded event.

    Attributes:
        written_ms: when it was written, ms since the epoch.
        event: the event.
    """

    written_ms: int
    event: Event


@dataclass(frozen=True, slots=True)
class Comparison:
    """The events of a shard, recorded and replayed.

    Attributes:
        partition: the shard's number.
        began_ms: when the replayed stretch begins, ms since the epoch; None if there is none.
        epochs: its number of owners.
        steps: its number of steps.
        recorded: how many events the topic has of that stretch.
        unjournaled: recorded events of steps that ended before their journal, for example by a crash. What happened
            instead has events, too.
        missing: recorded events that the replay did not emit.
        extra: events of the replay that are not recorded.
        in_order: whether the common events are in the same order.
        events: the events of the replay.
    """

    partition: int
    began_ms: int | None
    epochs: int
    steps: int
    recorded: int
    unjournaled: int
    missing: list[Event] = field(default_factory=list)
    extra: list[Event] = field(default_factory=list)
    in_order: bool = True
    events: list[Event] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Whether the events are the same, in the same order."""
        return self.in_order and not self.missing and not self.extra


def compare(
    partition: int, journal: RecordedJournal, recorded: Sequence[RecordedEvent], replayed: Sequence[Event]
) -> Comparison:
    """Compare the events of a shard.

    Args:
        partition: the shard's number.
        journal: its journal.
        recorded: the events of its partition of the events topic.
        replayed: the events of the replay.
    """
    began_ms = journal.began_ms
    steps = sum(len(epoch.steps) for epoch in journal.epochs)
    if began_ms is None:
        return Comparison(partition, None, 0, 0, 0, 0, extra=list(replayed), events=list(replayed))
    ended_ms = {epoch.number: (epoch.steps[-1] if epoch.steps else epoch.begin).at_ms for epoch in journal.epochs}
    left = _emitted_by_epoch(journal)
    first = journal.epochs[0]
    again = Counter(replayed)
    common: list[Event] = []
    missing: list[Event] = []
    unjournaled = 0
    for one in recorded:
        epoch = one.event.epoch
        is_journaled = _is_of_journaled_step(one, left)
        if again[one.event]:
            again[one.event] -= 1
            common.append(one.event)
        elif one.written_ms < began_ms or epoch < first.number:
            continue  # emitted before, perhaps by a deleted queue with this name, whose epochs may be higher
        elif epoch == first.number and not first.taken_over and one.written_ms == began_ms:
            continue
        elif one.written_ms >= ended_ms.get(epoch, 0) if is_journaled is None else not is_journaled:
            unjournaled += 1
        else:
            missing.append(one.event)
    extra = list(again.elements())
    rest = Counter(extra)
    mine = []
    for event in replayed:
        if rest[event]:
            rest[event] -= 1
        else:
            mine.append(event)
    return Comparison(
        partition=partition,
        began_ms=began_ms,
        epochs=len(journal.epochs),
        steps=steps,
        recorded=len(common) + len(missing) + unjournaled,
        unjournaled=unjournaled,
        missing=missing,
        extra=extra,
        in_order=mine == common,
        events=list(replayed),
    )


class _UnseenEvents:
    """How many events of an epoch's journal are still to be seen.

    Args:
        epoch: the epoch.
        events: how many events its steps emitted.
    """

    def __init__(self, epoch: RecordedEpoch, events: int) -> None:
        self.begun_ms = epoch.begin.at_ms
        self.events = events


def _emitted_by_epoch(journal: RecordedJournal) -> dict[int, _UnseenEvents]:
    """Return for each epoch with its take-over how many events its steps emitted, where the journal says so."""
    found: dict[int, _UnseenEvents] = {}
    for epoch in journal.epochs:
        emitted = sum(step.instants.get(EMITTED, 0) for step in epoch.steps)
        if epoch.taken_over and emitted:
            found[epoch.number] = _UnseenEvents(epoch, emitted)
    return found


def _is_of_journaled_step(one: RecordedEvent, left: Mapping[int, _UnseenEvents]) -> bool | None:
    """Return whether an event is of a step with a journal, which its order shows; None if unknown.

    Its instant does not show that: events of a step may be written before the journal of the step before it.
    """
    epoch = left.get(one.event.epoch)
    if epoch is None or one.written_ms < epoch.begun_ms:
        return None
    epoch.events -= 1
    return epoch.events >= 0


def facts(one: Comparison) -> Mapping[str, object]:
    """Return the facts for JSON."""
    return {
        "partition": one.partition,
        "began_ms": one.began_ms,
        "epochs": one.epochs,
        "steps": one.steps,
        "recorded": one.recorded,
        "replayed": len(one.events),
        "unjournaled": one.unjournaled,
        "missing": len(one.missing),
        "extra": len(one.extra),
        "in_order": one.in_order,
        "same": one.same,
    }
