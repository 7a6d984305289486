"""What has left comes back: which messages, as what, and with which lifetimes (Q22, C61 to C63)."""

from __future__ import annotations

import json
from types import SimpleNamespace as Record

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lapse.core.generation import position_of
from lapse.core.letter import FORWARDER
from lapse.core.lifetime import NEVER, Expiration
from lapse.core.queue.arrival.offset_ranges import OffsetRanges
from lapse.core.queue.arrival.source import Source
from lapse.core.queue.arrival.sources import Sources
from lapse.core.queue.journal.queue_journal import QueueJournal
from lapse.core.queue.journal.restored import restore
from lapse.core.queue.rewind import packed_ranges, rewinds
from lapse.core.queue.rewind.rewinding import REWOUND
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from lapse.core.queue.transfer.transfers import HandOver
from unit.core.queue.compared.small_shard import small
from unit.core.queue.world import World

ON = Expiration(enabled=True)


def world(**more: object) -> World:
    return World(QueueSettings(name="here", expiration=ON, lease_ms=100, **more))


def fill(some: World, count: int, **said: object) -> None:
    for _ in range(count):
        some.publish("orders", **said)
    some.read("orders")


def acknowledge(some: World, *offsets: int) -> list[str]:
    return some.settle("acknowledge", "inky", *(Claim("orders", 0, at, at) for at in offsets))


@pytest.mark.feature("Q22", "C61", "C63")
def test_what_was_acknowledged_comes_back_behind_what_is_there_in_its_old_order() -> None:
    some = world()
    fill(some, 5)
    acknowledge(some, 0, 3, 1)
    assert some.rewind("orders") == 3
    back = [position_of(at, 1) for at in (0, 1, 3)]
    some.subscribe("inky", 10)
    assert [one.bookmark[2] for one in some.deliver()["inky"]] == [2, 4, *back]


@pytest.mark.feature("C61")
def test_settlements_of_what_was_left_behind_are_stale_and_counts_begin_anew() -> None:
    some = world(max_deliveries=2)
    some.subscribe("inky", 10)
    fill(some, 3)
    some.deliver()
    acknowledge(some, 0)
    some.rewind("orders")
    (again,) = some.deliver()["inky"]
    assert (again.bookmark[2], again.deliveries) == (position_of(0, 1), 1)
    assert acknowledge(some, 0, 1) == ["stale", "settled"]
    assert acknowledge(some, 1) == ["already_settled"], "it was live, and is no older generation"
    assert acknowledge(some, position_of(0, 1)) == ["settled"]
    assert acknowledge(some, position_of(0, 1), position_of(0, 2)) == ["already_settled", "unknown"]
    assert some.rewind("orders", name="again") == 2
    assert acknowledge(some, 0, position_of(0, 1), position_of(0, 2)) == ["stale", "stale", "settled"]


@pytest.mark.feature("C61", "C55")
@pytest.mark.parametrize("part", [1, 1_000])
def test_a_rewind_that_brings_nothing_back_leaves_nothing_behind(part: int) -> None:
    """A settlement that is sent again has succeeded; the next rewind's messages are the first that come back."""
    some = world()
    some.subscribe("inky", 10)
    fill(some, 2)
    some.publish("direct")
    some.read("direct")
    some.deliver()
    acknowledge(some, 0)
    assert some.rewind("orders", text="/f > 0", part=part, crashes=[True]) == 0
    assert acknowledge(some, 0) == ["already_settled"]
    assert some.rewind("orders", "direct", name="again", part=part, crashes=[True, True]) == 1
    assert acknowledge(some, 0, position_of(0, 1)) == ["stale", "settled"]
    assert some.settle("acknowledge", "inky", Claim("direct", 0, 0, 0)) == ["settled"]
    assert some.settle("acknowledge", "inky", Claim("direct", 0, 0, 0)) == ["already_settled"], (
        "nothing of it came back"
    )


@pytest.mark.feature("C63")
def test_so_many_rewinds_are_remembered_and_those_that_later_ones_cover_are_forgotten(monkeypatch) -> None:
    monkeypatch.setattr(rewinds, "REMEMBERED", 3)
    some = world()
    some.subscribe("inky", 10)
    fill(some, 1)
    for number in range(6):
        acknowledge(some, *(position_of(0, generation) for generation in range(number + 1)))
        assert some.rewind("orders", name=f"number {number}") == 1
        some.deliver()
    assert {one.id for one in some.shard.state.rewinds} == {"number 3", "number 4", "number 5"}
    some.commit()
    some.crash()
    assert {one.id for one in some.shard.state.rewinds} == {"number 3", "number 4", "number 5"}
    assert acknowledge(some, *(position_of(0, generation) for generation in range(7)))[-2:] == ["stale", "settled"]


@pytest.mark.feature("C62")
def test_what_is_leased_delayed_scheduled_or_dying_stays_as_it_is() -> None:
    some = world(dead_letter_topic="dlq.here")
    some.subscribe("inky", 2)
    fill(some, 2)
    some.publish("orders", enqueue_at_ms=5_000)
    some.read("orders")
    some.deliver()
    some.settle("cancel", "inky", Claim("orders", 0, 0, 0), delay_ms=500)
    fill(some, 1)
    some.refusing = 1
    some.settle("expire", "inky", Claim("orders", 0, 3, 3))
    assert some.rewind("orders") == 0


@pytest.mark.feature("C62")
def test_repeats_what_was_dead_on_arrival_and_what_another_queue_had_redriven_do_not_come_back() -> None:
    some = world()
    some.publish("orders", message_id=b"a")
    some.publish("orders", message_id=b"a")
    some.publish("orders", expires_at_ms=900)
    some.publish("orders", broken=True)
    some.publish("orders", redriven_for="elsewhere")
    some.publish("orders", redriven_for="here")
    some.read("orders")
    acknowledge(some, 0, 5)
    assert some.rewind("orders") == 2
    some.subscribe("inky", 10)
    assert [one.bookmark[2] for one in some.deliver()["inky"]] == [position_of(0, 1), position_of(5, 1)]


@pytest.mark.feature("C62", "X6")
def test_a_repeat_is_known_by_what_lies_before_the_point_of_the_rewind() -> None:
    some = world()
    for _ in range(3):
        some.publish("orders", message_id=b"a")
    some.read("orders")
    acknowledge(some, 0)
    assert some.rewind("orders", first=1) == 0


@pytest.mark.feature("C62")
def test_relative_lifetimes_count_anew_unless_they_are_kept_and_absolute_ones_stay() -> None:
    some = world()
    some.publish("orders", ttl_ms=1_000)
    some.publish("orders", expires_at_ms=2_500)
    some.publish("orders", expires_at_ms=1_200)
    some.read("orders")
    acknowledge(some, 0, 1, 2)
    some.advance(800)
    assert some.rewind("orders", kept=True, dry_run=True) == 2
    assert some.rewind("orders") == 2, "what would expire as it comes stays out"
    some.subscribe("inky", 10)
    assert [one.deadline_ms for one in some.deliver()["inky"]] == [2_800, 2_500]
    acknowledge(some, position_of(0, 1))
    some.rewind("orders", kept=True, name="kept")
    assert [one.deadline_ms for one in some.deliver()["inky"]] == [2_000]


@pytest.mark.feature("C62", "C9", "Q22")
def test_a_lifetime_that_would_end_too_late_if_it_counted_anew_is_distinguished_from_one_that_is_over() -> None:
    some = world()
    some.publish("orders", ttl_ms=2**63 - 100 - some.now_ms)
    some.publish("orders", expires_at_ms=some.now_ms + 100)
    some.publish("orders", ttl_ms=1_000)
    some.read("orders")
    acknowledge(some, 0, 1, 2)
    some.advance(500)
    assert some.rewind("orders", name="back") == 1
    rewind = some.shard.state.rewinds.get("back")
    assert rewind is not None
    left_out = {why: count for why, count in rewind.counts.items() if count and why != REWOUND}
    assert left_out == {"expired": 1, "invalid_lifetime": 1}
    assert some.rewind("orders", name="kept", kept=True) == 1, "counted from its arrival it ends in time"
    some.subscribe("inky", 10)
    assert [one.bookmark[2] for one in some.deliver()["inky"]] == [position_of(2, 1), position_of(0, 2)]


@pytest.mark.feature("C62", "Q17")
def test_what_was_handed_over_comes_back_on_request_only_and_what_was_never_confirmed_never() -> None:
    some = world()
    fill(some, 2)
    some.publish("orders", transferred=("here", "t"))
    some.publish("orders", transferred=("here", "u"))
    some.read("orders")
    some.hold("away", Claim("orders", 0, 0, 0))
    some.confirm("away", HandOver("orders", 0, 0, 1, "there", 0, 0))
    some.finish_transfer("away")
    some.discard("t")
    some.accept("u", Claim("orders", 0, 3, 3))
    acknowledge(some, 3)
    some.commit()
    some.crash()
    assert some.rewind("orders") == 1
    assert some.rewind("orders", handed_over=True, name="all") == 1
    some.subscribe("inky", 10)
    assert [one.bookmark[2] for one in some.deliver()["inky"]] == [1, position_of(3, 1), position_of(0, 2)]


@pytest.mark.feature("Q22", "Q13")
def test_beyond_the_target_depth_they_are_held() -> None:
    some = world(target_depth=2)
    some.subscribe("inky", 1)
    for _ in range(4):
        fill(some, 1)
        acknowledge(some, *(one.bookmark[2] for one in some.deliver()["inky"]))
    assert some.rewind("orders") == 4
    assert some.shard.depth()["held"] == 2
    order = []
    for _ in range(4):
        order += [one.bookmark[2] for one in some.deliver()["inky"]]
        acknowledge(some, order[-1])
        some.advance(1)
    assert order == [position_of(at, 1) for at in range(4)]


@pytest.mark.feature("C63")
@pytest.mark.parametrize("part", [1, 2, 5])
def test_a_rewind_that_a_crash_interrupts_is_resumed_where_it_stood(part: int) -> None:
    with small():
        some = world()
        for at in range(12):
            some.publish(("orders", "direct")[at % 2], timestamp=1_000 + at // 3, message_id=b"%d" % (at // 4))
        for topic in ("orders", "direct"):
            some.read(topic)
            some.settle("acknowledge", "inky", Claim(topic, 0, 0, 2), Claim(topic, 0, 4, 5))
        assert some.rewind("orders", "direct", part=part, crashes=[True] * 20) == 6
        some.commit()
        some.crash()


@pytest.mark.feature("Q22")
def test_a_filter_chooses_and_a_dry_run_changes_nothing() -> None:
    some = world()
    for at in range(4):
        some.publish("orders", body={"f": at % 2})
    some.read("orders")
    acknowledge(some, 0, 1, 2, 3)
    some.commit()
    before = some.committed_dump
    assert some.rewind("orders", text="/f = 1", dry_run=True) == 2
    some.commit()
    assert some.committed_dump[8:] == before[8:] or some.committed_dump == before
    assert some.rewind("orders", text="/f = 1") == 2
    assert some.rewind("orders", name="rest") == 2, "those that are there by now are left alone"


@pytest.mark.feature("Q22", "C40")
def test_what_kafka_removes_takes_what_came_back_along() -> None:
    some = world()
    fill(some, 4)
    acknowledge(some, 0, 1, 2)
    some.rewind("orders")
    some.log_begins("orders", 2)
    some.subscribe("inky", 10)
    assert [one.bookmark[2] for one in some.deliver()["inky"]] == [3, position_of(2, 1)]


@pytest.mark.feature("C61", "C62")
@pytest.mark.parametrize("said", [{"broken": True}, {"expires_at_ms": 1}])
def test_what_dies_on_arrival_and_has_its_letter_refused_is_left_alone_too(said: dict[str, object]) -> None:
    some = world(dead_letter_topic="dlq.here")
    fill(some, 1)
    some.refusing = 1
    fill(some, 1, **said)
    acknowledge(some, 0)
    assert some.rewind("orders") == 1
    assert acknowledge(some, 1)[0] in ("already_settled", "time_limit"), "it is dying, and of no older generation"
    assert acknowledge(some, 0) == ["stale"]


@pytest.mark.feature("C61", "C62", "C80")
def test_what_a_lease_protects_is_live_to_a_rewind_where_kafka_has_its_record_no_more() -> None:
    some = world()
    some.subscribe("inky", 1)
    fill(some, 4)
    some.deliver()
    acknowledge(some, 3)
    some.log_begins("orders", 2)
    assert some.rewind("orders") == 1, "the second message left with its record, and the third is there"
    assert acknowledge(some, 0) == ["settled"]
    assert acknowledge(some, 0, 1) == ["already_settled", "stale"]


@pytest.mark.slow
@pytest.mark.feature("C62", "C60", "Q21")
def test_notes_of_what_was_forwarded_stay_small_however_many_gaps_the_log_has() -> None:
    """A transaction leaves a gap behind it, so with small ones every message is a range of its own."""
    settings, each = QueueSettings(name="here"), 4_096
    shard = QueueShard(settings)
    journal = QueueJournal(shard.state, 1)
    kept = dict(journal.begin())
    step = Step()
    shard.subscribing.subscribe(FORWARDER, "", each, NEVER, "", 1, step)
    sizes: list[int] = []
    for number in range(9):
        offsets = range(2 * each * number, 2 * each * (number + 1), 2)
        shard.arrive(
            "orders", 0, [Record(offset=at, timestamp=1, key=None, value=b"", headers=()) for at in offsets], step
        )
        shard.deliver(2, step)
        shard.settle(SettleAction.ACKNOWLEDGE, FORWARDER, [Claim("orders", 0, at, at) for at in offsets], 2, step)
        items = journal.encode(step)
        kept |= {key: value for key, value in items if value is not None}
        sizes.append(sum(len(value or b"") for key, value in items if key[:1] == b"h"))
        step = Step()
    assert max(sizes) < 64_000, sizes
    assert list(shard.state.rewinds.departed[0, 0].elsewhere) == [(at, at) for at in range(0, 1 << 16, 2)]
    restored = restore(kept.items()).state.rewinds.departed
    assert {name: list(one.elsewhere) for name, one in restored.items()} == {
        name: list(one.elsewhere) for name, one in shard.state.rewinds.departed.items()
    }


@pytest.mark.feature("C62")
@given(st.sets(st.integers(0, 700)), st.integers(0, 3))
def test_many_ranges_are_packed_without_loss(offsets: set[int], stretch: int) -> None:
    ranges = OffsetRanges()
    for offset in offsets:
        at = (stretch << packed_ranges.STRETCH_BITS) + offset + (1 << packed_ranges.STRETCH_BITS) - 701
        ranges.add(at, at)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(packed_ranges, "_FEW", 3)
        value = json.loads(json.dumps(packed_ranges.pack(ranges)))
        assert isinstance(value, dict) is (len(ranges) > 3)
        assert list(packed_ranges.unpack(value)) == list(ranges)


@pytest.mark.feature("C62", "C81", "C42")
def test_each_shard_brings_back_what_it_has_read_of_a_partition_itself() -> None:
    sources = Sources()
    for topic, partition, next_offset, is_read in (
        ("orders", 0, 9, True),
        ("orders", 2, 5, False),  # a newer shard reads it now
        ("orders", 4, 0, False),
        ("taken away", 0, 7, False),
    ):
        source = Source(topic, partition, next_offset)
        source.is_read = is_read
        sources.add(source)
    assert [(one.topic, one.partition) for one in sources.rewindable()] == [("orders", 0), ("orders", 2)]
    newer = Source("orders", 2, 8)
    newer.first_offset = 5
    assert newer.begun_offset == 5
    newer.since_epoch = 3
    assert newer.begun_offset == 0, "another topic of that name, of which no older shard has read anything"
