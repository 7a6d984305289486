"""The subscriptions of a shard, with their numbers of outstanding deliveries (Q3, C20)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapse.core.lifetime import NEVER
from lapse.core.queue.subscriptions.subscription import Subscription


class SubscriptionTable:
    """Subscriptions by id and by number.

    Attributes:
        by_id: the subscriptions by id, in the order in which they began.
        next_number: number for the next new subscription.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Subscription] = {}
        self.next_number = 0
        self._by_number: dict[int, Subscription] = {}
        self._lost_at_ms: int | None = NEVER
        """When the next subscription is lost, ms since the epoch; None = to be computed."""

    @property
    def lost_at_ms(self) -> int:
        """When the next subscription is lost unless heard of, ms since the epoch; `NEVER` without any (Q5)."""
        if self._lost_at_ms is None:
            self._lost_at_ms = min([one.lost_at_ms for one in self.by_id.values()], default=NEVER)
        return self._lost_at_ms

    def note_heard(self, subscription: Subscription, at_ms: int) -> None:
        """Note a sign of life of a subscription at an instant, ms since the epoch (Q5)."""
        if at_ms > subscription.last_seen_ms:
            if subscription.lost_at_ms == self._lost_at_ms:
                self._lost_at_ms = None
            subscription.last_seen_ms = at_ms

    def set_back(self, now_ms: int) -> None:
        """Count signs of life from the future as of now, because the broker's clock was set back."""
        for subscription in self.by_id.values():
            subscription.last_seen_ms = min(subscription.last_seen_ms, now_ms)
        self._lost_at_ms = None

    def find(self, number: int) -> Subscription | None:
        """Return the subscription with a number; None if it has ended."""
        return self._by_number.get(number)

    def add(self, facts: dict[str, Any]) -> None:
        """Add a subscription, or replace its options but keep its outstanding deliveries and its position."""
        known = self.by_id.get(facts["id"])
        subscription = Subscription(**facts)
        if known is not None:
            subscription.take_over_from(known)
        self._lost_at_ms = None
        self.by_id[subscription.id] = subscription
        self._by_number[subscription.number] = subscription
        self.next_number = max(self.next_number, subscription.number + 1)

    def remove(self, number: int) -> None:
        """Remove a subscription."""
        self._lost_at_ms = None
        gone = self._by_number.pop(number, None)
        if gone is not None:
            self.by_id.pop(gone.id, None)

    def count(self, number: int, by: int) -> None:
        """Add `by` to a subscription's number of outstanding deliveries."""
        subscription = self._by_number.get(number)
        if subscription is not None:
            subscription.outstanding += by
            if by < 0:
                subscription.settled -= by

    def count_each(self, holders: NDArray[np.int32], by: int) -> None:
        """Add `by` to the outstanding deliveries of each place's holder."""
        if len(holders) < 2:
            if len(holders):
                self.count(int(holders[0]), by)
            return
        first = int(holders[0])
        if first == int(holders[-1]) and bool((holders == first).all()):
            self.count(first, by * len(holders))
            return
        for number, count in zip(*np.unique(holders, return_counts=True), strict=True):
            self.count(int(number), by * int(count))

    def forget_outstanding(self) -> None:
        """Reset all numbers of outstanding deliveries, at recovery."""
        for subscription in self.by_id.values():
            subscription.outstanding = 0
