"""Replicated updates: their own deadlines, their origin's order, the same end on both sides (S10)."""

import itertools
from typing import Any

import pytest

from lapse.core.lifetime import NEVER
from lapse.core.shard.event import EventKind
from lapse.core.sow.records.record import deadline_of, facts_of
from lapse.core.sow.step import OutOfFocus, StateDelete, Step
from unit.core.sow.make import Arrived, Desk, T, shard_of, state_records


def bring(desk: Desk, payload: object, stamp: int, at: int, path: str = "A", **headers: Any) -> Step:
    return desk.put("k", payload, at, lapse_origin=path, lapse_origin_timestamp_ms=T + stamp, **headers)


def deadline(desk: Desk) -> int:
    (entry,) = desk.shard.state.entries.values()
    return deadline_of(entry) - T


@pytest.mark.feature("S10", "L7")
def test_neither_default_nor_ceiling_touch_a_replicated_deadline() -> None:
    for model in ("override", "ceiling"):
        desk = Desk(shard_of(1_000, model))
        bring(desk, {"n": 1}, 0, 50, lapse_expires_at_ms=T + 5_000)
        assert deadline(desk) == 5_000
        assert desk.select(4_999) == [{"n": 1}]
        assert desk.select(5_000) == []
        bring(desk, {"n": 2}, 6_000, 6_050, lapse_ttl_ms=0)
        assert deadline(desk) == NEVER - T


@pytest.mark.feature("S10", "C1")
def test_an_update_that_crosses_an_expiry_is_a_new_record_with_the_deadline_of_its_origin() -> None:
    desk = Desk(shard_of())
    bring(desk, {"n": 1}, 0, 10, lapse_expires_at_ms=T + 100)
    desk.advance(100)
    bring(desk, {"n": 2}, 90, 120, lapse_expires_at_ms=T + 190)
    assert desk.select(189) == [{"n": 2}]
    late = bring(desk, {"n": 3}, 91, 300, lapse_expires_at_ms=T + 191)
    assert [one.kind for one in late.events] == [EventKind.EXPIRED, EventKind.EXPIRED]
    assert desk.select(300) == []


@pytest.mark.feature("S10")
def test_a_repeat_changes_nothing_and_one_path_keeps_its_order() -> None:
    desk = Desk(shard_of())
    for payload in ({"n": 9}, {"n": 1}):  # in one millisecond; the payloads do not decide
        bring(desk, payload, 5, 10)
    assert desk.select(20) == [{"n": 1}]
    bring(desk, {"n": 0}, 4, 30)
    assert desk.select(40) == [{"n": 1}]


@pytest.mark.feature("S10")
@pytest.mark.parametrize(("mine", "theirs"), [(10, 20), (20, 10), (10, 10)])
def test_both_sides_of_a_conflict_come_to_the_same_end(mine: int, theirs: int) -> None:
    ends = []
    for here, there, own, other in [("A", "B", mine, theirs), ("B", "A", theirs, mine)]:
        desk = Desk(shard_of())
        desk.put("k", {"by": here}, own)
        bring(desk, {"by": there}, other, 50, path=there)
        ends.append(desk.select(60))
    assert ends[0] == ends[1]
    assert ends[0] == [{"by": "A" if mine > theirs else "B"}]


@pytest.mark.feature("S10")
def test_what_is_published_here_wins_here_and_then_there_although_their_clock_is_ahead() -> None:
    here, there = Desk(shard_of()), Desk(shard_of())
    there.put("k", {"by": "there"}, 100)
    bring(here, {"by": "there"}, 100, 60)
    step = here.put("k", {"by": "here"}, 70)
    ((_, entry, _),) = state_records(step)
    assert facts_of(entry).timestamp_ms == T + 101
    bring(there, {"by": "here"}, 101, 110)
    assert here.select(200) == there.select(200) == [{"by": "here"}]


@pytest.mark.feature("S10", "C47")
def test_a_scheduled_update_takes_effect_although_the_clock_of_what_it_replaces_is_ahead() -> None:
    here, there = Desk(shard_of()), Desk(shard_of())
    there.put("k", {"by": "there"}, 500)
    here.put("k", {"by": "here"}, 10, lapse_enqueue_at_ms=T + 100)
    bring(here, {"by": "there"}, 500, 60)
    ((_, entry, _),) = state_records(here.advance(100))
    assert entry is not None
    assert (facts_of(entry).timestamp_ms, here.select(200)) == (T + 501, [{"by": "here"}])
    bring(there, {"by": "here"}, 501, 510)
    assert there.select(600) == [{"by": "here"}]


@pytest.mark.feature("S10", "S3", "C56")
@pytest.mark.parametrize(("by_command", "stamp"), [(False, 500), (True, 70)])
def test_what_was_deleted_here_does_not_come_back_by_another_way(by_command: bool, stamp: int) -> None:
    desk = Desk(shard_of())
    bring(desk, {"by": "A"}, stamp, 60)
    step = desk.ask("sow_delete", 70, keys=(b"k",)) if by_command else desk.put("k", None, 70)
    ((_, _, left),) = state_records(step)
    assert left is not None
    assert left.timestamp_ms == T + stamp + 1
    bring(desk, {"by": "A"}, stamp, 90, path="A,C")
    assert desk.select(100) == []


@pytest.mark.feature("S3", "C46")
def test_an_update_behind_a_delete_by_command_counts_although_all_is_in_one_millisecond() -> None:
    desk = Desk(shard_of())
    desk.put("k", {"n": 1}, 10)
    desk.ask("sow_delete", 10, keys=(b"k",))
    desk.put("k", {"n": 2}, 10)
    assert desk.select(10) == [{"n": 2}]


@pytest.mark.feature("S10", "S3", "S4")
def test_a_tombstone_says_how_the_record_left() -> None:
    def left(step: Step) -> list[tuple[str, int, bytes]]:
        return [
            (left.reason.value, left.timestamp_ms - T, left.path)
            for _, _, left in state_records(step)
            if left is not None
        ]

    desk = Desk(shard_of(100))
    desk.put("k", {}, 0)
    assert left(desk.put("k", None, 0)) == [("deleted", 1, b"")]
    desk.put("k", {}, 10)
    assert left(desk.ask("sow_delete", 20, keys=(b"k",))) == [("deleted", 20, b"")]
    desk.put("k", {}, 30)
    assert left(desk.advance(130)) == [("expired", 30, b"")]
    bring(desk, {}, 200, 210)
    assert left(bring(desk, None, 205, 220, lapse_operation="deleted")) == [("deleted", 205, b"A")]


@pytest.mark.feature("S10", "S4", "S8")
def test_the_end_of_an_update_that_never_stood_on_the_compacted_topic_says_so() -> None:
    """A replica has the record before it, and would keep that for ever."""

    def left(step: Step) -> list[StateDelete | None]:
        return [left for _, entry, left in state_records(step) if entry is None]

    def gone(at: int, path: bytes = b"", *, unwritten: bool = True) -> list[StateDelete]:
        return [StateDelete(OutOfFocus.EXPIRED, T + at, path, unwritten)]

    desk = Desk(shard_of())
    desk.put("k", {"n": 1}, 0)
    assert left(desk.put("k", {"n": 2}, 0, lapse_expires_at_ms=1)) == gone(1), "later than the record, at one instant"
    assert left(desk.put("k", {"n": 2}, 5, lapse_expires_at_ms=1)) == [], "no other deployment is known"

    desk.put("k", {"n": 1}, 10)
    step = Step()
    desk.shard.arrive("t", 0, [Arrived(9, T + 10, b"k", b"{}", [("lapse-ttl-ms", b"5")])], step)
    desk.shard.advance(T + 15, step)
    assert left(desk.keep(step)) == gone(11), "it came and went in one step"
    desk.put("k", {"n": 1}, 20, lapse_ttl_ms=5)
    assert left(desk.advance(25)) == gone(20, unwritten=False)

    bring(desk, {"n": 1}, 30, 30)
    assert left(bring(desk, None, 31, 31, lapse_operation="expired")) == gone(31, b"A"), "it travels on"
    assert left(desk.put("k", {"n": 2}, 40, lapse_expires_at_ms=1)) == gone(40), "there may be a record elsewhere"


@pytest.mark.feature("S10", "C56")
@pytest.mark.parametrize("known", [False, True])
def test_an_update_that_is_over_on_arrival_ends_the_same_on_both_sides(known: bool) -> None:
    """Whether the older record is here when it comes, or was published elsewhere meanwhile."""
    here, there = Desk(shard_of()), Desk(shard_of())
    for desk in (here, there):
        bring(desk, {"n": 0}, 0, 1, path="C")
        bring(desk, None, 2, 3, path="C", lapse_operation="deleted")
    there.put("k", {"n": 1}, 10)
    if known:
        bring(here, {"n": 1}, 10, 15, path="B")
    step = here.put("k", {"n": 2}, 20, lapse_expires_at_ms=1)
    ((_, _, left),) = state_records(step)
    assert left is not None
    bring(there, None, left.timestamp_ms - T, 30, lapse_operation=left.reason.value)
    bring(here, {"n": 1}, 10, 40, path="B")
    assert here.select(50) == there.select(50) == []


@pytest.mark.feature("S10")
@pytest.mark.parametrize(
    ("stamp", "path", "remains"),
    [
        *((4, "A", True), (6, "A", False), (6, "B", False)),
        pytest.param(5, "A", False, id="it came behind the record, in one millisecond"),
        *((5, "B", False), (5, "0", True)),
    ],
)
def test_of_an_update_that_was_never_seen_only_its_end_is_reported_and_it_takes_what_was_before(
    stamp: int, path: str, remains: bool
) -> None:
    desk = Desk(shard_of())
    bring(desk, {"n": 1}, 5, 10, lapse_ttl_ms=0)
    desk.ask("subscribe", 11, subscription="s")
    step = bring(desk, None, stamp, 20, path=path, lapse_operation="expired")
    assert bool(desk.select(30)) is remains
    assert [one.kind for one in step.events] == [EventKind.EXPIRED] * (not remains)


@pytest.mark.feature("S10")
def test_the_end_of_an_update_that_was_never_seen_needs_no_record() -> None:
    empty = Desk(shard_of())
    assert not bring(empty, None, 5, 10, lapse_operation="expired").events


@pytest.mark.feature("S10", "S3", "C47")
def test_a_delete_by_command_and_a_scheduled_update_count_although_the_clock_of_what_is_there_is_ahead() -> None:
    for is_replaced in (False, True):
        desk = Desk(shard_of())
        bring(desk, {"n": 1}, 3_600_000, 10)
        if is_replaced:
            desk.put("k", {"n": 2}, 15)
        desk.put("k", {"n": 3}, 16, lapse_enqueue_at_ms=T + 20)
        desk.advance(20)
        assert desk.select(20) == [{"n": 3}]
        desk.crash(21)
        step = desk.ask("sow_delete", 22, keys=(b"k",))
        assert step.answers[0].counts == (("removed", 1), ("skipped", 0))
        ((_, _, left),) = state_records(step)
        assert left is not None
        assert left.timestamp_ms > T + 3_600_000, "or other deployments would keep the record"
        bring(desk, {"n": 1}, 3_600_000, 30, path="B,A")
        assert desk.select(30) == []


@pytest.mark.feature("S10", "C88")
def test_what_is_ahead_elsewhere_hides_no_update_that_another_partition_brings() -> None:
    desk = Desk(shard_of(added_partitions=True))
    bring(desk, {"n": 1}, 3_600_000, 10)
    for at, partition in [(20, 0), (30, 1), (40, 0)]:
        desk.put("k", {"n": at}, at, partition=partition)
        assert desk.select(at) == [{"n": at}]
    bring(desk, None, 7_200_000, 50)
    for at, partition in [(60, 1), (70, 0)]:
        desk.put("k", {"n": at}, at, partition=partition)
        assert desk.select(at) == [{"n": at}]


@pytest.mark.feature("S10")
def test_an_update_stamped_before_the_one_that_it_replaces_is_reported_as_no_earlier() -> None:
    """Two producers' clocks are apart. Another deployment ignores what is earlier than its record."""
    here, there = Desk(shard_of()), Desk(shard_of())
    for at, number in [(100, 1), (95, 2)]:
        ((_, entry, _),) = state_records(here.put("k", {"n": number}, at))
        assert entry is not None
        bring(there, {"n": number}, facts_of(entry).timestamp_ms - T, 110)
    assert there.select(120) == [{"n": 2}]


@pytest.mark.feature("S10", "C56")
def test_an_update_stamped_before_a_delete_that_a_link_never_sees_is_reported_as_later() -> None:
    """The link was away, and Kafka has removed the delete. Nothing is replicated to here."""
    here, there = Desk(shard_of()), Desk(shard_of())
    here.put("k", {"n": 1}, 100)
    bring(there, {"n": 1}, 100, 110)
    here.put("k", None, 105)
    ((_, entry, _),) = state_records(here.put("k", {"n": 2}, 95))
    assert entry is not None
    bring(there, {"n": 2}, facts_of(entry).timestamp_ms - T, 20_000)
    assert there.select(20_001) == [{"n": 2}]
    assert here.ask("sow_delete", 96, timely=False, keys=(b"k",)).answers[0].counts[0] == ("removed", 1)


@pytest.mark.feature("S5", "S10")
def test_filters_see_no_note_of_the_shard() -> None:
    desk = Desk(shard_of())
    desk.put("k", {"n": 1}, 100)
    desk.put("k", {"n": 2}, 95, source="web")
    assert desk.select(120, filter="HEADER('source') = 'web'") == [{"n": 2}]
    assert desk.select(120, filter="HEADER('lapse-published-ms') IS NOT NULL") == []


@pytest.mark.feature("S10", "L12")
def test_half_an_origin_is_a_dead_letter() -> None:
    desk = Desk(shard_of())
    for headers in (
        {"lapse_origin": "A"},
        {"lapse_origin_timestamp_ms": 5},
        {"lapse_origin": "A", "lapse_origin_timestamp_ms": "x"},
        {"lapse_origin": "A\0B", "lapse_origin_timestamp_ms": 5},
    ):
        assert len(desk.put("k", {}, 1, **headers).letters) == 1


@pytest.mark.feature("S10")
def test_any_order_of_three_deployments_updates_ends_the_same() -> None:
    updates = [("A", 10), ("B", 20), ("C", 20)]
    ends = set()
    for order in itertools.permutations(updates):
        desk = Desk(shard_of())
        for at, (path, stamp) in enumerate(order):
            bring(desk, {"by": path}, stamp, 100 + at, path=path)
        ends.add(str(desk.select(200)))
    assert ends == {"[{'by': 'C'}]"}


@pytest.mark.feature("S10")
def test_of_a_conflict_the_later_one_wins_although_it_has_expired_meanwhile() -> None:
    here = Desk(shard_of(remembers_removed=True, tombstone_ms=3_600_000))
    here.put("k", {"by": "here"}, 100, lapse_ttl_ms=50)
    here.advance(150)
    bring(here, {"by": "there"}, 90, 200)
    assert here.select(201) == []
    here.crash(210)
    bring(here, {"by": "there"}, 90, 220)
    assert here.select(221) == []
    # What is published here is later in any case, and says so.
    bring(here, {"by": "there"}, 400, 230, lapse_expires_at_ms=T + 240)
    here.advance(240)
    ((_, entry, _),) = state_records(here.put("k", {"by": "here"}, 300))
    assert (facts_of(entry).timestamp_ms, here.select(301)) == (T + 401, [{"by": "here"}])


@pytest.mark.feature("S10", "S3")
def test_a_delete_that_is_later_than_an_update_from_elsewhere_stays_done() -> None:
    here = Desk(shard_of(remembers_removed=True))
    here.put("k", {"n": 1}, 0)
    here.put("k", None, 100)
    bring(here, {"n": 2}, 90, 200)
    assert here.select(201) == []
    here.put("k", {"n": 3}, 210)
    assert here.select(211) == [{"n": 3}]


@pytest.mark.feature("C56")
def test_a_delete_is_remembered_before_any_update_from_elsewhere_has_come() -> None:
    """Nobody has said that the topic is replicated; the first update from elsewhere is older than the delete."""
    here = Desk(shard_of(tombstone_ms=3_600_000))
    here.put("k", {"n": 1}, 0)
    here.put("k", None, 100)
    here.advance(3_000_000)
    here.crash(3_000_000)
    bring(here, {"n": 2}, 90, 3_000_001)
    assert here.select(3_000_002) == []
    bring(here, {"n": 3}, 110, 3_000_003)
    assert here.select(3_000_004) == [{"n": 3}]


@pytest.mark.feature("C56")
def test_from_the_first_update_from_elsewhere_on_every_removal_is_remembered() -> None:
    here = Desk(shard_of(tombstone_ms=3_600_000, most_tombstones=0))
    here.put("other", {"n": 1}, 1, lapse_origin="A", lapse_origin_timestamp_ms=T)
    here.put("k", {"n": 1}, 10, lapse_ttl_ms=50)
    here.advance(60)
    here.advance(3_000_000)
    here.crash(3_000_000)
    bring(here, {"n": 2}, 9, 3_000_001)
    assert [one["n"] for one in here.select(3_000_002)] == [1]


@pytest.mark.feature("C56")
def test_along_one_way_the_order_of_the_way_counts_and_no_stamp() -> None:
    """Deleted and published again in one millisecond over there: the delete is stamped behind what it deleted."""
    here = Desk(shard_of(tombstone_ms=3_600_000))
    bring(here, {"n": 1}, 100, 110)
    bring(here, None, 101, 111)
    bring(here, {"n": 2}, 100, 112)
    assert here.select(113) == [{"n": 2}]


@pytest.mark.feature("C56", "C81")
def test_along_one_way_over_two_partitions_the_stamps_count() -> None:
    """Partitions were added here, so a link brings a key's updates to another one, which may be read before."""
    here = Desk(shard_of(tombstone_ms=3_600_000, added_partitions=True))
    bring(here, None, 101, 111, partition=2)
    bring(here, {"n": 1}, 100, 112)
    assert here.select(113) == []
    bring(here, {"n": 2}, 102, 114)
    assert here.select(115) == [{"n": 2}]


@pytest.mark.feature("C56")
def test_without_replication_no_more_tombstones_are_kept_than_a_minute_needs() -> None:
    here = Desk(shard_of(tombstone_ms=3_600_000, tombstone_least_ms=1_000, most_tombstones=2))
    for number in range(5):
        here.put(f"k{number}", {}, number)
        here.put(f"k{number}", None, 100 + number)
    here.advance(1_099)
    assert len(here.shard.state.tombstones) == 5
    assert here.shard.next_due_ms() == T + 1_100
    here.advance(2_000)
    assert sorted(here.shard.state.tombstones) == [b"rk3", b"rk4"]
    assert here.shard.next_due_ms() == T + 3_600_103
