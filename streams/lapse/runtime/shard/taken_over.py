"""What a take-over has found: where a shard's logs stand, and what the owner before has left undone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.shard.gap import Gap
from lapse.runtime.topics.topic_id import KnownTopics
from lapse.runtime.tp import TP

Unwritten = Callable[[int], Awaitable[Sequence[Output | Packed]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """What a runner begins with.

    Attributes:
        positions: next offset per source partition, as the journal says.
        catch_up: offset behind the commands that were in the log; they are read before any delivery.
        topics: which topics the positions are about.
        merge_until: where the underlying partitions of a shard in one order ended.
        floors: for each deliveries topic, an offset below all records of this epoch.
        unwritten: deliveries that the previous owner journaled but did not write, as of an instant (C55).
        gaps: ranges that Kafka has removed and nobody has read (C80).
    """

    positions: dict[TP, int]
    catch_up: int
    topics: KnownTopics
    merge_until: dict[TP, int] | None = None
    floors: Mapping[str, int] = field(default_factory=dict)
    unwritten: Unwritten | None = None
    gaps: Iterable[Gap] = ()
