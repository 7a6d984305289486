"""The result of a take-over: where a shard's logs stand, and what the previous owner left undone."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from lapse.runtime.kafka.output import Output, Packed
from lapse.runtime.shard.unread_ranges import Gap
from lapse.runtime.topics.topic_id import KnownTopics
from lapse.runtime.tp import TP

Unwritten = Callable[[int], Awaitable[Sequence[tuple[Output | Packed, int]]]]


@dataclass(frozen=True, slots=True, kw_only=True)
class TakenOver:
    """The facts with which a runner begins.

    Attributes:
        positions: next offset per source partition, from the journal.
        catch_up: offset behind the commands that were in the log. They are processed before any delivery.
        topics: the topics to which the positions belong.
        merge_until: the ends of the underlying partitions, for a shard in total order.
        floors: for each deliveries topic, an offset below all records of this epoch.
        unwritten: finds deliveries that the previous owner journaled but did not write, as of an instant
            (C55). Each comes with the end of its lease, ms since the epoch; 0 without one.
        gaps: ranges that Kafka removed before anybody read them (C80).
    """

    positions: dict[TP, int]
    catch_up: int
    topics: KnownTopics
    merge_until: dict[TP, int] | None = None
    floors: Mapping[str, int] = field(default_factory=dict)
    unwritten: Unwritten | None = None
    gaps: Iterable[Gap] = ()
