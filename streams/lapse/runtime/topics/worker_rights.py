"""The operations on topics for which a worker needs rights, by the purposes of the topics (docs/operations.md)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from lapse.runtime.topics.wanted import Role, Wanted

READ: Final = "Read"
WRITE: Final = "Write"
DESCRIBE: Final = "Describe"
"""Without this right a topic looks as if it were missing."""

_REQUIRED: Final[Mapping[Role, tuple[str, ...]]] = {
    Role.UNDERLYING: (READ,),
    Role.COMMANDS: (READ, WRITE),
    Role.CHANGELOG: (READ, WRITE),
    Role.DELIVERIES: (WRITE,),
    Role.EVENTS: (WRITE,),
    Role.SOW: (WRITE,),
    Role.DEAD_LETTERS: (WRITE,),
    Role.FORWARDED: (WRITE,),
}
"""The operations without which a worker cannot serve an entity."""

_AFTER_CRASHES: Final[Mapping[Role, str]] = {
    Role.DELIVERIES: "after a crash a worker cannot tell which deliveries were written, and their messages stay leased "
    "until their leases end",
    Role.FORWARDED: "after a crash a worker cannot tell which messages were forwarded, and writes some once more",
}
"""Topics of queues that a worker reads only after a crash: what happens if it may not."""


def operations(topics: Iterable[tuple[Wanted, bool]]) -> dict[str, tuple[str, ...]]:
    """Return the operations for which a worker needs rights, by topic, for all of its purposes together.

    Args:
        topics: the purposes of topics, each with whether its entity is a queue.
    """
    found: dict[str, tuple[str, ...]] = {}
    for one, of_queue in topics:
        needed = {*found.get(one.name, ()), *_REQUIRED.get(one.role, ())}
        needed |= {READ} if of_queue and one.role in _AFTER_CRASHES else set()
        found[one.name] = tuple(sorted(needed))
    return found


def bars(topic: Wanted, lacking: Iterable[str]) -> bool:
    """Return whether an entity cannot be served if a worker lacks rights to some operations on one of its topics."""
    return not {DESCRIBE, *_REQUIRED.get(topic.role, ())}.isdisjoint(lacking)


def consequence(topic: Wanted, lacking: Iterable[str]) -> str:
    """Return what happens without rights that an entity can do without; empty = nothing."""
    return _AFTER_CRASHES.get(topic.role, "") if READ in lacking else ""
