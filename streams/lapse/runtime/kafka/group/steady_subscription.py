"""Subscriptions whose partitions are still fetched during a rebalance (C90).

aiokafka drops the whole assignment when the subscription changes, and returns no records during a rebalance. Here
partitions stay assigned until the next assignment is known, and those in both assignments are not touched.
"""

from __future__ import annotations

import asyncio
from typing import Any

from aiokafka.consumer.subscription_state import Assignment, Subscription, SubscriptionState, TopicPartitionState
from aiokafka.errors import IllegalStateError
from aiokafka.structs import OffsetAndMetadata, TopicPartition

_NOTHING_COMMITTED = OffsetAndMetadata(-1, "")


class _Gone(TopicPartitionState):
    """The state of a partition that is no longer assigned, for requests under way. It ignores everything."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment)
        self.pause()

    def fetch_committed(self) -> asyncio.Future[OffsetAndMetadata]:
        """Return no offset, at once."""
        answer: asyncio.Future[OffsetAndMetadata] = asyncio.get_running_loop().create_future()
        answer.set_result(_NOTHING_COMMITTED)
        return answer

    def await_reset(self, strategy: object) -> None:
        """Do nothing."""

    def reset_to(self, position: int) -> None:
        """Do nothing."""

    def consumed_to(self, position: int) -> None:
        """Do nothing."""


class SteadyAssignment(Assignment):
    """The assigned partitions. The object lives as long as the member, so fetches under way stay valid."""

    def __init__(self, tps: frozenset[TopicPartition]) -> None:
        super().__init__(())
        self._gone = _Gone(self)
        self.change(tps)

    def state_value(self, tp: TopicPartition) -> TopicPartitionState:
        """Return the state of a partition, like aiokafka's, but never None."""
        return self._tp_state.get(tp) or self._gone

    def change(self, tps: frozenset[TopicPartition]) -> None:
        """Change the assigned partitions. New ones are not fetched until their positions are set."""
        states: dict[TopicPartition, TopicPartitionState] = self._tp_state
        for tp in states.keys() - tps:
            state = states.pop(tp)
            state.resume()
            state.update_committed(_NOTHING_COMMITTED)
        for tp in tps - states.keys():
            state = states[tp] = TopicPartitionState(self)
            state.pause()
            state.seek(0)  # otherwise aiokafka would ask for the committed offset
        self._topic_partitions = tps


class SteadySubscriptions(SubscriptionState):
    """A consumer's subscription, and its assignment."""

    _assigned_under: Subscription | None = None

    @property
    def is_balanced(self) -> bool:
        """Whether the group has rebalanced since the last change of the subscription."""
        return self._subscription is not None and self._assigned_under is self._subscription

    @property
    def fetcher_idle_time(self) -> float:
        """For how long nobody asked for records, s: always 0.

        From a limit on aiokafka keeps such a member out of its group until somebody asks for records. A worker does not
        ask while it has nothing to serve, however long that is, and while its group rebalances. So it would never come
        back. `Watch` ends a worker that hangs.
        """
        return 0.0

    def _change_subscription(self, subscription: Subscription) -> None:
        before = self._subscription
        if before is not None and before.assignment is not None and before.assignment.active:
            kept, before._assignment = before.assignment, None
            kept.change(frozenset(tp for tp in kept.tps if tp.topic in subscription.topics))
            subscription._assignment = kept
        super()._change_subscription(subscription)

    def assign_from_subscribed(self, assignment: Any) -> None:
        """Do the same as aiokafka's, but only for partitions that are added or removed."""
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
        """Whether no records may be returned: only while there is no assignment."""
        return self._subscription is None or self._subscription.assignment is None

    def _assigned_state(self, tp: TopicPartition) -> Any:
        if not self.is_assigned(tp):
            raise IllegalStateError(f"No current assignment for partition {tp}")
        return super()._assigned_state(tp)
