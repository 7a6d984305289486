"""A scheduled message's place is decided by its instant, however late the worker is (C11, C76)."""

from __future__ import annotations

import pytest

from lapse.core.lifetime import Expiration
from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from unit.core.queue.compared.written import published

T0 = 1_000_000
LATE = T0 + 60_000


def offsets(shard: QueueShard) -> list[int]:
    return [one.offset for one in shard.peek(0, 100)]


@pytest.mark.feature("C76", "C11")
def test_what_is_stamped_after_the_instant_comes_behind_it_in_whatever_pieces_it_is_read() -> None:
    records = [
        published(0, timestamp=T0, enqueue_at_ms=T0 + 1_000),
        published(1, timestamp=T0 + 10),
        published(2, timestamp=T0 + 20, enqueue_at_ms=T0 + 500),
        published(3, timestamp=T0 + 999),
        published(4, timestamp=T0 + 1_000),
        published(5, timestamp=T0 + 1_700),
        published(6, timestamp=T0 + 1_800, enqueue_at_ms=LATE + 1),
    ]
    for cut in range(len(records) + 1):
        shard = QueueShard(QueueSettings(name="orders"))
        step = Step()
        shard.arrive("orders", 0, records[:cut], step, LATE)
        shard.arrive("orders", 0, records[cut:], step, LATE)
        shard.advance(LATE, step)
        assert offsets(shard) == [1, 2, 3, 0, 4, 5, 6], cut
        assert shard.depth()["scheduled"] == 1


@pytest.mark.feature("C76", "C33")
def test_between_topics_its_instant_counts_against_what_was_read() -> None:
    """What is older, and was fetched behind what is not, cannot come before it."""
    read = {
        "merged": [("a", 1, 500), ("b", 0, 900), ("b", 1, 1_000), ("a", 2, 1_500)],
        "as fetched": [("a", 1, 500), ("a", 2, 1_500), ("b", 0, 900), ("b", 1, 1_000)],
    }
    found = {}
    for order, records in read.items():
        shard, step = QueueShard(QueueSettings(name="orders")), Step()
        shard.note_arrivals_until(0)
        shard.arrive("a", 0, [published(0, timestamp=T0, enqueue_at_ms=T0 + 1_000)], step, T0)
        for topic, offset, after_ms in records:
            shard.arrive(topic, 0, [published(offset, timestamp=T0 + after_ms)], step, LATE)
        found[order] = [(one.topic, one.offset) for one in shard.peek(0, 100)]
    assert found == {
        "merged": [("a", 1), ("b", 0), ("a", 0), ("b", 1), ("a", 2)],
        "as fetched": [("a", 1), ("a", 0), ("a", 2), ("b", 0), ("b", 1)],
    }


@pytest.mark.feature("C76", "C6")
def test_a_stamp_ahead_of_the_clock_makes_nothing_come_early() -> None:
    shard, step = QueueShard(QueueSettings(name="orders")), Step()
    shard.arrive("orders", 0, [published(0, timestamp=T0, enqueue_at_ms=T0 + 1_000)], step, T0)
    shard.arrive("orders", 0, [published(1, timestamp=T0 + 3_600_000)], step, T0 + 999)
    assert shard.depth()["scheduled"] == 1
    assert offsets(shard) == [1, 0]


@pytest.mark.feature("C6", "X7")
def test_a_stamp_at_the_end_of_time_stops_nothing() -> None:
    shard, step = QueueShard(QueueSettings(name="orders")), Step()
    records = [published(0, timestamp=2**63 - 1), published(1, timestamp=T0, enqueue_at_ms=T0 + 1)]
    assert shard.arrive("orders", 0, records, step, LATE) == 2
    shard.advance(LATE, step)
    assert offsets(shard) == [0, 1]


@pytest.mark.feature("C76", "C11")
def test_a_scheduled_message_waits_until_what_arrived_before_its_instant_is_in() -> None:
    shard, step = QueueShard(QueueSettings(name="orders")), Step()
    shard.note_arrivals_until(0)
    shard.arrive("orders", 0, [published(0, timestamp=T0, enqueue_at_ms=T0 + 1_000)], step, T0)
    assert shard.next_due_ms() == T0 + 1_000
    assert shard.waits_for_arrivals(LATE)
    assert not shard.is_due(LATE)
    shard.advance(LATE, step)
    assert shard.depth()["scheduled"] == 1
    shard.note_arrivals_until(T0 + 999)
    assert shard.waits_for_arrivals(LATE)
    assert not shard.is_due(LATE)
    shard.arrive("orders", 0, [published(1, timestamp=T0 + 999)], step, T0)  # it was unread; it is older
    shard.note_arrivals_until(T0 + 1_000)
    assert not shard.waits_for_arrivals(LATE)
    assert shard.is_due(LATE)
    shard.advance(LATE, step)
    assert offsets(shard) == [1, 0]


@pytest.mark.feature("C76", "L3")
def test_a_scheduled_message_that_waits_for_older_arrivals_expires_as_of_now() -> None:
    shard, step = QueueShard(QueueSettings(name="orders", expiration=Expiration(enabled=True))), Step()
    shard.note_arrivals_until(0)
    headers = {"timestamp": T0, "enqueue_at_ms": T0 + 1_000, "expires_at_ms": T0 + 2_000}
    shard.arrive("orders", 0, [published(0, **headers)], step, T0)
    shard.note_arrivals_until(LATE - 1)
    shard.advance(LATE, step)
    (removal,) = step.removals
    assert removal.at_ms == LATE


@pytest.mark.feature("C76", "C51")
def test_without_room_nothing_waits_for_arrivals_for_no_place_is_given() -> None:
    shard, step = QueueShard(QueueSettings(name="orders", target_depth=1)), Step()
    shard.note_arrivals_until(0)
    shard.arrive("orders", 0, [published(0, timestamp=T0, enqueue_at_ms=T0 + 1_000)], step, T0)
    shard.arrive("orders", 0, [published(1, timestamp=T0 + 1)], step, T0)
    assert not shard.waits_for_arrivals(LATE)
    assert shard.is_due(LATE)
    shard.advance(LATE, step)
    assert shard.depth() == {**shard.depth(), "held": 1, "available": 1}
    shard.subscribing.subscribe("s", "", 1, 60_000, "", LATE, step)
    shard.deliver(LATE, step)
    shard.settle(SettleAction.ACKNOWLEDGE, "s", [Claim("orders", 0, 1, 1)], LATE, step)
    assert shard.waits_for_arrivals(LATE)
    assert not shard.is_due(LATE)
    shard.arrive("orders", 0, [published(2, timestamp=T0 + 2)], step, LATE)  # older, and unread until there was room
    assert offsets(shard) == [2, 0]
    assert shard.depth()["held"] == 1


@pytest.mark.feature("C60", "C76")
def test_an_arrival_behind_a_crowd_of_scheduled_messages_waits_for_it_part_by_part() -> None:
    shard, crowd = QueueShard(QueueSettings(name="orders")), 1_000
    scheduled = [published(at, timestamp=T0, enqueue_at_ms=T0 + 1_000) for at in range(crowd)]
    shard.arrive("orders", 0, scheduled, Step(), T0)
    records = [published(crowd, timestamp=T0 + 999), published(crowd + 1, timestamp=T0 + 1_000)]
    placed = []
    while records:
        step, before = Step(), shard.placed
        records = records[shard.arrive("orders", 0, records, step, LATE, 300) :]
        placed.append(shard.placed - before)
        assert len(step.changes) < 2 * 300 + 5
    assert placed == [300, 300, 300, 100]
    assert offsets(shard) == [crowd, *range(99)]
    assert shard.depth()["available"] == crowd + 2


@pytest.mark.feature("C60", "C37", "C83")
def test_a_purge_of_very_many_scheduled_messages_goes_part_by_part() -> None:
    shard, crowd = QueueShard(QueueSettings(name="orders")), 1_000
    scheduled = [published(at, timestamp=T0, enqueue_at_ms=LATE) for at in range(crowd)]
    shard.arrive("orders", 0, scheduled, Step(), T0)
    removed = []
    while not removed or removed[-1] == 300:
        step = Step()
        removed.append(sum(shard.purge_scheduled(T0, step, most=300).values()))
        assert len(step.changes) == removed[-1]
        assert sum(len(removal.messages) for removal in step.removals) == removed[-1]
    assert removed == [300, 300, 300, 100]
    assert shard.depth()["scheduled"] == 0


@pytest.mark.feature("C2", "C76", "X10")
def test_a_command_waits_for_every_message_that_is_due_by_its_instant_and_not_for_the_first_one_only() -> None:
    """The logs are read up to an instant between the two that are due."""
    shard = QueueShard(QueueSettings(name="orders"))
    shard.arrive("orders", 0, [published(at, timestamp=T0, enqueue_at_ms=T0 + 100 * at) for at in range(1, 4)], Step())
    shard.note_arrivals_until(T0 + 150)
    assert not shard.waits_for_arrivals(T0 + 199)
    assert shard.waits_for_arrivals(T0 + 200), "the second one has no place yet"
    shard.note_arrivals_until(T0 + 200)
    assert not shard.waits_for_arrivals(T0 + 200)


@pytest.mark.feature("C60", "C76")
def test_a_command_may_wait_without_need_while_a_crowd_of_scheduled_messages_gets_its_places() -> None:
    shard = QueueShard(QueueSettings(name="orders"))
    shard.arrive("orders", 0, [published(at, timestamp=T0, enqueue_at_ms=T0 + 100) for at in range(1_000)], Step())
    shard.note_arrivals_until(T0 + 150)
    assert shard.waits_for_arrivals(T0 + 199), "to look at all of them would take long"
    shard.note_arrivals_until(T0 + 199)
    assert not shard.waits_for_arrivals(T0 + 199)


@pytest.mark.feature("L5", "L10", "C6")
def test_instants_between_the_clock_and_a_stamp_ahead_of_it_are_still_to_come() -> None:
    shard, step = QueueShard(QueueSettings(name="orders", expiration=Expiration(True))), Step()
    ahead_ms, first_ms, second_ms = T0 + 3_600_000, T0 + 1_000, T0 + 2_000
    records = [
        published(0, timestamp=ahead_ms, enqueue_at_ms=first_ms),
        published(1, timestamp=ahead_ms, expires_at_ms=second_ms),
        published(2, timestamp=ahead_ms, expires_at_ms=T0),
        published(3, timestamp=ahead_ms, ttl_ms=1),
    ]
    shard.arrive("orders", 0, records, step, T0)
    assert offsets(shard) == [1, 3, 0]
    assert shard.depth()["scheduled"] == 1
    assert [(one.messages.offsets.tolist(), one.at_ms) for one in step.removals] == [([2], T0)]
    shard.advance(first_ms, step)
    assert shard.depth()["scheduled"] == 0
    shard.advance(second_ms, step)
    assert offsets(shard) == [3, 0]
    assert {one.at_ms for one in step.events} <= {T0, first_ms, second_ms}
