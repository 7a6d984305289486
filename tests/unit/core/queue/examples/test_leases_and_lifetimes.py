"""The sources' examples of leases and lifetimes, by name (L9, L10, Q10).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.lifetime import Expiration, ExpirationModel
from lapse.core.queue.settings import QueueSettings
from unit.core.queue.examples.messages import MINUTE_MS, ON, at, got, with_messages, world

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("Q10", "L11")
def test_a_lease_protects_from_expiry_until_it_ends() -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    assert one.advance(99) == []
    assert [(out.reasons, out.letter) for out in one.advance(1)] == [(("time_limit",), True)]


@pytest.mark.feature("Q10")
def test_an_expired_message_that_is_settled_under_its_lease_was_handled() -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    one.now_ms += 60
    assert one.settle("acknowledge", "inky", at(0)) == ["settled"]
    assert one._last_gone == []
    assert one.advance(1_000) == []
    assert one.settle("acknowledge", "inky", at(0)) == ["already_settled"]


@pytest.mark.feature("Q10")
@pytest.mark.parametrize("how", ["cancel", "unsubscribe"])
def test_an_expired_message_that_comes_back_leaves_at_once(how: str) -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    one.now_ms += 50
    one.settle("cancel", "inky", at(0)) if how == "cancel" else one.unsubscribe("inky")
    assert [out.reasons for out in one._last_gone] == [("time_limit",)]


@pytest.mark.feature("L10", "C15")
def test_an_expired_message_is_not_delivered_though_it_is_not_yet_removed() -> None:
    one = with_messages(2, said={"ttl_ms": 50}, expiration=ON)
    one.publish("orders")
    one.read("orders")
    one.subscribe("inky", 10)
    one.now_ms += 50
    assert got(one.deliver(), "inky") == [2]
    assert one.settle("acknowledge", "inky", at(0)) == ["time_limit"]
    assert [out.bookmark[2] for out in one.advance()] == [0, 1]


@pytest.mark.feature("L10", "C2")
@pytest.mark.parametrize(("wait_ms", "expired"), [(49, False), (50, True)])
def test_a_message_is_expired_from_its_deadline_on(wait_ms: int, expired: bool) -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=ON)
    one.subscribe("inky")
    one.now_ms += wait_ms
    assert (one.deliver() == {}) is expired
    one.unsubscribe("inky")


@pytest.mark.feature("L9")
def test_switching_expiration_on_acts_at_once_on_deadlines_that_passed() -> None:
    one = with_messages(said={"ttl_ms": 50}, expiration=Expiration(enabled=False))
    assert one.advance(60) == []
    one.commit()
    one.crash(QueueSettings(name="orders", expiration=ON))
    assert [out.deadline_ms for out in one.advance()] == [1_050]


@pytest.mark.feature("L5")
@pytest.mark.parametrize("model", ExpirationModel)
def test_scheduled_in_five_minutes_for_ten_expires_after_fifteen(model: ExpirationModel) -> None:
    one = world(expiration=Expiration(True, 10 * MINUTE_MS, model))
    one.publish("orders", enqueue_at_ms=one.now_ms + 5 * MINUTE_MS, ttl_ms=10 * MINUTE_MS)
    one.read("orders")
    one.subscribe("inky", timeout_ms=1 << 40)
    one.advance(5 * MINUTE_MS - 1)
    assert one.deliver() == {}
    one.advance(1)
    assert [sent.deadline_ms for sent in one.deliver()["inky"]] == [1_000 + 15 * MINUTE_MS]
    one.settle("cancel", "inky", at(0))
    assert one.advance(10 * MINUTE_MS - 1) == []
    assert [out.reasons for out in one.advance(1)] == [("time_limit",)]


@pytest.mark.feature("C11")
def test_scheduled_messages_take_their_places_in_the_order_of_their_instants() -> None:
    for enabled in (True, False):
        one = world(expiration=Expiration(enabled))
        one.publish("orders", enqueue_at_ms=1_300, expires_at_ms=None if enabled else 1_100)
        one.publish("orders", enqueue_at_ms=1_200)
        one.publish("orders", enqueue_at_ms=1_200)
        one.publish("orders")
        one.read("orders")
        one.advance(1_000)
        one.subscribe("inky", 10)
        assert got(one.deliver(), "inky") == [3, 1, 2, 0]


@pytest.mark.feature("C11", "L5")
def test_each_scheduled_message_comes_at_its_instant_whatever_is_due_later() -> None:
    one = world()
    for after_ms in (30, 10, 20, 90):
        one.publish("orders", enqueue_at_ms=one.now_ms + after_ms)
    one.read("orders")
    for count in range(3):
        one.advance(9)
        assert one.shard.depth()["available"] == count
        one.advance(1)
        assert one.shard.depth()["available"] == count + 1


@pytest.mark.feature("Q15", "C11", "C27")
def test_a_peek_turns_pages_over_what_stands_then_what_is_scheduled_then_what_dies() -> None:
    one = world(expiration=ON)
    for said in ({}, {"ttl_ms": 900}, {}, {"enqueue_at_ms": 1_500}, {"enqueue_at_ms": 1_300, "ttl_ms": 70}):
        one.publish("orders", **said)
    one.read("orders")
    one.refusing = 1
    one.settle("expire", "inky", at(0, 1))
    assert [bookmark[2] for bookmark in one.peek()] == [2, 4, 3, 0, 1]
    for skip in range(6):
        for limit in range(3):
            one.peek(skip=skip, limit=limit)  # compares each row


@pytest.mark.feature("D4", "L5")
def test_messages_that_are_scheduled_together_are_reported_in_one_event() -> None:
    one = world()
    for _ in range(3):
        one.publish("orders", enqueue_at_ms=5_000)
    one.publish("orders")
    step = one._open()
    one.shard.arrive("orders", 0, one.topics["orders", 0], step)
    (emitted,) = [event for event in step.events if event.kind == "scheduled"]
    assert list(emitted.messages.ranges()) == [(0, 2)]


@pytest.mark.feature("C16", "L5")
def test_a_scheduled_message_is_not_settled() -> None:
    one = with_messages(said={"enqueue_at_ms": 5_000})
    assert one.settle("acknowledge", "inky", at(0)) == ["scheduled"]
