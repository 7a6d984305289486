"""The turn among waiting groups: each gets messages in proportion to its weight, whatever its backlog (Q25, C71).

This is start-time fair queueing. The group with the lowest tag is next, and each message adds its cost to the group's
tag. The shard's own tag is that of the group that was served last. A group with a lower tag is raised to it, so a
group that was absent or held back accumulates no credit.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Final

from lapse.core.queue.arrival.trait import group_hash

COST: Final = 720_720_000
"""The cost of a message of a group with weight 1. Every weight up to 16 divides it."""

_LEAST_PRUNED: Final = 64


class GroupTurn:
    """Computes the tags of the groups.

    Tags are not part of the state. After a take-over all groups start with equal tags.

    Args:
        weights: weight by group value as text. The text also means the number or boolean that it is in JSON. All other
            groups have weight 1.

    Attributes:
        now: the shard's own tag.
        costs: what a message adds to the tag of its group, by group. For all others it is `COST`.
        ends: the next tag of each group, without some that have passed.
    """

    __slots__ = ("_prune_at", "costs", "ends", "now")

    def __init__(self, weights: Mapping[str, int]) -> None:
        self.costs = {group: max(1, COST // weight) for text, weight in weights.items() for group in _groups(text)}
        self.now = 0
        self.ends: dict[int, int] = {}
        self._prune_at = _LEAST_PRUNED

    def start_tag(self, group: int) -> int:
        """Return the tag with which a group would be served now."""
        end = self.ends.get(group, 0)
        return max(self.now, end)

    def serve(self, group: int, start: int) -> int:
        """Note that a message of a group is handed out at tag `start`. Return the group's next tag."""
        self.now = start
        end = start + self.cost(group)
        self.note_end(group, end)
        return end

    def cost(self, group: int) -> int:
        """Return what a message adds to the tag of its group."""
        return self.costs.get(group, COST)

    def note_end(self, group: int, end: int) -> None:
        """Note the next tag of a group whose messages are handed out."""
        self.ends[group] = end
        if len(self.ends) > self._prune_at:
            self.ends = {one: end for one, end in self.ends.items() if end > self.now}
            self._prune_at = max(_LEAST_PRUNED, 2 * len(self.ends))


def _groups(text: str) -> Iterator[int]:
    """Yield the groups that a key of `group_weight` means."""
    yield group_hash(text)
    try:
        value = json.loads(text)
    except ValueError:
        return
    if isinstance(value, int | float):  # a bool is an int, too
        yield group_hash(value)
