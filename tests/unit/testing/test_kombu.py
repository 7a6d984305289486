"""What a consumer of kombu has received and may not hand out yet (X3, Q5)."""

from types import SimpleNamespace

import pytest

from lapse.testing import Lapse
from lapse_client import Delivery
from lapse_client.subscriber.subscriber import QueueSubscriber
from lapse_kombu.consumption import Consumption
from lapse_kombu.unsettled import Unsettled

pytestmark = pytest.mark.feature("X3", "Q5")


def consumption(subscriber: QueueSubscriber, closed: list[QueueSubscriber]) -> tuple[Consumption, Unsettled]:
    unsettled = Unsettled(SimpleNamespace(settled=closed.append))
    return Consumption("orders", subscriber, 5, lambda _: None, unsettled, no_ack=False), unsettled


def test_reserved_deliveries_are_handed_out_one_by_one(lapse: Lapse) -> None:
    """What a consumer that fails on the first would take along is kept leased, and so comes to nobody."""
    lapse.queue("orders", lease_period="10s")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 5) as subscriber:
        one, unsettled = consumption(subscriber, [])
        for value in (b"1", b"2"):
            publisher.publish("orders", value)
        lapse.settle()
        one.reserve()
        assert unsettled.has(subscriber)
        found: list[Delivery] = []
        while came := one.take(5, 0.0):
            assert len(came) == 1
            found += came
        assert [delivery.value for delivery in found] == [b"1", b"2"]


def test_a_consumer_that_was_cancelled_reserves_nothing(lapse: Lapse) -> None:
    """The thread that renews leases may be about to reserve while another thread cancels the consumer."""
    lapse.queue("orders", lease_period="10s")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 5) as subscriber:
        closed: list[QueueSubscriber] = []
        one, unsettled = consumption(subscriber, closed)
        publisher.publish("orders", b"1")
        lapse.settle()
        one.reserve()
        assert unsettled.has(subscriber)
        one.give_back()
        publisher.publish("orders", b"2")
        lapse.settle()
        one.reserve()
        assert not unsettled.has(subscriber), "its subscription would never be closed"
        assert closed == [subscriber], "what is given back may be the last that it waited for"
