"""Growth: notes on the number of shards in a shard's journal, so that a queue can get more shards (C81).

A shard that was there before notes how far it had read each partition, and which messages it had, when it first ran
beside the new ones. It reads the partitions of the new shards no longer. A new shard reads nothing before every older
one has noted that, and has settled what it had by then: so no message is with two shards or with none, and the messages
of a key that moved keep their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Growth:
    """What the journal of one shard says.

    Attributes:
        shards: how many shards there were when it was written.
        created: whether the queue was created with so many; only the first shard is asked.
        read: how far the shard had read each underlying partition, as `topic:partition`, when it first ran beside so
            many shards: the offset of the next record.
        until: messages in places before this one hold the new shards back; None = they have left.
        waits: whether the shard reads nothing yet.
        grown: whether the shard was there when there were fewer.
    """

    shards: int
    created: bool = False
    read: Mapping[str, int] = field(default_factory=dict)
    until: int | None = None
    waits: bool = False
    grown: bool = False

    def encode(self) -> bytes:
        """As the journal holds it."""
        facts: dict[str, Any] = {"shards": self.shards}
        facts |= {"created": True} if self.created else {}
        facts |= {"read": dict(self.read)} if self.read else {}
        facts |= {"until": self.until} if self.until is not None else {}
        facts |= {"waits": True} if self.waits else {}
        facts |= {"grown": True} if self.grown else {}
        return json.dumps(facts).encode()

    @classmethod
    def decode(cls, value: bytes) -> Growth:
        """Read what a journal holds."""
        return cls(**json.loads(value))


def born(shard: int, shards: int) -> Growth:
    """What a journal begins with: a shard behind the first one asks the others before it reads anything."""
    return Growth(shards, created=shard == 0, waits=shard > 0)


def taken_over(
    before: Growth | None, shards: int, read: Mapping[str, int], first_held: int | None, next_place: int
) -> Growth:
    """What a shard notes when it is taken over; the same as before if nothing has changed.

    Args:
        before: what its journal says; None = nothing yet.
        shards: how many there are now.
        read: how far it has read each underlying partition.
        first_held: the place of its first message; None = it has none.
        next_place: the place of the next message that arrives.
    """
    if before is None and shards == 1:
        before = Growth(1)  # nobody asks it, so nothing has to be written
    if before is None or before.shards != shards:
        known, waits = ({}, False) if before is None else (before.read, before.waits)
        before = Growth(shards, read={**known, **read}, until=next_place, waits=waits, grown=True)
    if before.until is not None and (first_held is None or first_held >= before.until):
        return replace(before, until=None)
    return before


def begins(shards: int, older: Iterable[Growth | None], places: Iterable[str]) -> dict[str, int] | None:
    """Where a new shard begins to read.

    Args:
        shards: how many there are now.
        older: what the shards with lower numbers have noted, as far as their journals hold anything at all; None = one
            has noted nothing yet.
        places: the partitions of the new shard, as `topic:partition`.

    Returns:
        The offset of the next record of partitions that were added; empty where all shards are new, and None where it
        has to wait.
    """
    found: dict[str, int] = {}
    wanted = list(places)
    for one in older:
        if one is None or one.shards != shards or one.until is not None:
            return None
        if one.grown:  # what nobody has read yet is read from its beginning
            found.update({place: max(found.get(place, 0), one.read.get(place, 0)) for place in wanted})
    return found
