"""Proportional shares of many messages, without a look at each message (Q7, C49).

One by one, each message goes to the subscription with the lowest ratio of outstanding deliveries to backlog. That is
like water that fills vessels of different widths: all that are reached stand at one level. So the level tells how many
messages each subscription gets up to shortly below it. Only the last few are dealt out one by one.
"""

from __future__ import annotations

import heapq
from collections.abc import Iterator, Sequence
from typing import NamedTuple


class Vessel(NamedTuple):
    """A subscription to which messages are dealt out.

    Attributes:
        outstanding: its unsettled deliveries, fewer than `backlog`.
        backlog: the most that it may have.
        served: when it was served last, counted in messages that were dealt out; negative = never.
    """

    outstanding: int
    backlog: int
    served: int


class Share(NamedTuple):
    """What a subscription gets of the messages that are dealt out.

    Attributes:
        number: how many; 0 = it gets none.
        first: the order of the first ones: who has a lower number is served before.
        served: when it was served last, in the unit of `Vessel.served`.
    """

    number: int
    first: tuple[float, ...]
    served: int


def shares(count: int, vessels: Sequence[Vessel], dealt: int) -> list[Share]:
    """Return the share of each subscription in `count` messages, as if they were dealt out one by one.

    A tie goes to the subscription that has waited longest, then to the one that comes first.

    Args:
        count: how many messages there are.
        vessels: the subscriptions.
        dealt: how many messages were dealt out before; none of `Vessel.served` is as high.
    """
    below = _below(_level(count, vessels), vessels)
    done = sum(below)
    served = _last_served(below, vessels, dealt)
    first: list[tuple[float, ...]] = [(one.outstanding / one.backlog, one.served, at) for at, one in enumerate(vessels)]
    for _ in deal(count - done, vessels, below, served, dealt + done):
        pass
    return [Share(*one) for one in zip(below, first, served, strict=True)]


def deal(count: int, vessels: Sequence[Vessel], got: list[int], served: list[int], dealt: int) -> Iterator[int]:
    """Deal messages out one by one; yield the index of the subscription that gets each.

    A tie goes to the subscription that has waited longest, then to the one that comes first.

    Args:
        count: how many messages there are. Fewer are dealt out if there is no more room.
        vessels: the subscriptions.
        got: how many each one got before; counted on.
        served: when each one was served last; kept up to date.
        dealt: how many messages were dealt out before.
    """
    heap = [
        ((one.outstanding + before) / one.backlog, served[at], at)
        for at, (one, before) in enumerate(zip(vessels, got, strict=True))
        if one.outstanding + before < one.backlog
    ]
    heapq.heapify(heap)
    for number in range(dealt, dealt + count):
        if not heap:
            break
        at = heap[0][2]
        got[at] += 1
        served[at] = number
        outstanding, backlog = vessels[at].outstanding + got[at], vessels[at].backlog
        if outstanding < backlog:
            heapq.heapreplace(heap, (outstanding / backlog, number, at))
        else:
            heapq.heappop(heap)
        yield at


def _level(count: int, vessels: Sequence[Vessel]) -> float:
    """Return a ratio such that at most `count` messages, and nearly as many, are dealt out below it."""
    backlog = outstanding = 0
    level = 0.0
    count -= len(vessels)  # below a level, a vessel gets up to one more than fits in
    if count <= 0:
        return level
    for one in sorted(vessels, key=lambda one: one.outstanding / one.backlog):
        if backlog and one.outstanding / one.backlog >= level:
            break  # the level does not reach it
        backlog, outstanding = backlog + one.backlog, outstanding + one.outstanding
        level = (count + outstanding) / backlog
    return level


def _below(level: float, vessels: Sequence[Vessel]) -> list[int]:
    """Return how many messages each subscription gets while its ratio is below a level."""
    counts: list[int] = []
    for outstanding, backlog, _ in vessels:
        got = min(max(0, int(level * backlog) - outstanding), backlog - outstanding)
        while got and (outstanding + got - 1) / backlog >= level:
            got -= 1
        while outstanding + got < backlog and (outstanding + got) / backlog < level:
            got += 1
        counts.append(got)
    return counts


def _last_served(counts: Sequence[int], vessels: Sequence[Vessel], dealt: int) -> list[int]:
    """Return when each subscription was served last. Of those that got something, only the order is right.

    The order at equal ratios follows from the messages before. There the smaller backlog had the lower ratio. With
    equal backlogs, who got fewer had not been served yet when both stood at one ratio for the first time.
    """
    served = [one.served for one in vessels]
    order: list[tuple[float, ...]] = []
    for at, (got, (outstanding, backlog, before)) in enumerate(zip(counts, vessels, strict=True)):
        if got:
            ratio = (outstanding + got - 1) / backlog
            order.append((ratio, got > 1, backlog if got > 1 else 0, got, before, at))
    done = dealt + sum(counts) - len(order)
    for number, one in enumerate(sorted(order)):
        served[int(one[-1])] = done + number
    return served
