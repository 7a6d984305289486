"""What is assigned stays assigned while the group is balanced anew."""

import asyncio
from collections.abc import Callable

import pytest

pytest.importorskip("faust")  # the worker's packages are an extra

from aiokafka.consumer.group_coordinator import GroupCoordinator
from aiokafka.consumer.subscription_state import Subscription
from aiokafka.errors import IllegalStateError
from aiokafka.structs import TopicPartition
from faust.assignor.client_assignment import ClientAssignment
from faust.types import TP

from lapse.runtime.kafka.group.assignor import withhold
from lapse.runtime.kafka.group.steady_subscription import SteadySubscriptions

ORDERS, PRICES = TopicPartition("orders", 0), TopicPartition("prices", 0)


def run(what: Callable[[SteadySubscriptions], None]) -> None:
    async def go() -> None:
        what(SteadySubscriptions())

    asyncio.run(go())


@pytest.mark.feature("C90")
def test_a_changed_subscription_leaves_what_it_has_in_common_as_it_is() -> None:
    def change(subscriptions: SteadySubscriptions) -> None:
        subscriptions.subscribe({"orders", "prices"})
        assert subscriptions.reassignment_in_progress
        assert not subscriptions.is_balanced
        subscriptions.assign_from_subscribed([ORDERS, PRICES])
        assert subscriptions.is_balanced
        before = subscriptions.subscription.assignment
        subscriptions.seek(ORDERS, 7)
        subscriptions.resume(ORDERS)
        kept = before.state_value(ORDERS)

        subscriptions.subscribe({"orders", "fresh"})
        subscriptions.begin_reassignment()
        now = subscriptions.subscription
        assert now.active
        assert now.assignment is before
        assert not subscriptions.is_balanced, "the group has not been balanced for these topics"
        assert before.active
        assert subscriptions.assigned_partitions() == {ORDERS}, "what is not subscribed to is asked for no more"
        assert not subscriptions.reassignment_in_progress
        assert not before.state_value(PRICES).has_valid_position, "what a fetch still brings of it is dropped"
        with pytest.raises(IllegalStateError):
            subscriptions.seek(PRICES, 1)

        fresh = TopicPartition("fresh", 0)
        subscriptions.assign_from_subscribed([ORDERS, fresh])
        assert subscriptions.subscription.assignment is before
        assert subscriptions.is_balanced
        assert before.state_value(ORDERS) is kept
        assert (kept.position, kept.paused) == (7, False)
        assert before.state_value(fresh).paused, "nobody has said yet where to begin"

    run(change)


@pytest.mark.feature("Q23")
def test_a_worker_that_had_nothing_to_read_for_long_joins_its_group() -> None:
    joined: list[str] = []

    class Coordinator(GroupCoordinator):
        def __init__(self, subscriptions: SteadySubscriptions) -> None:  # of aiokafka's only what joining needs
            self._subscription = subscriptions
            self._performed_join_prepare = True
            self._heartbeat_task = None
            self._max_poll_interval, self._retry_backoff_ms = 1000.0, 0

        async def _do_rejoin_group(self, subscription: Subscription) -> None:
            joined.extend(subscription.topics)

    async def go() -> None:
        subscriptions = SteadySubscriptions()
        subscriptions._last_fetch_ended -= 3600.0
        subscriptions.subscribe({"orders"})
        subscriptions.assign_from_subscribed([ORDERS])
        subscription = subscriptions.subscription
        await Coordinator(subscriptions).ensure_active_group(subscription, subscription.assignment)

    asyncio.run(go())
    assert joined == ["orders"]


@pytest.mark.feature("C90")
def test_who_waits_for_what_is_committed_of_a_partition_that_went_waits_no_more() -> None:
    async def go() -> None:
        subscriptions = SteadySubscriptions()
        subscriptions.subscribe({"orders"})
        subscriptions.assign_from_subscribed([ORDERS])
        waiting = subscriptions.subscription.assignment.state_value(ORDERS).fetch_committed()
        assignment = subscriptions.subscription.assignment
        subscriptions.assign_from_subscribed([])
        async with asyncio.timeout(5):
            assert (await waiting).offset == -1
        gone = assignment.state_value(ORDERS)
        async with asyncio.timeout(5):
            assert (await gone.fetch_committed()).offset == -1
        gone.await_reset(-1)
        gone.reset_to(5)
        gone.consumed_to(6)
        assert (gone.has_valid_position, gone.awaiting_reset, gone.paused) == (False, False, True)

    asyncio.run(go())


@pytest.mark.feature("C90")
def test_nobody_gets_what_another_member_has_still() -> None:
    assignments = {
        "old": ClientAssignment(actives={"orders": [0]}, standbys={}),
        "new": ClientAssignment(actives={"orders": [1, 2], "fresh": [1]}, standbys={}),
    }
    assert withhold(assignments, {"old": {TP("orders", 0), TP("orders", 1)}, "new": set()})
    assert assignments["new"].actives == {"orders": [2], "fresh": [1]}
    assert assignments["old"].actives == {"orders": [0]}


@pytest.mark.feature("C90")
def test_what_two_members_believe_to_have_goes_to_the_one_that_is_to_have_it() -> None:
    """One of them was out of the group; the other must not lose it for that."""
    assignments = {
        "zombie": ClientAssignment(actives={"orders": []}, standbys={}),
        "owner": ClientAssignment(actives={"orders": [0]}, standbys={}),
    }
    assert not withhold(assignments, {"zombie": {TP("orders", 0)}, "owner": {TP("orders", 0)}})
    assert assignments["owner"].actives == {"orders": [0]}
