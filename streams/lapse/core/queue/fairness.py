"""Fairness: which subscription gets the next message (Q7)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

from lapse.core.queue.settings import Fairness
from lapse.core.queue.subscription import Subscription

Shares = list[tuple[Subscription, list[int]]]
"""To each subscription the positions, in the sequence of messages, that it gets; ascending."""


def allot(fairness: Fairness, count: int, subscriptions: Sequence[Subscription], turn: int) -> tuple[Shares, int]:
    """Deal out `count` messages, in order, as far as there is space.

    Args:
        fairness: the queue's rule.
        count: how many messages are deliverable.
        subscriptions: in the order in which they are found.
        turn: round-robin: number of the subscription that was served last.

    Returns:
        The shares, and the number of the subscription that was served last.
    """
    open_ones = [subscription for subscription in subscriptions if subscription.space]
    if not open_ones or not count:
        return [], turn
    if len(open_ones) == 1:
        only = open_ones[0]
        return [(only, list(range(min(count, only.space))))], only.number
    if fairness is Fairness.FAST:
        return _fast(count, open_ones, turn)
    if fairness is Fairness.ROUND_ROBIN:
        return _round_robin(count, open_ones, turn)
    return _proportional(count, open_ones, turn)


def _fast(count: int, subscriptions: Sequence[Subscription], turn: int) -> tuple[Shares, int]:
    """The first subscription found that has space."""
    shares: Shares = []
    dealt = 0
    for subscription in subscriptions:
        share = min(subscription.space, count - dealt)
        if not share:
            break
        shares.append((subscription, list(range(dealt, dealt + share))))
        dealt += share
    return shares, turn


def _round_robin(count: int, subscriptions: Sequence[Subscription], turn: int) -> tuple[Shares, int]:
    """The next subscription, in the order of their numbers, that has space."""
    ring = sorted(subscriptions, key=lambda subscription: (subscription.number <= turn, subscription.number))
    space = {subscription.number: subscription.space for subscription in ring}
    shares: dict[int, list[int]] = {subscription.number: [] for subscription in ring}
    dealt = 0
    waiting = [subscription.number for subscription in ring]
    while dealt < count and waiting:
        for number in waiting:
            if dealt == count:
                break
            shares[number].append(dealt)
            space[number] -= 1
            turn = number
            dealt += 1
        waiting = [number for number in waiting if space[number]]
    return [(subscription, shares[subscription.number]) for subscription in ring if shares[subscription.number]], turn


def _proportional(count: int, subscriptions: Sequence[Subscription], turn: int) -> tuple[Shares, int]:
    """The subscription with the lowest ratio of outstanding to backlog; ties to the first found."""
    heap = [
        (subscription.outstanding / subscription.max_backlog, found, subscription.outstanding)
        for found, subscription in enumerate(subscriptions)
    ]
    heapq.heapify(heap)
    shares: list[list[int]] = [[] for _ in subscriptions]
    for position in range(count):
        if not heap:
            break
        _, found, outstanding = heap[0]
        shares[found].append(position)
        outstanding += 1
        backlog = subscriptions[found].max_backlog
        if outstanding < backlog:
            heapq.heapreplace(heap, (outstanding / backlog, found, outstanding))
        else:
            heapq.heappop(heap)
    return [(subscription, share) for subscription, share in zip(subscriptions, shares, strict=True) if share], turn
