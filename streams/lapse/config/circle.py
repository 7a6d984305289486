"""Circles: messages that queues hand on until they are back where they were (C28, C38)."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Way:
    """A way that messages leave an entity by.

    Attributes:
        key: the setting that says so.
        topic: where they go.
    """

    key: str
    topic: str


def circles(ways: Mapping[str, Sequence[Way]], readers: Callable[[str], Sequence[str]]) -> Iterator[list[str]]:
    """Yield, for every entity that gets back what it hands on, the shortest way round.

    Args:
        ways: how messages leave, by entity.
        readers: the entities that read a topic.

    Yields:
        the setting by which messages leave first, then the entities passed, the first one at both ends.
    """
    exits = [(start, way) for start, own in ways.items() for way in own]
    for start, first in sorted(exits, key=lambda one: one[1].key):  # letters first: what they are part of is theirs
        found = _back_to(start, first, ways, readers)
        if found is not None:
            yield [first.key, *found]


def _back_to(
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
