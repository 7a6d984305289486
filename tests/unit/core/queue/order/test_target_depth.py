"""The target depth by name (Q13, C12, C51).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.settings import QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from unit.core.queue.order.bodies import ON, at, depth, got, publish, world
from unit.core.queue.world import World

pytestmark = pytest.mark.usefixtures("each_room")


def deep(count: int, target_depth: int = 2, **settings) -> World:
    return world(*[{}] * count, target_depth=target_depth, **settings)


@pytest.mark.feature("Q13", "C12")
def test_no_more_than_the_target_depth_is_active_and_settled_ones_make_room() -> None:
    one = deep(5)
    assert one.peek() == [("orders", 0, 0), ("orders", 0, 1)]
    one.subscribe("inky", 10)
    one.deliver()
    one.read("orders")
    assert depth(one) == 2
    one.settle("acknowledge", "inky", at(0))
    one.read("orders")
    assert got(one.deliver(), "inky") == [2]


@pytest.mark.feature("Q13", "C16")
def test_an_acknowledgment_of_an_inactive_message_is_remembered_and_honoured() -> None:
    one = deep(5)
    assert one.settle("acknowledge", "inky", at(1, 3), at(3), at(9)) == [
        "settled", "settled", "settled", "already_settled", "unknown",
    ]  # fmt: skip
    assert one.settle("cancel", "inky", at(4)) == ["unknown"]
    one.commit()
    one.crash()
    for _ in range(3):
        one.read("orders")
    one.subscribe("inky", 10)
    assert got(one.deliver(), "inky") == [0, 4]
    assert one.shard.state.remembered == set()
    assert one.settle("acknowledge", "inky", at(1, 3)) == ["already_settled"] * 3


@pytest.mark.feature("Q13")
def test_an_acknowledged_offset_without_a_message_is_not_remembered_for_ever() -> None:
    one = deep(2)
    one.publish("orders", gap=3)
    assert one.settle("acknowledge", "inky", at(2, 4)) == ["settled"] * 3
    one.settle("acknowledge", "inky", at(0))
    one.read("orders")
    assert one.shard.state.remembered == set()


@pytest.mark.feature("C12")
def test_beyond_the_target_depth_a_message_expires_when_it_would_enter() -> None:
    one = deep(4, said={"ttl_ms": 50}, expiration=ON)
    assert [out.bookmark[2] for out in one.advance(50)] == [0, 1]
    one.read("orders")
    one.subscribe("inky", 5)
    assert one.deliver() == {}
    assert [(out.bookmark[2], out.deadline_ms) for out in one.advance()] == [(2, 1_050), (3, 1_050)]


def scheduled_for(one: World, *delays_ms: int, **said) -> None:
    for delay_ms in delays_ms:
        publish(one, {}, enqueue_at_ms=one.now_ms + delay_ms, **said)


@pytest.mark.feature("C82", "C83")
def test_a_filter_reaches_scheduled_and_held_messages() -> None:
    one = world(target_depth=1)
    for delay_ms, f in ((10, 1), (20, 0), (900, 1), (950, 0)):
        publish(one, {"f": f}, enqueue_at_ms=one.now_ms + delay_ms)
    publish(one, {"f": 1})
    one.advance(100)
    assert [offset for _, _, offset in one.peek("/f = 1")] == [4, 0, 2]
    with one.selection("/f = 1"):
        counts = one.shard.depth("/f = 1")
        assert {name: count for name, count in counts.items() if count} == {
            "available": 1, "held": 1, "scheduled": 1, "depth": 1,
        }  # fmt: skip
    assert one.purge(text="/f = 1") == (3, 0)
    assert {name: one.shard.depth()[name] for name in ("depth", "held", "scheduled")} == {
        "depth": 0, "held": 1, "scheduled": 1,
    }  # fmt: skip


@pytest.mark.slow
@pytest.mark.feature("C51")
def test_what_comes_due_beyond_the_target_depth_waits_in_its_place_and_enters_as_others_leave() -> None:
    one = World(QueueSettings(name="orders", target_depth=2, lease_ms=10_000))
    scheduled_for(one, *range(10, 110))
    one.advance(200)
    assert {name: one.shard.depth()[name] for name in ("depth", "scheduled", "held")} == {
        "depth": 2, "scheduled": 0, "held": 98,
    }  # fmt: skip
    one.publish("orders")
    one.read("orders")
    one.commit()
    one.crash()
    assert [row.state_name for row in one.shard.peek(0, 4)] == ["available", "available", "held", "held"]
    one.subscribe("inky", 10)
    order = []
    for _ in range(101):
        order += (got := [sent.bookmark[2] for sent in one.deliver().get("inky", [])])
        for offset in got:
            one.settle("acknowledge", "inky", at(offset))
        one.advance()
        one.read("orders")
        assert depth(one) <= 2
    assert order == list(range(101)), "what arrived after their instants comes behind them"


@pytest.mark.feature("C51", "C12")
def test_what_is_held_expires_when_it_would_enter() -> None:
    one = world(target_depth=1, expiration=ON)
    one.subscribe("inky")
    scheduled_for(one, 10, ttl_ms=50)
    publish(one, {})
    assert one.advance(5_000) == []
    assert one.shard.depth()["held"] == 1
    one.settle("acknowledge", "inky", at(1))
    assert [gone.reasons for gone in one.advance()] == [("time_limit",)]
    assert one.shard.depth()["held"] == 0


@pytest.mark.feature("C51", "Q13")
def test_what_is_held_is_acknowledged_withdrawn_purged_and_handed_over() -> None:
    one = world(target_depth=1)
    scheduled_for(one, 10, 20, 30, 40)
    publish(one, {})
    one.advance(100)
    assert one.settle("acknowledge", "inky", at(0, 0)) == ["settled"]
    assert one.settle("acknowledge", "inky", at(0)) == ["already_settled"]
    assert one.settle("expire", "inky", at(1)) == ["scheduled"]
    assert one.settle("cancel", "inky", at(1)) == ["settled"]
    one.hold("t", at(2))
    assert one.shard.depth()["held"] == 1
    one.hand_back("t")
    assert [offset for _, _, offset in one.peek()] == [4, 2, 3]
    assert one.shard.depth()["held"] == 2
    assert one.purge() == (3, 0)


@pytest.mark.feature("C12")
def test_delayed_messages_count_in_the_target_depth_and_scheduled_ones_do_not() -> None:
    one = deep(1)
    publish(one, {}, enqueue_at_ms=9_000)
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0), delay_ms=50)
    assert one.shard.room() == 1


@pytest.mark.feature("X6", "Q13", "C43")
def test_an_id_counts_if_its_message_was_acknowledged_before_it_was_active() -> None:
    """Its consumer has handled it. So what its producer wrote again is a repeat."""
    one = World(QueueSettings(name="orders", target_depth=1, dedup_window_ms=100))
    for message_id in (b"a", b"b", b"a", b"b"):
        one.publish("orders", message_id=message_id)
    one.read("orders")
    assert one.settle("acknowledge", "inky", Claim("orders", 0, 1, 2)) == ["settled", "settled"]
    one.settle("acknowledge", "inky", Claim("orders", 0, 0, 0))
    for _ in range(3):
        one.read("orders")
    assert one.peek() == []
    emitted = [int(each.messages.offsets[0]) for each in one.step.events if each.kind == "repeated"]
    assert emitted == [3], "what was acknowledged has one fate"
