"""The turn among groups that wait: each gets messages in proportion to its weight, whatever its backlog (Q25, C71).

Start-time fair queueing: a group that is served starts at its tag and ends one message's cost later, which is its next
tag. The group with the lowest tag is next. The shard's own tag is that of the group that was served last. A group with
a lower one starts there: who was away, or was held back, has no credit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from lapse.core.queue.arrival.trait import group_of

COST: Final = 720_720_000
"""What a message of a group of weight 1 costs. Every weight up to 16 divides it."""

_LEAST_PRUNED: Final = 64


class GroupTurn:
    """Knows which tag each group starts at.

    It is not part of the state: after a take-over all groups begin alike.

    Args:
        weights: of groups by their value as text, which also stands for the number or truth value that it is in JSON;
            that of all others is 1.
    """

    __slots__ = ("_costs", "_ends", "_now", "_prune_at")

    def __init__(self, weights: Mapping[str, int]) -> None:
        self._costs = {group: max(1, COST // weight) for text, weight in weights.items() for group in _groups(text)}
        self._now = 0
        self._ends: dict[int, int] = {}
        self._prune_at = _LEAST_PRUNED

    def start(self, group: int) -> int:
        """The tag at which a group would be served now."""
        end = self._ends.get(group, 0)
        return max(self._now, end)

    def serve(self, group: int, start: int) -> int:
        """Note that a message of a group is handed out, with the tag at which it starts; returns its next tag."""
        self._now = start
        self._ends[group] = end = start + self._costs.get(group, COST)
        if len(self._ends) > self._prune_at:
            self._ends = {one: end for one, end in self._ends.items() if end > self._now}
            self._prune_at = max(_LEAST_PRUNED, 2 * len(self._ends))
        return end


def _groups(text: str) -> Iterator[int]:
    """The groups that a text of `group_weight` means."""
    yield group_of(text)
    try:
        value = json.loads(text)
    except ValueError:
        return
    if isinstance(value, int | float):  # a truth value is an int, too
        yield group_of(value)
