"""Fairness: which subscription gets the next message (Q7, C49)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from lapse.core.queue.delivery import proportion
from lapse.core.queue.delivery.proportion import Share, Vessel
from lapse.core.queue.modes import Fairness
from lapse.core.queue.segments.segment import NOBODY
from lapse.core.queue.subscriptions.subscription import Subscription

Shares = list[tuple[Subscription, Sequence[int] | NDArray[np.int64]]]
"""Each subscription with the ascending positions that it gets in a sequence of messages."""

_FAST: Final = Fairness.FAST  # a look-up in the enumeration takes five times as long
_ROUND_ROBIN: Final = Fairness.ROUND_ROBIN

_FORGOTTEN: Final = 64
"""The greatest number of ended subscriptions that are remembered."""

_MANY: Final = 64
"""From this number on, messages are dealt out in blocks. Fewer are spread, so that no subscription waits long."""

_BLOCK: Final = 256
_LEAST_ROUNDS: Final = 4
"""A block holds at most `_BLOCK` messages and at most a quarter of a subscription's share."""


class Turns:
    """Assigns messages to subscriptions, and remembers the order in which these were served.

    Round-robin continues after the subscription that was served last. `proportional` breaks ties in favour of the
    subscription that has waited longest. A returned message goes to its last holder only if no other takes it.

    Args:
        fairness: the queue's fairness.
    """

    def __init__(self, fairness: Fairness) -> None:
        self._fairness = fairness
        self._last = -1
        self._served: dict[int, int] = {}
        self._dealt = 0

    def allot(self, count: int, subscriptions: Sequence[Subscription], last: Sequence[int] | None = None) -> Shares:
        """Assign `count` messages in order, as far as the subscriptions have space.

        Args:
            count: how many messages are deliverable.
            subscriptions: the subscriptions in the order of the shard's table.
            last: number of each message's last holder, `NOBODY` without one; None = no message has one.
        """
        open_ones = [one for one in subscriptions if one.outstanding < one.max_backlog]
        if not open_ones or not count:
            return []
        if len(open_ones) == 1:
            only = open_ones[0]
            self.note_served(only)
            return [(only, range(min(count, only.max_backlog - only.outstanding)))]
        if count == 1:
            return [(self.pick(open_ones, None, NOBODY if last is None else last[0]), (0,))]
        if last is not None and not {one.number for one in open_ones}.isdisjoint(last):
            return self._allot_singly(count, open_ones, last)
        if self._fairness is _FAST:
            return _fast(count, open_ones)
        if self._fairness is _ROUND_ROBIN:
            return self._round_robin(count, open_ones)
        return self._proportional(count, open_ones)

    def forget_ended(self, subscriptions: Sequence[Subscription]) -> None:
        """Forget when subscriptions were served that are not among these, if they are many."""
        if len(self._served) > len(subscriptions) + _FORGOTTEN:
            self._served = {one.number: self._served[one.number] for one in subscriptions if one.number in self._served}

    def pick(
        self, fitting: Sequence[Subscription], outstanding: Mapping[int, int] | None, last: int = NOBODY
    ) -> Subscription:
        """Choose the subscription that gets one message.

        Args:
            fitting: the subscriptions that match and have space, at least one, in the order of the shard's table.
            outstanding: unsettled deliveries of each subscription, by its number; None = as the subscriptions say.
            last: number of the message's last holder.
        """
        others = fitting
        if last != NOBODY and len(fitting) > 1:
            others = [one for one in fitting if one.number != last]
        if self._fairness is _FAST or len(others) == 1:
            chosen = others[0]
        elif self._fairness is _ROUND_ROBIN:
            chosen = min(others, key=lambda one: (one.number <= self._last, one.number))
        else:
            chosen = self._least_filled(others, outstanding)
        self.note_served(chosen)
        return chosen

    def _least_filled(self, some: Sequence[Subscription], outstanding: Mapping[int, int] | None) -> Subscription:
        """Return the subscription with the lowest ratio of deliveries to backlog. A tie goes to the longest waiting."""
        chosen, lowest, longest = some[0], float("inf"), 0
        for one in some:
            filled = (one.outstanding if outstanding is None else outstanding[one.number]) / one.max_backlog
            if filled <= lowest:
                served = self._served.get(one.number, -1)
                if filled < lowest or served < longest:
                    chosen, lowest, longest = one, filled, served
        return chosen

    def note_served(self, subscription: Subscription) -> None:
        """Note that a subscription gets messages now."""
        self._last = subscription.number
        self._served[subscription.number] = self._dealt
        self._dealt += 1

    def _allot_singly(self, count: int, subscriptions: Sequence[Subscription], last: Sequence[int]) -> Shares:
        """Assign each message separately, because some have a last holder."""
        outstanding = {one.number: one.outstanding for one in subscriptions}
        shares: dict[int, list[int]] = {one.number: [] for one in subscriptions}
        waiting = list(subscriptions)
        for position in range(count):
            if not waiting:
                break
            chosen = self.pick(waiting, outstanding, last[position])
            shares[chosen.number].append(position)
            outstanding[chosen.number] += 1
            if outstanding[chosen.number] >= chosen.max_backlog:
                waiting.remove(chosen)
        return [(one, shares[one.number]) for one in subscriptions if shares[one.number]]

    def _round_robin(self, count: int, subscriptions: Sequence[Subscription]) -> Shares:
        """Assign each message to the next subscription with space, in the order of their numbers."""
        turn = self._last
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
                self._last = number
                dealt += 1
            waiting = [number for number in waiting if space[number]]
        return [(subscription, shares[subscription.number]) for subscription in ring if shares[subscription.number]]

    def _proportional(self, count: int, subscriptions: Sequence[Subscription]) -> Shares:
        """Assign each message to the subscription with the lowest ratio of outstanding deliveries to backlog.

        A tie goes to the subscription that has waited longest.
        """
        served = self._served
        vessels = [Vessel(one.outstanding, one.max_backlog, served.get(one.number, -1)) for one in subscriptions]
        if count >= _MANY and sum(one.space for one in subscriptions) >= _MANY:
            return self._in_proportion(count, subscriptions, vessels)
        positions: list[list[int]] = [[] for _ in subscriptions]
        last = [one.served for one in vessels]
        for position, at in enumerate(proportion.deal(count, vessels, [0] * len(vessels), last, self._dealt)):
            positions[at].append(position)
        self._dealt += count
        shares: Shares = []
        for subscription, some, number in zip(subscriptions, positions, last, strict=True):
            if some:
                served[subscription.number] = number
                shares.append((subscription, some))
        return shares

    def _in_proportion(self, count: int, subscriptions: Sequence[Subscription], vessels: Sequence[Vessel]) -> Shares:
        """Do the same with many messages, but assign them in blocks."""
        shares = proportion.shares(count, vessels, self._dealt)
        self._dealt += count
        sharing = [(one, share) for one, share in zip(subscriptions, shares, strict=True) if share.number]
        for subscription, share in sharing:
            self._served[subscription.number] = share.served
        blocks = in_blocks([share for _, share in sharing])
        return [(subscription, block) for (subscription, _), block in zip(sharing, blocks, strict=True)]


def in_blocks(shares: Sequence[Share]) -> list[NDArray[np.int64]]:
    """Return the ascending positions of each share, in blocks of consecutive ones.

    Otherwise each message would be a run of its own in the journal, in deliveries and in settlements.
    """
    counts = [share.number for share in shares]
    rounds = max(_LEAST_ROUNDS, -(-max(counts) // _BLOCK))
    blocks: list[list[NDArray[np.int64]]] = [[] for _ in shares]
    in_turn = sorted(range(len(shares)), key=lambda one: shares[one].first)
    dealt = 0
    for number in range(rounds):
        for one in in_turn:
            size = counts[one] * (number + 1) // rounds - counts[one] * number // rounds
            blocks[one].append(np.arange(dealt, dealt + size))
            dealt += size
    return [np.concatenate(some) for some in blocks]


def _fast(count: int, subscriptions: Sequence[Subscription]) -> Shares:
    """Assign messages to the first subscription until its backlog is full, then to the next."""
    shares: Shares = []
    dealt = 0
    for subscription in subscriptions:
        share = min(subscription.space, count - dealt)
        if not share:
            break
        shares.append((subscription, range(dealt, dealt + share)))
        dealt += share
    return shares
