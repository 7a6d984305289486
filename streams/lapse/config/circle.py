"""Circles: finds entities whose messages are forwarded, or become letters, until they return to them (C28, C38)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """A way by which messages leave an entity.

    Attributes:
        key: the setting that causes it.
        topic: the topic that the messages go to.
    """

    key: str
    topic: str


def circles(ways: Mapping[str, Sequence[Way]], readers: Callable[[str], Sequence[str]]) -> Iterator[list[str]]:
    """Yield, for every entity that its own messages return to, the shortest circle.

    Args:
        ways: by entity, the ways by which messages leave.
        readers: returns the entities that read a topic.

    Yields:
        The setting by which messages leave first, then the entities on the circle, with the first one at both ends.
    """
    turning = _leading_to_circles(ways, readers)
    exits = [(start, way) for start, own in ways.items() if start in turning for way in own]
    for start, first in sorted(exits, key=lambda one: one[1].key):  # "dead_letter" is tried before "forward_to"
        found = _shortest_way_back(start, first, ways, readers)
        if found is not None:
            yield [first.key, *found]


def _leading_to_circles(ways: Mapping[str, Sequence[Way]], readers: Callable[[str], Sequence[str]]) -> set[str]:
    """Return the entities from which a circle can be reached, by removing dead ends one by one."""
    onward = {name: {reader for way in own for reader in readers(way.topic)} for name, own in ways.items()}
    before: dict[str, list[str]] = {}
    for name, some in onward.items():
        for reader in some:
            before.setdefault(reader, []).append(name)
    ends = [name for name, some in onward.items() if not some]
    left = set(onward) - set(ends)
    while ends:
        end = ends.pop()
        for name in before.get(end, ()):
            onward[name].discard(end)
            if name in left and not onward[name]:
                left.discard(name)
                ends.append(name)
    return left


def _shortest_way_back(
    start: str, first: Way, ways: Mapping[str, Sequence[Way]], readers: Callable[[str], Sequence[str]]
) -> list[str] | None:
    seen: set[str] = set()
    heads = [([start], first)]
    while heads:
        further: list[tuple[list[str], Way]] = []
        for passed, way in heads:
            for reader in readers(way.topic):
                if reader == start:
                    return [*passed, start]
                if reader not in seen:
                    seen.add(reader)
                    further += (([*passed, reader], onward) for onward in ways[reader])
        heads = further
    return None
