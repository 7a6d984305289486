"""What works as configured, and is perhaps not meant: warnings of `lapse check` and of a worker's start."""

from __future__ import annotations

from typing import Final

from lapse.core.entitlement import Right, entitlement_to
from lapse.core.queue.settings import Semantics
from lapse.protocol import prefetch
from lapse.protocol import topic as names
from lapse.runtime.topics import replication
from lapse.runtime.topics.access import Authorizer
from lapse.runtime.topics.topology import Role, Topology

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


_KEPT: Final = frozenset({Role.CHANGELOG, Role.COMMANDS, Role.DEAD_LETTERS})
"""Topics with what lapse alone knows."""

_OF_LEASES: Final = ("max_deliveries", "max_cancels", "leasing", "lease_period", "max_lease_period")


def warnings(topology: Topology) -> list[str]:
    """Return warnings about a configuration on its cluster, each a sentence that says what to do."""
    found: list[str] = [*_in_vain(topology), *_shared_names(topology), *_of_copies(topology)]
    for name, queue in topology.config.queue.items():
        if queue.semantics is Semantics.AT_LEAST_ONCE:
            told = prefetch.advice(name, queue.max_deliveries, queue.max_per_subscription_backlog)
            found += [told] if told else []
        if queue.group_by is not None and queue.ordering == "partition" and topology.partitions(name) > 1:
            found.append(
                f"queue {name}: group_by keeps a group in order within each of {topology.partitions(name)} partitions "
                'only. Publish with the group as the Kafka key, or take ordering = "total" (C32)'
            )
        filtered = _filtered(topology, name)
        if queue.group_by is not None and filtered:
            found.append(
                f"queue {name}: group_by, and {', '.join(filtered)} sees only what matches a filter: the first message "
                "of a group holds the group back, even if no subscription that is there matches it. See to it that "
                "somebody subscribes to every message, or choose filters that all messages of a group match (C87)"
            )
        for topic in dict.fromkeys(topology.sources(name)):
            retention = topology.retentions.get(topic)
            told = retention.warning(topic, name, queue) if retention is not None else ""
            found += [told] if told else []
    return [*found, *_of_users(topology)]


def _filtered(topology: Topology, name: str) -> list[str]:
    """Users who may read some messages of a queue only."""
    found: list[str] = []
    for user, settings in topology.config.users.items():
        entitlement = entitlement_to(name, settings.granted())
        if Right.READ in entitlement.rights and entitlement.row_filter:
            found.append(user)
    return found


def _in_vain(topology: Topology) -> list[str]:
    """Settings that cannot act beside others."""
    found: list[str] = []
    for name, queue in topology.config.queue.items():
        if queue.semantics is Semantics.AT_MOST_ONCE:
            stated = [key for key in _OF_LEASES if key in queue.model_fields_set and getattr(queue, key)]
            if stated:
                found.append(
                    f'queue {name}: {", ".join(stated)}: without effect with semantics = "at-most-once", where a '
                    "message leaves as it is sent and is never leased. Take it out, or choose at-least-once (Q4)"
                )
        if queue.state == "memory" and "state_memory" in queue.model_fields_set:
            found.append(f'queue {name}: state_memory: without effect unless state = "disk". Take it out, or set that')
    for name, entity in [*topology.config.queue.items(), *topology.config.sow.items()]:
        said = entity.model_fields_set
        if entity.on_expire is None and "on_expire_timeout" in said:
            found.append(f"{name}: on_expire_timeout: without effect without on_expire. Take it out, or set that (L15)")
        if entity.dead_letter is False and entity.dead_letter_reasons:
            found.append(f"{name}: dead_letter_reasons: without effect with dead_letter = false. Take it out (D1)")
        if entity.expiration == "disabled" and "expiration_model" in said:
            found.append(f'{name}: expiration_model: without effect with expiration = "disabled". Take it out (L7)')
    return found


def _shared_names(topology: Topology) -> list[str]:
    """Entities whose commands topic another deployment of this cluster seems to use."""
    found: list[str] = []
    app_id = topology.config.lapse.app_id
    mine = {names.changelog(app_id, name) for name in topology.entities()}
    for name in topology.entities():
        if names.commands(name) not in topology.existing or names.changelog(app_id, name) in topology.existing:
            continue
        ending = f"-{names.table(name)}-changelog"
        others = [topic for topic in topology.existing if topic.endswith(ending) and topic not in mine]
        if others:
            found.append(
                f"{name}: another deployment on this cluster seems to have an entity of this name (it "
                f"has {others[0]}). Both would answer the same commands; choose another name"
            )
    return found


def _of_copies(topology: Topology) -> list[str]:
    """What may be lost with one broker: state, commands or letters."""
    kept = [one.name for one in topology.wanted() if one.role in _KEPT and one.name in topology.copies]
    copies = {name: topology.copies[name] for name in kept}
    return replication.warnings(topology.brokers, topology.config.lapse.replication_factor, copies)


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
