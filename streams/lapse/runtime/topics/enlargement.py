"""Finds which of a queue's own topics need partitions, so that it has a shard for each partition added (C81)."""

from __future__ import annotations

from dataclasses import dataclass

from lapse.config import QueueConfig
from lapse.config.shares import partition_rate_fault
from lapse.protocol import topic as names
from lapse.runtime.topics.topology import Topology, TopologyError
from lapse.runtime.topics.wanted import GROWING, Role


@dataclass(frozen=True, slots=True)
class Enlargement:
    """The partitions that a queue's own topics need.

    Attributes:
        queue: name of the queue.
        shards: its number of shards.
        partitions: the number of partitions of its underlying topics.
        topics: lapse's own topics with fewer partitions.
        counted: those of them by which clients count the shards. They are enlarged last. Otherwise an interrupted
            command would let clients address shards that do not exist.
    """

    queue: str
    shards: int
    partitions: int
    topics: tuple[str, ...]
    counted: tuple[str, ...]

    @property
    def rounds(self) -> tuple[tuple[str, ...], ...]:
        """The topics in the order in which they get their partitions."""
        return tuple(one for one in self.topics if one not in self.counted), self.counted


def enlargement(topology: Topology, queue: str) -> Enlargement:
    """Find what a queue needs to have as many shards as its topics have partitions.

    Args:
        topology: the cluster, and a configuration with the queue.
        queue: name of the queue.

    Raises:
        TopologyError: it cannot have as many; the text says why, and what to do.
    """
    config: QueueConfig = topology.config.queue[queue]
    if config.shards_read_topics:
        which = 'ordering = "total"' if config.ordering == "total" else "topic_pattern"
        raise TopologyError(
            f"{queue}: with {which} its shards read every partition of its topics, however many there are. Nothing has "
            "to be done; a queue with more shards takes a new name"
        )
    counts = {topic: topology.existing.get(topic, 0) for topic in config.underlying(queue)}
    shown = ", ".join(f"{topic} {count}" for topic, count in counts.items())
    if len(set(counts.values())) > 1:
        raise TopologyError(f"{queue}: its topics have unequal numbers of partitions ({shown}). Give all as many")
    partitions = max(counts.values(), default=0)
    own = {one.name for one in topology.wanted() if one.entity == queue and one.role in GROWING}
    if missing := sorted(own - topology.existing.keys()):
        raise TopologyError(f"{queue}: {', '.join(missing)} missing. Run `lapse apply` first")
    own |= {names.decisions(queue)} & topology.existing.keys()
    shards = min(topology.existing[one] for one in own)
    if partitions < shards:
        raise TopologyError(
            f"{queue}: it has {shards} shards, and its topics fewer partitions ({shown}). Shards are never taken away: "
            f"create the topics with {shards}, or take a new name for the queue"
        )
    if partitions % shards:
        raise TopologyError(
            f"{queue}: {partitions} partitions are no multiple of its {shards} shards, so keys would move between the "
            f"old ones as well, and lose their order. Add partitions up to {(partitions // shards + 1) * shards}"
        )
    if partitions > 1 and (why := _needs_total_order(config, partitions)):
        raise TopologyError(
            f"{queue}: {why}. Its one shard reads all partitions of its topics, so nothing has to be done. For more "
            "shards, take this setting away first"
        )
    few = tuple(one for one in sorted(own) if topology.existing[one] < partitions)
    deliveries = {one.name for one in topology.wanted() if one.entity == queue and one.role is Role.DELIVERIES}
    return Enlargement(queue, shards, partitions, few, tuple(one for one in few if one in deliveries))


def _needs_total_order(config: QueueConfig, partitions: int) -> str:
    """Return why a queue in the order of its partitions can have one shard only; empty if it can have more."""
    if config.priority is not None:
        return f'priority over {partitions} shards requires ordering = "total" (Q17)'
    return "" if config.rate is None else partition_rate_fault(partitions)
