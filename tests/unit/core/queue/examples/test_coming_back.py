"""Messages that come back, by name (Q5, C19, C20).

Each also runs beside the oracle, which `World` compares.
"""

import pytest

from lapse.core.expression import compile_value
from lapse.core.queue.arrival.trait import NO_TRAITS, TraitReader
from lapse.core.queue.settings import Fairness
from unit.core.queue.examples.messages import ON, at, got, with_messages, world

pytestmark = pytest.mark.usefixtures("each_room")


@pytest.mark.feature("C49")
@pytest.mark.parametrize("trait", ["", "priority", "group"])
def test_the_last_holder_is_known_after_a_take_over(trait: str) -> None:
    """It gets the message again only while the other one has no room."""
    traits = TraitReader(**{trait: compile_value("/p")}) if trait else NO_TRAITS
    one = with_messages(2, fairness=Fairness.FAST, traits=traits)
    one.subscribe("hung")
    assert got(one.deliver(), "hung") == [0]
    one.subscribe("healthy")
    assert got(one.deliver(), "healthy") == [1]
    one.advance(100)
    one.commit()
    one.crash()
    deliveries = one.deliver()
    assert (got(deliveries, "healthy"), got(deliveries, "hung")) == ([0], [1])
    one.settle("cancel", "healthy", at(0))
    assert got(one.deliver(), "healthy") == [0]


@pytest.mark.feature("Q5")
def test_a_returned_message_is_next_at_its_original_place() -> None:
    one = with_messages(4)
    one.subscribe("inky")
    one.subscribe("blinky")
    assert got(one.deliver(), "inky") == [0]
    one.settle("acknowledge", "blinky", at(1))
    assert got(one.deliver(), "blinky") == [2]
    one.settle("cancel", "inky", at(0))
    assert got(one.deliver(), "inky") == [0]
    one.advance(100)
    deliveries = one.deliver()
    # Both come back; each goes to the other one first (C49).
    assert (got(deliveries, "inky"), got(deliveries, "blinky")) == ([2], [0])


@pytest.mark.feature("D4", "Q5", "D6")
def test_a_returned_lease_is_reported_with_whose_it_was() -> None:
    one = with_messages(2)
    one.subscribe("inky")
    one.subscribe("blinky")
    one.deliver()
    step = one._open()
    one.shard.advance(one.now_ms + 100, step)
    returned = [event for event in step.events if event.kind == "lease_returned"]
    emitted = {event.subscription: list(event.messages.ranges()) for event in returned}
    assert emitted == {"inky": [(0, 0)], "blinky": [(1, 1)]}


@pytest.mark.feature("Q5")
def test_unsubscribing_returns_leases_at_once() -> None:
    one = with_messages(3)
    one.subscribe("inky", 3)
    one.deliver()
    one.unsubscribe("inky")
    one.subscribe("blinky", 3)
    assert [(sent.bookmark[2], sent.deliveries) for sent in one.deliver()["blinky"]] == [(0, 2), (1, 2), (2, 2)]


@pytest.mark.feature("Q5", "C2")
def test_missed_heartbeats_return_leases() -> None:
    one = with_messages()
    one.subscribe("inky", timeout_ms=60)
    one.deliver()
    one.advance(30)
    one.heard("inky")
    one.advance(59)
    assert one.oracle.in_state("leased")
    one.advance(1)
    assert one.oracle.in_state("available")
    assert not one.oracle.subscribers


@pytest.mark.feature("C5")
def test_after_a_take_over_a_subscription_has_one_full_timeout() -> None:
    one = world()
    one.subscribe("inky", timeout_ms=60)
    one.commit()
    one.now_ms += 59
    one.crash()
    one.advance(59)
    assert one.oracle.subscribers
    one.advance(1)
    assert not one.oracle.subscribers


@pytest.mark.feature("C20")
def test_a_replaced_subscription_keeps_its_leases_and_takes_no_more_than_the_new_backlog() -> None:
    one = with_messages(6)
    one.subscribe("inky", 4)
    one.deliver()
    one.subscribe("inky", 2)
    one.settle("acknowledge", "inky", at(0, 1))
    assert one.deliver() == {}
    one.settle("acknowledge", "inky", at(2))
    assert got(one.deliver(), "inky") == [4]


@pytest.mark.feature("C19")
def test_a_delayed_message_counts_lives_and_keeps_its_place() -> None:
    one = with_messages(2, said={"ttl_ms": 500}, expiration=ON)
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0), delay_ms=50)
    assert one.shard.depth()["depth"] == 2
    assert got(one.deliver(), "inky") == [1]
    one.advance(49)
    one.settle("acknowledge", "inky", at(1))
    assert one.deliver() == {}
    one.advance(1)
    assert got(one.deliver(), "inky") == [0]
    one.settle("cancel", "inky", at(0), delay_ms=5_000)
    assert [out.reasons for out in one.advance(450)] == [("time_limit",)]


@pytest.mark.feature("C19", "Q16")
def test_a_delay_survives_a_crash() -> None:
    one = with_messages()
    one.subscribe("inky")
    one.deliver()
    one.settle("cancel", "inky", at(0), delay_ms=50)
    one.commit()
    one.crash()
    one.crash()
    one.advance(50)
    assert got(one.deliver(), "inky") == [0]


@pytest.mark.slow
@pytest.mark.feature("C13")
def test_the_fencing_token_grows_for_as_long_as_a_message_fails() -> None:
    one = with_messages()
    one.subscribe("inky")
    one.shard.state.segments[0].delivery_counts()[0] = one.oracle.messages["orders", 0, 0].deliveries = 65_535
    assert [sent.deliveries for sent in one.deliver()["inky"]] == [65_536]
    assert one.settle("cancel", "inky", at(0, token=65_536)) == ["settled"]
