"""Records that Kafka removed, and topics that were deleted and created again (C40, C42)."""

import pytest

from lapse.core.queue.settings import Fairness, QueueSettings, Semantics
from lapse.core.queue.settlement.settlement import Claim, SettleAction
from lapse.core.queue.shard import QueueShard
from lapse.core.queue.step import Step
from unit.core.queue.compared.small_shard import small
from unit.core.queue.compared.written import published
from unit.core.queue.world import World


def world(count: int = 6, **options: object) -> World:
    one = World(QueueSettings(name="orders", lease_ms=100, **options))
    for _ in range(count):
        one.publish("orders")
    one.read("orders")
    return one


@pytest.mark.feature("C40", "C80")
def test_what_the_log_no_longer_has_leaves_scheduled_messages_too() -> None:
    one = world()
    one.publish("orders", enqueue_at_ms=one.now_ms + 500)
    one.publish("orders")
    one.read("orders")
    one.subscribe("inky", 2)
    one.deliver()
    one.log_begins("orders", 7)
    # What is leased is worked on: it leaves when its lease ends (C80).
    assert [message.bookmark[2] for message in one.oracle.in_state("available", "leased")] == [0, 1, 7]
    assert one.shard.depth()["scheduled"] == 0
    assert one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0)) == ["settled"]
    one.advance(100)
    assert [(gone.bookmark[2], gone.reasons) for gone in one._last_gone] == [(1, ("log_truncated",))]
    one.commit()
    one.crash()
    assert one.shard.depth()["depth"] == 1


@pytest.mark.feature("C80", "Q13")
def test_of_messages_that_were_never_read_those_are_missed_that_nobody_acknowledged_ahead() -> None:
    shard, step = QueueShard(QueueSettings(name="orders", target_depth=1)), Step()
    assert shard.without_acknowledged("orders", 0, 1, 9) == [(1, 9)]
    shard.arrive("orders", 0, [published(0, timestamp=1)], step)
    shard.note_end("orders", 0, 10)
    ahead = [Claim("orders", 0, 1, 1), Claim("orders", 0, 4, 5), Claim("orders", 0, 9, 9)]
    shard.settle(SettleAction.ACKNOWLEDGE, "s", ahead, 5, step)
    assert shard.without_acknowledged("orders", 0, 1, 9) == [(2, 3), (6, 8)]
    assert shard.without_acknowledged("orders", 0, 4, 5) == []


@pytest.mark.feature("C40", "X7")
def test_scheduled_messages_leave_a_bounded_number_at_a_time_too() -> None:
    with small():
        one = world(0)
        for _ in range(5):
            one.publish("orders", enqueue_at_ms=one.now_ms + 500)
        one.read("orders")
        left = []
        while not one.shard.truncate_below("orders", 0, 5, one.now_ms, Step()):
            left.append(one.shard.depth()["scheduled"])
        assert left == [3, 1]


@pytest.mark.feature("C40")
def test_messages_of_other_topics_stay_whatever_stands_nowhere() -> None:
    one = world()
    for _ in range(4):
        one.publish("direct", enqueue_at_ms=one.now_ms + 500)
    one.read("direct")
    one.log_begins("direct", 4)
    assert one.shard.depth() == {**one.shard.depth(), "available": 6, "scheduled": 0}


@pytest.mark.feature("C79", "C40", "C42")
@pytest.mark.parametrize("how", ["cut", "topic anew"])
def test_what_was_sent_at_most_once_never_gets_a_letter(how: str) -> None:
    once = {"semantics": Semantics.AT_MOST_ONCE, "fairness": Fairness.ROUND_ROBIN}
    one = world(1, dead_letter_topic="dlq.orders", **once)
    one.subscribe("inky")
    assert len(one.deliver()["inky"]) == 1
    one.commit()
    if how == "cut":
        one.log_begins("orders", 1)
        assert one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0)) == ["settled"]
    else:
        one.replace("orders")
    assert one.oracle.in_state("sent") == one._last_gone == []
    assert one.shard.state.subscriptions["inky"].outstanding == 0


@pytest.mark.feature("C42")
def test_a_topic_that_was_created_again_begins_anew_and_its_old_bookmarks_are_stale() -> None:
    with small(4):
        one = world(10)
        one.subscribe("inky", 2)
        one.deliver()
        one.commit()
        epoch = one.epoch
        one.replace("orders", [True, False, True])
        assert one.shard.depth()["depth"] == 0
        assert one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0, 1, epoch)) == ["stale"]
        assert one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0, 1)) == ["unknown"]
        for _ in range(3):
            one.publish("orders")
        one.read("orders")
        # Never delivered, so there is no first delivery to settle; with the epoch even after one.
        assert one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0, 1)) == ["stale"]
        one.deliver()
        for action in ("acknowledge", "cancel", "expire", "renew"):
            assert one.settle(action, "inky", Claim("orders", 0, 0, 0, 1, epoch)) == ["stale"]
        assert one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0, 1, one.epoch)) == ["settled"]
        one.commit()
        one.crash()
        assert one.settle("acknowledge", "inky", Claim("orders", 0, 1, 1, 1, epoch)) == ["stale"]
        assert [message.bookmark[2] for message in one.oracle.in_state("available", "leased")] == [1, 2]


@pytest.mark.feature("C42", "X6")
def test_a_repeat_of_a_message_of_the_old_topic_is_none() -> None:
    one = World(QueueSettings(name="orders", dedup_window_ms=60_000))
    said = {"timestamp": 1_000}
    one.publish("orders", **said)
    one.topics["orders", 0][0].headers.append(("lapse-message-id", b"a"))
    one.read("orders")
    one.commit()
    assert one.shard.state.repeats.chunks
    one.replace("orders")
    assert not one.shard.state.repeats.chunks
