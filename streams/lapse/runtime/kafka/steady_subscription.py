"""Subscriptions whose partitions go on being fetched while the group is balanced anew (C90).

aiokafka drops the whole assignment once the subscription changes, and hands out nothing while the group rebalances.
Here what is assigned stays assigned until the next assignment is known, and what both have in common is not touched.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.consumer.subscription_state import Assignment, Subscription, SubscriptionState, TopicPartitionState
from aiokafka.errors import IllegalStateError
from aiokafka.structs import OffsetAndMetadata, TopicPartition

_NOTHING_COMMITTED = OffsetAndMetadata(-1, "")


class _Gone(TopicPartitionState):
    """What a request that is under way finds of a partition that has gone: it wants nothing, and remembers nothing."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self.pause()

    def fetch_committed(self) -> asyncio.Future[OffsetAndMetadata]:
        """Nothing, at once."""
        answer: asyncio.Future[OffsetAndMetadata] = asyncio.get_running_loop().create_future()
        answer.set_result(_NOTHING_COMMITTED)
        return answer

    def await_reset(self, strategy: object) -> None:
        """Nothing."""

    def reset_to(self, position: int) -> None:
        """Nothing."""

    def consumed_to(self, position: int) -> None:
        """Nothing."""


class SteadyAssignment(Assignment):
    """What is assigned; the object lives as long as the member, and the fetches under way with it."""

    def __init__(self, tps: frozenset[TopicPartition]) -> None:
        super().__init__(())
        self._gone = _Gone(self)
        self.change(tps)

    def state_value(self, tp: TopicPartition) -> TopicPartitionState:
        """As aiokafka's, but never nothing."""
        return self._tp_state.get(tp) or self._gone

    def change(self, tps: frozenset[TopicPartition]) -> None:
        """Have these partitions from now on; new ones are left out of the fetch until somebody says where to begin."""
        states: dict[TopicPartition, TopicPartitionState] = self._tp_state
        for tp in states.keys() - tps:
            state = states.pop(tp)
            state.resume()
            state.update_committed(_NOTHING_COMMITTED)
        for tp in tps - states.keys():
            state = states[tp] = TopicPartitionState(self)
            state.pause()
            state.seek(0)  # else it would be looked up what is committed
        self._topic_partitions = tps


class SteadySubscriptions(SubscriptionState):
    """What a consumer is subscribed to, and what is assigned to it."""

    _assigned_under: Subscription | None = None

    @property
    def is_balanced(self) -> bool:
        """Whether the group was balanced since the topics were chosen that are read."""
        return self._subscription is not None and self._assigned_under is self._subscription

    def _change_subscription(self, subscription: Subscription) -> None:
        before = self._subscription
        if before is not None and before.assignment is not None and before.assignment.active:
            kept, before._assignment = before.assignment, None
            kept.change(frozenset(tp for tp in kept.tps if tp.topic in subscription.topics))
            subscription._assignment = kept
        super()._change_subscription(subscription)

    def assign_from_subscribed(self, assignment: Any) -> None:
        """As aiokafka's, for the partitions that come and go only."""
        subscription = self._subscription
        kept, tps = subscription.assignment, frozenset(assignment)
        strange = {tp.topic for tp in tps} - subscription.topics
        assert not strange, f"Received an assignment for unsubscribed topics: {strange}"
        if kept is None or not kept.active:
            subscription._assignment = SteadyAssignment(tps)
        else:
            kept.change(tps)
        subscription._reassignment_in_progress = False
        self._assigned_under = subscription
        self._notify_assignment_waiters()

    @property
    def reassignment_in_progress(self) -> bool:
        """Whether nothing may be handed out: only while nothing is assigned."""
        return self._subscription is None or self._subscription.assignment is None

    def _assigned_state(self, tp: TopicPartition) -> Any:
        if not self.is_assigned(tp):
            raise IllegalStateError(f"No current assignment for partition {tp}")
        return super()._assigned_state(tp)
