"""Assigns shards to workers: all get equally many, and keep their own as far as possible.

Faust assigns all topics with the same number of partitions together: partition 0 of each of them to one worker. A
thousand queues with one partition each would all be at one worker, however many workers there are. This module keeps
together only what must be read together: the topics of one entity, and of entities with a common topic.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Final, NamedTuple, Protocol

from faust.types import TP


class Assignment(Protocol):
    """The partitions that a member of the group shall read."""

    @property
    def actives(self) -> dict[str, list[int]]:
        """Partitions by topic."""


class TopicGroup(NamedTuple):
    """Entities that are assigned together.

    Attributes:
        topics: all their topics, sorted.
        entities: the number of entities, and so the number of shards of each partition.
    """

    topics: tuple[str, ...]
    entities: int


Shard = tuple[TopicGroup, int]
"""A partition of entities that are assigned together."""

_ROUNDS: Final = 8
"""The most rounds. Each round mends what the last one left uneven; from the second or third on nothing changes."""


class _Unit(NamedTuple):
    """Entities that are assigned together, the members that can have them, and by partition the topics to read."""

    group: TopicGroup
    members: list[str]
    partitions: dict[int, list[str]]


def spread(assignments: Mapping[str, Assignment], owned: Mapping[str, set[TP]], entities: Iterable[set[str]]) -> None:
    """Give every member its share of each entity, and of all shards.

    Args:
        assignments: by member, as Faust made them; changed in place. Topics of no entity stay as they are.
        owned: the partitions of each current member.
        entities: the topics of each entity.
    """
    subscribed = {topic for one in assignments.values() for topic in one.actives}
    groups = _topic_groups(topics & subscribed for topics in entities)
    found = [_Unit(one, *_readers(one, some, assignments)) for one, some in groups]
    units = [one for one in found if one.members and one.partitions]
    units.sort(key=lambda one: (-len(one.partitions), one.group))  # single partitions last: they fit anywhere
    had = {tp: member for member, tps in sorted(owned.items(), reverse=True) for tp in tps}
    shares: dict[Shard, str] = {}
    for unit in units:
        for partition in unit.partitions:
            tps = (TP(topic, partition) for topic in unit.group.topics)
            shares[unit.group, partition] = next((had[tp] for tp in tps if tp in had), "")
    for _ in range(_ROUNDS):
        before, shares = shares, _round(units, shares, list(assignments))
        if shares == before:
            break
    for unit in units:
        for member in unit.members:
            for topic in unit.group.topics:
                assignments[member].actives[topic] = []
    for unit in units:
        for partition, topics in unit.partitions.items():
            for topic in topics:
                assignments[shares[unit.group, partition]].actives[topic].append(partition)


def _round(units: Sequence[_Unit], had: Mapping[Shard, str], everybody: Sequence[str]) -> dict[Shard, str]:
    """Return the owner of each shard: members keep shards within their shares, those with the fewest get the others."""
    shares = _Shares(everybody, sum(unit.group.entities * len(unit.partitions) for unit in units))
    given: dict[Shard, str] = {}
    for unit in units:
        shares.begin(len(unit.partitions), len(unit.members))
        for partition in unit.partitions:
            owner = had[unit.group, partition]
            keeps = owner in unit.members and shares.may_keep(owner, unit.group.entities)
            given[unit.group, partition] = owner if keeps else ""
    for unit in units:
        of_it = Counter(given[unit.group, partition] for partition in unit.partitions)
        for partition in unit.partitions:
            shard = unit.group, partition
            if not given[shard]:
                owner = had[shard]
                member = min(unit.members, key=lambda one: (of_it[one], shares.load[one], one != owner, one))
                of_it[member] += 1
                shares.load[member] += unit.group.entities
                given[shard] = member
    return given


class _Shares:
    """How much each member may keep, and what it has so far."""

    def __init__(self, members: Sequence[str], shards: int) -> None:
        self.load: Final = dict.fromkeys(members, 0)
        self._base, self._more = divmod(shards, max(1, len(members)))
        self._has_more: set[str] = set()
        self._of_it: Counter[str] = Counter()
        self._base_of_it = self._more_of_it = 0

    def begin(self, partitions: int, members: int) -> None:
        """Begin with the partitions of the next entities."""
        self._of_it.clear()
        self._base_of_it, self._more_of_it = divmod(partitions, members)

    def may_keep(self, member: str, shards: int) -> bool:
        """Return whether a member may keep shards, without leaving another member less than its share."""
        is_more_of_it = self._of_it[member] == self._base_of_it
        if self._of_it[member] > self._base_of_it or (is_more_of_it and not self._more_of_it):
            return False
        beyond = self.load[member] + shards > self._base
        if beyond and member not in self._has_more:
            if not self._more or self.load[member] >= self._base + 1:
                return False
            self._has_more.add(member)
            self._more -= 1
        elif beyond and self.load[member] >= self._base + 1:
            return False
        self._more_of_it -= is_more_of_it
        self._of_it[member] += 1
        self.load[member] += shards
        return True


def _topic_groups(entities: Iterable[set[str]]) -> list[tuple[TopicGroup, list[set[str]]]]:
    """Return groups of entities, those with a topic in common joined, and the topics of each of these.

    Args:
        entities: the topics of each entity that somebody reads.
    """
    at: dict[str, int] = {}
    groups: dict[int, tuple[set[str], list[set[str]]]] = {}
    for number, topics in enumerate(entities):
        mine, each = set(topics), [topics]
        for other in {at[topic] for topic in mine if topic in at}:
            more, others = groups.pop(other)
            mine |= more
            each += others
        if mine:
            groups[number] = mine, each
            at.update(dict.fromkeys(mine, number))
    return sorted((TopicGroup(tuple(sorted(topics)), len(each)), each) for topics, each in groups.values())


def _readers(
    group: TopicGroup, entities: Iterable[set[str]], assignments: Mapping[str, Assignment]
) -> tuple[list[str], dict[int, list[str]]]:
    """Return the members that read all of the topics, and by partition the topics to read."""
    members = [member for member, one in assignments.items() if all(topic in one.actives for topic in group.topics)]
    partitions = {
        topic: sorted(one for member in members for one in assignments[member].actives[topic]) for topic in group.topics
    }
    # Faust may know one topic before another, and its choice then holds until the next look. If one topic of an entity
    # has more partitions than another (C81), nobody reads these for it yet. Other entities may have them already.
    found: dict[int, set[str]] = {}
    for topics in entities:
        for partition in set.intersection(*(set(partitions[topic]) for topic in topics)):
            found.setdefault(partition, set()).update(topics)
    return (sorted(members), {one: sorted(found[one]) for one in sorted(found)}) if found else ([], {})
