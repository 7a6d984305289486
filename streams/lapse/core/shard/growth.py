"""Growth: notes in a shard's journal with which a queue can get more shards (C81).

When an older shard first runs beside new ones, it notes its read position in each partition, and the messages that it
has. It no longer reads the partitions of the new shards. A new shard reads nothing until every older shard has written
this note and settled those messages. So no message is in two shards or in none, and the messages of a key that moved
keep their order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any


@dataclass(frozen=True, slots=True)
class Growth:
    """The note in the journal of one shard.

    Attributes:
        shards: number of shards when the note was written.
        created: whether the queue was created with this number; only the first shard's value counts.
        read: by `topic:partition`, the offset of the next record to read when the shard first ran beside this number of
            shards.
        until: messages in places before this one hold back the new shards; None = they have left.
        waits: whether the shard still waits for older shards before it reads.
        grown: whether the shard existed when there were fewer.
        first: by `topic:partition`, the offset from which the shard has read, if older shards have read what is before;
            empty also if `begun` follows from the rest.
        topics: by name, the ids of the topics to which these offsets belong, as far as known (C42).
    """

    shards: int
    created: bool = False
    read: Mapping[str, int] = field(default_factory=dict)
    until: int | None = None
    waits: bool = False
    grown: bool = False
    first: Mapping[str, int] = field(default_factory=dict)
    topics: Mapping[str, str] = field(default_factory=dict)

    @property
    def begun(self) -> Mapping[str, int]:
        """By `topic:partition`, the offset from which the shard has read what older shards have read before (C62)."""
        return self.first if self.first or self.grown else self.read

    def knows(self, source_key: str, topics: Mapping[str, str]) -> bool:
        """Return whether an offset is one of the present topic, and not of one that was deleted since (C42).

        Args:
            source_key: the partition, as `topic:partition`.
            topics: the present ids of topics.
        """
        name = source_key.rpartition(":")[0]
        return self.topics.get(name, "") in ("", topics.get(name, ""))

    def encode(self) -> bytes:
        """Return the journal's bytes."""
        facts: dict[str, Any] = {"shards": self.shards}
        facts |= {"created": True} if self.created else {}
        facts |= {"read": dict(self.read)} if self.read else {}
        facts |= {"until": self.until} if self.until is not None else {}
        facts |= {"waits": True} if self.waits else {}
        facts |= {"grown": True} if self.grown else {}
        facts |= {"first": dict(self.first)} if self.first else {}
        facts |= {"topics": dict(self.topics)} if self.topics else {}
        return json.dumps(facts).encode()

    @classmethod
    def decode(cls, value: bytes) -> Growth:
        """Read the journal's bytes."""
        return cls(**json.loads(value))


def new_shard_note(shard: int, shards: int) -> Growth:
    """Return the note of a new shard. All but the first shard wait for the others before they read."""
    return Growth(shards, created=shard == 0, waits=shard > 0)


def adopted_shard_note(
    before: Growth | None,
    shards: int,
    read: Mapping[str, int],
    topics: Mapping[str, str],
    first_occupied: int | None,
    next_place: int,
) -> Growth:
    """Return the note of a shard that is taken over; `before` if nothing has changed.

    Args:
        before: the journaled note; None = none yet.
        shards: number of shards now.
        read: by `topic:partition`, the offset of the next record to read.
        topics: the ids of the topics to which these offsets belong.
        first_occupied: place of its first message; None = it has none.
        next_place: the place that the next message gets.
    """
    if before is None and shards == 1:
        before = Growth(1)  # no other shard reads this note, so it is not written
    if before is None or before.shards != shards:
        old = Growth(shards) if before is None else before
        known, first = (
            {source_key: offset for source_key, offset in of.items() if old.knows(source_key, {**old.topics, **topics})}
            for of in (old.read, old.begun)
        )
        before = Growth(
            shards,
            read={**known, **read},
            until=next_place,
            waits=before is not None and before.waits,
            grown=True,
            first=first,
            topics={**old.topics, **topics},
        )
    if before.until is not None and (first_occupied is None or first_occupied >= before.until):
        return replace(before, until=None)
    return before


def first_offsets(
    shards: int, older: Iterable[Growth | None], source_keys: Iterable[str], topics: Mapping[str, str]
) -> dict[str, int] | None:
    """Return the offsets at which a new shard begins to read.

    Args:
        shards: number of shards now.
        older: the notes of the shards with lower numbers whose journals are not empty; None = no note yet.
        source_keys: the partitions of the new shard, as `topic:partition`.
        topics: the present ids of topics. One that was created anew is read from its beginning (C42).

    Returns:
        The offset of the next record of each partition that was added; empty if all shards are new. None if it must
        wait for the older shards first.
    """
    found: dict[str, int] = {}
    wanted = list(source_keys)
    for one in older:
        if one is None or one.shards != shards or one.until is not None:
            return None
        if one.grown:  # a partition that no older shard has read is read from its beginning
            read = {
                source_key: one.read.get(source_key, 0) if one.knows(source_key, topics) else 0 for source_key in wanted
            }
            found.update({source_key: max(found.get(source_key, 0), offset) for source_key, offset in read.items()})
    return found
