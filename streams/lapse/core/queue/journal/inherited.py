"""What a new shard takes over from an older one that read its partitions before: facts of unread messages (C81).

The older shard has them in its journal, and has no use for them, because it does not read these partitions any more.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from lapse.core.queue.journal.journal_record import KEY, NAMED_KEY, is_paused, sequence_of, sources_of
from lapse.core.queue.state import QueueState
from lapse.core.repeats import Chunk, chunk_of

KINDS = (b"d", b"a", b"i")
"""The kinds of record that are needed: steps, acknowledgments in advance, and ids of messages."""

SourceKey = tuple[str, int]
"""Topic and partition."""


@dataclass(slots=True)
class Inherited:
    """The facts about some partitions.

    Attributes:
        paused: whether the older shard is paused (C21).
        remembered: by partition, offsets of messages that were acknowledged before they became active (Q13).
        chunks: by partition, the ids of messages that it has seen within the window (X6).
    """

    paused: bool = False
    remembered: dict[SourceKey, set[int]] = field(default_factory=dict)
    chunks: dict[SourceKey, list[Chunk]] = field(default_factory=dict)


def inherited(items: Iterable[tuple[bytes, bytes]], begun: Mapping[SourceKey, int]) -> Inherited:
    """Return the facts in an older shard's journal about partitions that a new shard reads on.

    Args:
        items: its records, in any order; only those of `KINDS` count.
        begun: by partition, the offset of the first record that the new shard reads.
    """
    by_kind: dict[bytes, list[tuple[bytes, bytes]]] = {kind: [] for kind in KINDS}
    for key, value in items:
        if key[:1] in by_kind:
            by_kind[key[:1]].append((key, value))
    found = Inherited()
    steps = by_kind[b"d"]
    if not steps:
        return found
    epoch = max(key[1:9] for key, _ in steps)
    # An interrupted take-over leaves records of two epochs: see `restored`.
    last = max((value for key, value in steps if key[1:9] == epoch), key=sequence_of)
    found.paused = is_paused(last)
    sources = [(one.topic, one.partition) for one in sources_of(last)]
    for key, _ in by_kind[b"a"]:
        _, _, source, offset = NAMED_KEY.unpack(key)
        if key[1:9] >= epoch and offset >= begun.get(sources[source], offset + 1):
            found.remembered.setdefault(sources[source], set()).add(offset)
    for key, value in sorted(by_kind[b"i"], key=lambda item: KEY.unpack(item[0])[2]):
        chunk = chunk_of(*json.loads(value))
        if key[1:9] >= epoch and sources[chunk.source] in begun:
            found.chunks.setdefault(sources[chunk.source], []).append(chunk)
    return found


def inherit(state: QueueState, found: Inherited) -> None:
    """Add facts to the state of a new shard, before its first epoch in which it reads begins."""
    state.paused |= found.paused
    for (topic, partition), offsets in found.remembered.items():
        number = state.sources.number(topic, partition)
        state.remembered.update((number, offset) for offset in offsets)
    for (topic, partition), chunks in found.chunks.items():
        number = state.sources.number(topic, partition)
        for chunk in chunks:
            state.repeats.add(state.repeats.next_number, chunk._replace(source=number))
