"""Arrival, segments that go, and crashes, by name.

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.settings import Leasing, QueueSettings
from lapse.core.queue.settlement.settlement import Claim
from lapse.core.reason import Reason
from unit.core.queue.compared.small_shard import small
from unit.core.queue.examples.messages import MINUTE_MS, ON, at, got, with_messages, world

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("L12")
def test_an_unreadable_lifetime_leaves_with_its_fault_and_the_rest_flows_on() -> None:
    one = world()
    one.publish("orders", broken=True)
    one.publish("orders")
    step = one._open()
    one.shard.arrive("orders", 0, one.topics["orders", 0], step)
    (removal,) = step.removals
    assert (removal.reasons, removal.letter) == ((Reason.INVALID_LIFETIME,), True)
    assert "lapse-ttl-ms" in removal.detail
    assert one.shard.depth()["available"] == 1


@pytest.mark.slow
@pytest.mark.feature("Q2")
def test_a_queue_over_many_topics_survives_a_crash() -> None:
    one = world()
    for number in range(300):
        one.publish(f"orders-{number}")
        one.read(f"orders-{number}")
    one.commit()
    one.crash()
    one.subscribe("inky", 300)
    assert len(one.deliver()["inky"]) == 300


@pytest.mark.feature("C16")
def test_every_bookmark_is_answered_though_scheduled_messages_stand_between_older_ones() -> None:
    with small(size=3):
        one = world(expiration=ON)
        one.publish("orders", enqueue_at_ms=1_001)
        one.publish("orders", enqueue_at_ms=1_001)
        one.publish("orders", ttl_ms=1)
        one.read("orders")
        one.advance(1)
        assert one.settle("acknowledge", "inky", at(0, 2)) == ["settled", "settled", "time_limit"]
        assert one.settle("acknowledge", "inky", at(0, 2)) == ["already_settled", "already_settled", "time_limit"]


@pytest.mark.feature("Q16", "Q5")
def test_after_a_crash_the_first_message_is_still_the_first() -> None:
    with small(size=3):
        one = with_messages(10)
        one.commit()
        one.crash()
        one.subscribe("inky", 10)
        assert got(one.deliver(), "inky") == list(range(10))


@pytest.mark.feature("Q16")
def test_inherited_segments_move_out_of_the_reach_of_the_old_owner() -> None:
    with small(size=3, ring=2):
        one = with_messages(12)
        for _ in range(6):
            one.commit()
            one.heard("inky")
        one.commit()
        one.crash(stall=True)
        for _ in range(6):
            one.heard("inky")
            one.commit()
        assert {key[1:9] for key in one.journal._whole_at.values()} == {one.epoch.to_bytes(8)}
        one.zombie(0, leave_all=True)
        one.log.compact(one.log.end, tombstones_too=True)
        one.crash()
        assert one.shard.depth()["available"] == 12


@pytest.mark.feature("Q8")
def test_under_strict_a_stranger_is_nobody_and_holds_nothing() -> None:
    one = with_messages(4, leasing=Leasing.STRICT)
    for name in ("inky", "blinky", "clyde", "pinky"):
        one.subscribe(name)
    one.deliver()
    assert one.settle("acknowledge", "stranger", Claim("orders", 0, 0, 3)) == ["not_holder"] * 4
    assert one.settle("renew", "stranger", Claim("orders", 0, 0, 3)) == ["not_holder"] * 4


@pytest.mark.feature("C23", "L11")
def test_a_lowered_limit_takes_out_what_is_beyond_it_and_leaves_what_expired_to_its_timer() -> None:
    one = world(expiration=ON)
    one.publish("orders")
    one.publish("orders", ttl_ms=50)
    one.read("orders")
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0))
    one.unsubscribe("inky")
    one.commit()
    one.now_ms += 50
    one.crash(QueueSettings(name="orders", lease_ms=100, expiration=ON, max_deliveries=1))
    assert [(gone.bookmark[2], gone.reasons) for gone in one._last_gone] == [(0, ("max_deliveries",))]
    assert [(gone.bookmark[2], gone.reasons) for gone in one.advance()] == [(1, ("time_limit",))]


@pytest.mark.feature("X6", "L12")
def test_a_repeat_with_a_lifetime_that_cannot_be_read_is_a_repeat() -> None:
    one = world(dedup_window_ms=MINUTE_MS)
    one.publish("orders", message_id=b"7")
    one.publish("orders", message_id=b"7", broken=True)
    one.publish("orders", message_id=b"8", broken=True)
    one.read("orders")
    assert [(gone.bookmark[2], gone.reasons) for gone in one._last_gone] == [(2, ("invalid_lifetime",))]
