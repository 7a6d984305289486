"""The sources' examples of fairness, by name (Q7).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.queue.settings import Fairness
from lapse.core.queue.step import Step
from unit.core.queue.examples.messages import MINUTE_MS, got, with_messages, world

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("Q7")
def test_the_fourth_message_of_ten_goes_before_the_second_of_two() -> None:
    one = world(fairness=Fairness.PROPORTIONAL)
    for name, backlog, leased in (("inky", 1, 1), ("blinky", 3, 3), ("clyde", 4, 4)):
        one.subscribe(name, backlog)
        for _ in range(leased):
            one.publish("orders")
        one.read("orders")
        assert len(got(one.deliver(), name)) == leased
    for name, backlog in (("inky", 2), ("blinky", 4), ("clyde", 10)):
        one.subscribe(name, backlog)
    one.publish("orders")
    one.read("orders")
    assert got(one.deliver(), "clyde") == [8]


@pytest.mark.feature("Q7")
def test_equal_unused_capacity_goes_to_the_first_found() -> None:
    one = with_messages(3, fairness=Fairness.PROPORTIONAL)
    one.subscribe("inky", 2)
    one.subscribe("blinky", 4)
    deliveries = one.deliver()
    assert (got(deliveries, "inky"), got(deliveries, "blinky")) == ([0], [1, 2])


@pytest.mark.feature("Q7")
def test_fast_fills_the_first_found_and_round_robin_takes_turns() -> None:
    for fairness, shares in ((Fairness.FAST, ([0, 1, 2], [3])), (Fairness.ROUND_ROBIN, ([0, 2], [1, 3]))):
        one = with_messages(4, fairness=fairness)
        one.subscribe("inky", 3)
        one.subscribe("blinky", 3)
        deliveries = one.deliver()
        assert (got(deliveries, "inky"), got(deliveries, "blinky")) == shares


@pytest.mark.feature("Q3")
def test_a_subscription_gets_no_more_than_its_backlog_and_the_queues_cap() -> None:
    one = with_messages(5, max_backlog=3)
    one.subscribe("inky", 1)
    assert got(one.deliver(), "inky") == [0]
    assert one.deliver() == {}
    one.subscribe("inky", 10)
    assert got(one.deliver(), "inky") == [1, 2]


@pytest.mark.feature("Q3", "D4")
def test_a_new_subscription_is_reported_and_one_with_new_options_is_not() -> None:
    one, step = world(max_backlog=5), Step()
    for client, asked, gets in (("first", 9, 5), ("second", 3, 3)):
        known = one.shard.subscribing.subscribe("inky", client, asked, MINUTE_MS, "", one.now_ms, step)
        assert (known.id, known.client, known.max_backlog) == ("inky", client, gets)
    assert [(event.kind, event.subscription, event.detail) for event in step.events] == [
        ("subscribed", "inky", "first")
    ]


@pytest.mark.feature("Q7")
def test_order_of_subscriptions_survives_replacement_and_crash() -> None:
    one = world(fairness=Fairness.FAST)
    one.subscribe("inky", 1)
    one.subscribe("blinky", 1)
    one.subscribe("inky", 2)
    one.commit()
    one.crash()
    one.publish("orders")
    one.read("orders")
    assert got(one.deliver(), "inky") == [0]
