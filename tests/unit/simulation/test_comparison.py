"""Recorded events beside those of a replay: which are the same, and which are of another life (X10)."""

from __future__ import annotations

import pytest

from lapse.protocol.event import Event
from lapse.simulation.comparison import RecordedEvent, compare
from lapse.simulation.recorded_journal import RecordedEpoch, RecordedJournal, RecordedStep

pytestmark = pytest.mark.feature("X10")


def step(at_ms: int) -> RecordedStep:
    return RecordedStep(at_ms, {}, {}, None)


def journal(*epochs: RecordedEpoch) -> RecordedJournal:
    made = RecordedJournal([])
    made.epochs = list(epochs)
    return made


def recorded_event(written_ms: int, epoch: int, kind: str = "expired") -> RecordedEvent:
    return RecordedEvent(written_ms, Event(entity="q", event=kind, at_ms=written_ms, partition=0, epoch=epoch))


@pytest.mark.parametrize("taken_over", [True, False])
def test_events_of_a_deleted_queue_of_the_same_name_are_of_another_life(taken_over: bool) -> None:
    """Its epochs began at 1 as well, and went further."""
    earlier = [
        recorded_event(100, 1),
        recorded_event(200, 2),
        recorded_event(300, 3),
        recorded_event(400, 3, "deleted"),
    ]
    own = [recorded_event(1_050, 1), recorded_event(1_150, 2)]
    lived = journal(
        RecordedEpoch(1, step(1_000), [step(1_100)], taken_over), RecordedEpoch(2, step(1_110), [step(1_200)])
    )
    found = compare(0, lived, [*earlier, *own], [one.event for one in own])
    assert (found.same, found.recorded, found.unjournaled) == (True, 2, 0)


def test_what_did_not_come_again_is_missing_unless_its_step_has_no_journal() -> None:
    lived = journal(RecordedEpoch(1, step(1_000), [step(1_100)]), RecordedEpoch(2, step(1_110), [step(1_200)]))
    early, late, new = recorded_event(1_050, 1), recorded_event(1_100, 1), recorded_event(1_150, 2)
    found = compare(0, lived, [early, late], [new.event])
    assert (found.missing, found.unjournaled, found.extra, found.same) == ([early.event], 1, [new.event], False)


def counted(at_ms: int, events: int) -> RecordedStep:
    return RecordedStep(at_ms, {}, {"emitted": events}, None)


def test_a_step_may_tell_before_the_journal_of_the_step_before_it() -> None:
    """The owner was killed when it had told the events of a step, and the journal before was being written."""
    lived = journal(
        RecordedEpoch(1, step(1_000), [counted(1_200, 2)]), RecordedEpoch(2, step(1_210), [counted(1_300, 1)])
    )
    first, second, cut_off, new = (
        recorded_event(1_150, 1),
        recorded_event(1_160, 1),
        recorded_event(1_190, 1),
        recorded_event(1_250, 2),
    )
    recorded = [first, second, cut_off, new]
    found = compare(0, lived, recorded, [first.event, second.event, new.event])
    assert (found.same, found.unjournaled) == (True, 1)
    other = compare(0, lived, recorded, [first.event, new.event])
    assert (other.missing, other.unjournaled) == ([second.event], 1), "the journal knows of two events"
