"""What works as configured, and is perhaps not meant: warnings of `lapse check` and of a worker's start."""

from __future__ import annotations

from typing import Final

from lapse.core.queue.settings import Semantics
from lapse.protocol import prefetch
from lapse.runtime.access import Authorizer
from lapse.runtime.topology import Topology

_UNFENCED: Final = {
    Authorizer.OFF: (
        "the cluster has no authorizer: commands are signed, but whoever reaches it can read the deliveries of all "
        "users, and write to every topic (docs/security.md)"
    ),
    Authorizer.UNKNOWN: (
        "the cluster does not let lapse see its ACLs, so it cannot tell whether the deliveries of users are kept from "
        "others. Give its user Describe and DescribeConfigs on the cluster to have this checked"
    ),
}


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
    return [*found, *_of_users(topology)]


def _of_users(topology: Topology) -> list[str]:
    """What is not kept from others although there are users (X4)."""
    users, access = topology.config.users, topology.access
    if not users or access is None:
        return []
    if access.authorizer in _UNFENCED:
        return [_UNFENCED[access.authorizer]]
    nameless = sorted(name for name, user in users.items() if user.principal is None and user.entitlements)
    if not nameless:
        return []
    told = "have no principal: `lapse apply` gives them no rights on the cluster, so see to it that they alone can read"
    return [f"users {', '.join(nameless)} {told} their deliveries"]
