"""The subscriptions of a shard, and what each has outstanding (Q3, C20)."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.subscriptions.subscription import Subscription


class SubscriptionTable:
    """Subscriptions by their names on the wire and by their numbers in the columns of segments.

    Attributes:
        by_id: in the order in which they came.
        next_number: of the next new subscription.
    """

    def __init__(self) -> None:
        self.by_id: dict[str, Subscription] = {}
        self.next_number = 0
        self._by_number: dict[int, Subscription] = {}

    def find(self, number: int) -> Subscription | None:
        """The subscription behind a number in a column."""
        return self._by_number.get(number)

    def add(self, facts: dict[str, Any]) -> None:
        """Begin a subscription, or replace its options; it keeps what it has outstanding, and its turn."""
        known = self.by_id.get(facts["id"])
        subscription = Subscription(**facts)
        if known is not None:
            subscription.outstanding = known.outstanding
        self.by_id[subscription.id] = subscription
        self._by_number[subscription.number] = subscription
        self.next_number = max(self.next_number, subscription.number + 1)

    def remove(self, number: int) -> None:
        """End a subscription."""
        gone = self._by_number.pop(number, None)
        if gone is not None:
            self.by_id.pop(gone.id, None)

    def count(self, number: int, by: int) -> None:
        """Change the number of a subscription's outstanding deliveries."""
        subscription = self._by_number.get(number)
        if subscription is not None:
            subscription.outstanding += by

    def count_each(self, holders: NDArray[np.int32], by: int) -> None:
        """The same for the holders of some places, each named once per place."""
        if not len(holders):
            return
        first = int(holders[0])
        if len(holders) == 1 or (first == int(holders[-1]) and bool((holders == first).all())):
            self.count(first, by * len(holders))
            return
        for number, count in zip(*np.unique(holders, return_counts=True), strict=True):
            self.count(int(number), by * int(count))

    def forget_outstanding(self) -> None:
        """Begin to count anew, at recovery."""
        for subscription in self.by_id.values():
            subscription.outstanding = 0
