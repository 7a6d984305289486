"""What works as configured, and is perhaps not meant: warnings of `lapse check` and of a worker's start."""

from __future__ import annotations

from lapse.core.queue.settings import Semantics
from lapse.protocol import prefetch
from lapse.runtime.topology import Topology


def warnings(topology: Topology) -> list[str]:
    """Return warnings about a configuration on its cluster, each a sentence that says what to do."""
    found: list[str] = []
    for name, queue in topology.config.queue.items():
        if queue.semantics is Semantics.AT_LEAST_ONCE:
            told = prefetch.advice(name, queue.max_deliveries, queue.max_per_subscription_backlog)
            found += [told] if told else []
        if queue.group_by is not None and queue.ordering == "partition" and topology.partitions(name) > 1:
            found.append(
                f"queue {name}: group_by keeps a group in order within each of {topology.partitions(name)} partitions "
                'only. Publish with the group as the Kafka key, or take ordering = "total" (C32)'
            )
        for topic in dict.fromkeys(topology.sources(name)):
            retention = topology.retentions.get(topic)
            told = retention.warning(topic, name, queue) if retention is not None else ""
            found += [told] if told else []
    return found
