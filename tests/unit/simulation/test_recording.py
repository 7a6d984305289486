"""Recordings: what is read by offsets, where a journal can be begun with, and when events count as the same."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
import pytest

from lapse.config import QueueConfig
from lapse.core.shard.changelog import claim_key, epoch_header, progress_key
from lapse.protocol.event import Event
from lapse.runtime.tp import TP
from lapse.simulation.comparison import RecordedEvent, compare
from lapse.simulation.recorded_journal import RecordedJournal
from lapse.simulation.recording import Recorded, RecordedLog, Recording
from lapse.simulation.replay import NotReplayable, ReplayedShard
from lapse.simulation.serving import Serving

pytestmark = pytest.mark.feature("X10")


def record(offset: int, key: bytes = b"k", value: bytes | None = b"v", at_ms: int = 0, epoch: int = 1) -> Recorded:
    return Recorded("t", 0, offset, at_ms or 1_000 + offset, 1, key, value, tuple(epoch_header(epoch)))


def progress(offset: int, epoch: int, read: int, instants: Mapping[str, int] = {}, at_ms: int = 0) -> Recorded:
    published: dict[str, Any] = {
        "t:0": read,
        "t": ["id", 0],
        ":deliveries": {"step": 1, "from": {}, "at": dict(instants)},
    }
    return record(offset, progress_key(epoch), orjson.dumps(published), at_ms, epoch)


def claim(offset: int, epoch: int) -> Recorded:
    return record(offset, claim_key(epoch), b"", epoch=epoch)


def event(at_ms: int, epoch: int = 1, kind: str = "acknowledged") -> Event:
    return Event(entity="q", event=kind, at_ms=at_ms, partition=0, epoch=epoch)


LIFE = [
    claim(0, 1),
    progress(1, 1, 0),
    record(2),
    progress(3, 1, 5, {"delivered": 77}),
    claim(4, 2),
    record(5, epoch=1),  # void: its author had lost the shard
    progress(6, 2, 5),
    record(7, epoch=2),
    progress(8, 2, 9, {"began": 88}),
]


def test_a_log_is_read_by_offsets_also_where_some_are_missing() -> None:
    log = RecordedLog([record(offset) for offset in (3, 4, 7)])
    assert [one.offset for one in log[4:]] == [4, 7]
    assert [one.offset for one in log[:7]] == [3, 4]
    assert log[7].offset == 7
    assert (len(log), log.begins) == (8, 3)
    with pytest.raises(IndexError, match="no record at offset 5"):
        log[5]


def test_a_recording_is_a_cluster_and_can_be_cut() -> None:
    recording = Recording({"t": 1, "u": 2}, [record(offset) for offset in (0, 1, 2)])
    assert recording.partitions() == {"t": 1, "u": 2}
    assert len(recording.log("u", 1)) == 0
    assert len(recording.cut({TP("t", 0): 1}).log("t", 0)) == 1
    assert len(recording.log("t", 0)) == 3


def test_a_journal_is_read_as_epochs_and_steps() -> None:
    journal = RecordedJournal(LIFE)
    assert [(one.number, one.taken_over, len(one.steps)) for one in journal.epochs] == [(1, True, 1), (2, True, 1)]
    assert journal.epochs[0].steps[0].positions == {TP("t", 0): 5}
    assert journal.epochs[0].steps[0].instants == {"delivered": 77}
    assert journal.epochs[1].steps[0].instants == {"began": 88}
    assert not journal.before.latest


def test_steps_that_changed_nothing_are_gone_through_by_themselves() -> None:
    alone = {"read": {"t:0": 3}, "at": {"delivered": 70, "t:0:1": 3, "arrived:t:0:1": 69}}
    published = {
        "t:0": 5,
        ":deliveries": {"step": 1, "from": {}, "steps": [alone], "at": {"delivered": 77, "t:0:3": 5}},
    }
    both = record(3, progress_key(1), orjson.dumps(published))
    (epoch,) = RecordedJournal([*LIFE[:3], both]).epochs
    quiet, loud = epoch.steps
    assert (quiet.positions, loud.positions) == ({TP("t", 0): 3}, {TP("t", 0): 5})
    assert (quiet.instants, loud.instants) == ({"delivered": 70}, {"delivered": 77})
    assert (quiet.batches, loud.batches) == ({TP("t", 0): [(1, 3)]}, {TP("t", 0): [(3, 5)]})
    assert (quiet.arrived_ms, loud.arrived_ms) == ({("t", 0, 1): 69}, {})


def test_a_version_of_the_definition_that_is_compacted_away_is_named() -> None:
    journal = RecordedJournal([claim(0, 1)._replace(value=b"host:17, definition 3"), progress(1, 1, 0)])
    assert [one.definition for one in journal.epochs] == [3]
    shard = ReplayedShard("q", {4: Serving(QueueConfig(), None, None)}, 0, Recording({}, []), journal)
    with pytest.raises(NotReplayable, match=r"served by version 3 .* has version 4 by now.* --since"):
        list(shard.events())


def test_an_instant_is_found_in_a_log_that_lacks_records() -> None:
    recording = Recording({"t": 1}, [record(offset) for offset in (3, 4, 7)])
    assert [recording.offset_at("t", 0, instant_ms) for instant_ms in (0, 1_004, 1_005, 2_000)] == [3, 4, 7, 8]


def test_a_journal_can_be_begun_with_in_the_middle_and_ended_before_its_end() -> None:
    journal = RecordedJournal(LIFE, since_ms=1_004)
    assert [(one.number, one.taken_over) for one in journal.epochs] == [(1, False), (2, True)]
    assert not journal.epochs[0].steps
    assert journal.before.latest[b"k"] == b"v"
    early = RecordedJournal(LIFE, until_ms=1_003)
    assert [(one.number, len(one.steps)) for one in early.epochs] == [(1, 1)]


@pytest.mark.parametrize(
    ("missing", "begins", "epochs"),
    [
        ([0], 3, [(1, False, 0), (2, True, 1)]),
        ([2], 8, [(2, False, 0)]),  # the step at 3 alone does not say that all before it is known
        ([0, 1, 2], 8, [(2, False, 0)]),
    ],
)
def test_what_was_compacted_is_the_state_to_begin_with(
    missing: Iterable[int], begins: int, epochs: list[tuple[int, bool, int]]
) -> None:
    journal = RecordedJournal([one for one in LIFE if one.offset not in missing])
    assert journal.began_ms == LIFE[begins].timestamp
    assert [(one.number, one.taken_over, len(one.steps)) for one in journal.epochs] == epochs


def test_an_empty_journal_has_nothing_to_go_through() -> None:
    journal = RecordedJournal([])
    assert journal.began_ms is None
    assert compare(0, journal, [], []).same


def test_events_are_the_same_in_the_same_order() -> None:
    journal = RecordedJournal(LIFE)
    events = [RecordedEvent(1_002, event(10)), RecordedEvent(1_007, event(20, 2))]
    assert compare(0, journal, events, [event(10), event(20, 2)]).same
    turned = compare(0, journal, events, [event(20, 2), event(10)])
    assert not turned.in_order
    assert not turned.same
    other = compare(0, journal, events, [event(11), event(20, 2)])
    assert (other.missing, other.extra) == ([event(10)], [event(11)])
    assert not other.same


def test_an_event_written_twice_is_read_twice() -> None:
    events = [RecordedEvent(1_002, event(10)), RecordedEvent(1_002, event(10))]
    assert not compare(0, RecordedJournal(LIFE), events, [event(10)]).same
    assert not compare(0, RecordedJournal(LIFE), events[:1], [event(10), event(10)]).same


def test_only_events_behind_an_epoch_s_last_journal_may_be_missing() -> None:
    journal = RecordedJournal(LIFE)
    behind = compare(0, journal, [RecordedEvent(1_003, event(10)), RecordedEvent(1_008, event(9, 2))], [])
    assert (behind.same, behind.unjournaled, behind.recorded) == (True, 2, 2)
    before = compare(0, journal, [RecordedEvent(1_002, event(10)), RecordedEvent(1_007, event(9, 2))], [])
    assert (before.same, before.missing) == (False, [event(10), event(9, 2)])


def test_events_before_the_stretch_do_not_count() -> None:
    journal = RecordedJournal(LIFE, since_ms=1_004)
    found = compare(0, journal, [RecordedEvent(1_002, event(10)), RecordedEvent(1_007, event(9, 2))], [event(9, 2)])
    assert found.same
    assert found.recorded == 1
