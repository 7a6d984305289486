"""Warnings of probable mistakes in a configuration, for `lapse check` and for a worker's start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from lapse.config import Config, QueueConfig
from lapse.core.duration import in_words
from lapse.core.entitlement import Right, find_entitlement
from lapse.core.queue.modes import Semantics
from lapse.protocol import prefetch
from lapse.protocol import topic as names
from lapse.runtime.topics import idle_settings, replication
from lapse.runtime.topics.access import Authorizer
from lapse.runtime.topics.topology import Topology
from lapse.runtime.topics.wanted import Role

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
"""Topics whose data exists nowhere else."""


SHORTEST_MS: Final = 100
"""A shorter lifetime, lease or time limit of a call, ms, causes a warning."""

_SHORTEST_RETENTION_MS: Final = 600_000
"""A shorter retention, ms, causes a warning. Workers may be away for so long when they are updated."""

_REMEMBERED_BYTES: Final = 125
"""About how many bytes a shard needs for each acknowledgment that came before its message was active."""


def warnings(topology: Topology) -> list[str]:
    """Return warnings about a configuration on its cluster, each a sentence that says what to do."""
    found: list[str] = [
        *idle_settings.warnings(topology.config),
        *_short_lived(topology),
        *_short_periods(topology),
        *_remembering(topology),
        *_passed_by(topology),
        *_shared_names(topology),
        *_uneven(topology),
        *_of_copies(topology),
        *_without_leaders(topology),
        *_compacted_letters(topology),
    ]
    for name, queue in topology.config.queue.items():
        if queue.semantics is Semantics.AT_LEAST_ONCE:
            hint = prefetch.max_deliveries_warning(name, queue.max_deliveries, queue.max_per_subscription_backlog)
            found += [hint] if hint else []
        if queue.group_by is not None and queue.ordering == "partition" and topology.partitions(name) > 1:
            counted = [key for key in ("group_limit", "group_rate", "group_weight") if key in queue.model_fields_set]
            what = f"{' and '.join(['group_by', *counted])} count"
            if queue.group_limit == 1:
                also = [key for key in counted if key != "group_limit"]
                what = "group_by keeps a group in order" + (f", and {' and '.join(also)} counts," if also else "")
            found.append(
                f"queue {name}: {what} within each of {topology.partitions(name)} partitions "
                'only. Publish with the group as the Kafka key, or take ordering = "total" (C32)'
            )
        filtered = _filtered(topology, name)
        if queue.group_by is not None and queue.group_limit == 1 and filtered:
            found.append(
                f"queue {name}: group_by, and {', '.join(filtered)} sees only what matches a filter: the first message "
                "of a group holds the group back, even if no subscription that is there matches it. See to it that "
                "somebody subscribes to every message, or choose filters that all messages of a group match (C87)"
            )
        for topic in dict.fromkeys(topology.sources(name)):
            retention = topology.retentions.get(topic)
            warning = retention.warning(topic, name, queue) if retention is not None else ""
            found += [warning] if warning else []
    return [*found, *_of_users(topology)]


def deletion_advice(entities: list[str]) -> str:
    """Return what to do about deleted entities that are still in `lapse.toml`."""
    many = len(entities) > 1
    return (
        f"{', '.join(entities)} {'were' if many else 'was'} deleted. Take {'them' if many else 'it'} out of "
        "lapse.toml, or run `lapse apply` to begin anew"
    )


def heeded(topology: Topology) -> set[str]:
    """Return the topics whose settings a worker must know, for `warnings` or because they limit what it writes.

    The greatest size of a SOW record follows from the settings of the SOW topic's own topics. Of a queue's own topics
    only the number of copies matters, and only on a cluster with several brokers.
    """
    found = {one for name in topology.config.queue for one in topology.sources(name)}
    found.update(one for name in topology.config.sow for one in topology.written(name))
    if topology.brokers > 1:
        found.update(one.name for one in topology.wanted() if one.role in _KEPT)
        found |= definitions_topics(topology.config)
    return found


def definitions_topics(config: Config) -> set[str]:
    """Return the topic with the deployment's definitions, if it has one (Q23)."""
    return {names.definitions(config.lapse.app_id)} if config.lapse.definitions == "topic" else set()


def _filtered(topology: Topology, name: str) -> list[str]:
    """Return the users who may read only some messages of a queue."""
    found: list[str] = []
    for user, settings in topology.config.users.items():
        entitlement = find_entitlement(name, settings.granted())
        if Right.READ in entitlement.rights and entitlement.row_filter:
            found.append(user)
    return found


def _short_lived(topology: Topology) -> list[str]:
    """Warn of lifetimes that end before a message can reach a consumer."""
    found: list[str] = []
    for name, entity in [*topology.config.queue.items(), *topology.config.sow.items()]:
        lifetimes = {"expiration": entity.expiration} if isinstance(entity.expiration, int) else {}
        if isinstance(entity, QueueConfig) and entity.expiration != "disabled":
            lifetimes |= {f"topic_expirations.{topic}": one for topic, one in entity.topic_expirations.items()}
        found += [
            f"{name}: {key}: {lifetime_ms} ms are about as long as a message takes from its producer to a consumer, so "
            f"most will expire. Choose {SHORTEST_MS} ms or more (L10)"
            for key, lifetime_ms in lifetimes.items()
            if lifetime_ms < SHORTEST_MS
        ]
    return found


def _short_periods(topology: Topology) -> list[str]:
    """Warn of leases, retentions and time limits that are over before what they are for has happened."""
    found: list[str] = []
    for name, entity in [*topology.config.queue.items(), *topology.config.sow.items()]:
        leases = isinstance(entity, QueueConfig) and entity.semantics is Semantics.AT_LEAST_ONCE
        if isinstance(entity, QueueConfig) and leases and entity.lease_period < SHORTEST_MS:
            found.append(
                f"{name}: lease_period: {entity.lease_period} ms are about as long as a message takes to a consumer, "
                f"and its acknowledgment back, so most will be delivered again. Choose {SHORTEST_MS} ms or more (Q5)"
            )
        if entity.retention < _SHORTEST_RETENTION_MS:
            found.append(
                f"{name}: retention: what Kafka removes after {in_words(entity.retention)} is lost for workers and "
                "clients that are away for longer, such as settlements. Choose an hour or more"
            )
        if entity.on_expire is not None and entity.on_expire_timeout < SHORTEST_MS:
            found.append(
                f"{name}: on_expire_timeout: on a busy machine a call in another process takes more than "
                f"{entity.on_expire_timeout} ms, and counts as failed then. Choose {SHORTEST_MS} ms or more (L15)"
            )
    return found


def _remembering(topology: Topology) -> list[str]:
    """Warn of queues that remember acknowledgments of messages that are not active yet."""
    return [
        f"queue {name}: target_queue_depth: each message beyond it that somebody acknowledges is remembered until it "
        f'would enter: in memory, {_REMEMBERED_BYTES} bytes each, even with state = "disk". A million take '
        f"{_REMEMBERED_BYTES} MB of a shard. Acknowledge only what was delivered (Q13)"
        for name, queue in topology.config.queue.items()
        if queue.target_queue_depth is not None and queue.semantics is Semantics.AT_LEAST_ONCE
    ]


def _passed_by(topology: Topology) -> list[str]:
    """Warn of topics with the name of a queue that no entity reads."""
    return [
        f"queue {name}: there is a topic {name}, too, and no entity reads it: what a plain producer publishes there "
        f"does not come to the queue. Producers write to {queue.publish_target(name)}; or name {name} in topics (Q2)"
        for name, queue in topology.config.queue.items()
        if name in topology.existing and name not in queue.underlying(name) and not topology.config.readers(name)
    ]


def _shared_names(topology: Topology) -> list[str]:
    """Warn of entities whose names another deployment on this cluster uses, so that both share topics."""
    found: list[str] = []
    existing, app_id = topology.existing, topology.config.lapse.app_id
    entities = set(topology.entities())
    mine = {names.changelog(app_id, name) for name in entities}
    for topic in sorted(existing.keys() - mine):
        name = _entity_of_journal(topic, existing) if topic.endswith(names.CHANGELOG_SUFFIX) else ""
        if name in entities and existing[topic] == existing[names.commands(name)]:
            found.append(
                f"{name}: another deployment on this cluster seems to have an entity of this name (there is {topic}). "
                "Both would answer the same commands, on the same topics; choose another name. If that deployment is "
                "given up, delete this topic of it"
            )
    return found


def _entity_of_journal(changelog: str, existing: Mapping[str, int]) -> str:
    """Return the entity whose journal a topic seems to be: the longest name with a commands topic; empty if none."""
    parts = changelog.removesuffix(names.CHANGELOG_SUFFIX).split("-")
    endings = ("-".join(parts[at:]) for at in range(1, len(parts)))
    return next((name for name in endings if names.commands(name) in existing), "")


def _uneven(topology: Topology) -> list[str]:
    """Warn of queues over a pattern whose shards get unequal parts of a topic."""
    found: list[str] = []
    for name, queue in topology.config.queue.items():
        shards = topology.partitions(name)
        if queue.pattern() is None or queue.ordering != "partition":
            continue
        counts = {topic: topology.existing[topic] for topic in topology.sources(name) if topic in topology.existing}
        uneven = sorted(topic for topic, count in counts.items() if count % shards)
        if uneven:
            one = uneven[0]
            others = f", and {len(uneven) - 1} more topics do not fit either" if len(uneven) > 1 else ""
            found.append(
                f"queue {name}: topic {one} has {counts[one]} partitions and the queue {shards} shards{others}. "
                f"Partition q belongs to shard q modulo {shards}, in its own order; messages of one key that come from "
                "several topics may be in different shards. Give the topics a multiple of the queue's partitions (Q2)"
            )
    return found


def _of_copies(topology: Topology) -> list[str]:
    """Warn of state, commands, letters or definitions that may be lost with one broker."""
    kept = [one.name for one in topology.wanted() if one.role in _KEPT]
    kept += definitions_topics(topology.config)
    copies = {name: topology.copies[name] for name in kept if name in topology.copies}
    return replication.warnings(topology.brokers, topology.config.lapse.replication_factor, copies)


def _without_leaders(topology: Topology) -> list[str]:
    """Warn of partitions that no broker leads, and name who waits for them."""
    found: list[str] = []
    for topic, copies in topology.copies.items():
        if copies.leaderless:
            own = {one.entity for one in topology.wanted() if one.name == topic}
            waiting = [name for name in topology.entities() if name in own or topic in topology.sources(name)]
            which = f"partition{'s' * (len(copies.leaderless) > 1)} {', '.join(map(str, copies.leaderless))}"
            found.append(
                f"{topic}, {which}: no broker leads it, since none that has a copy answers. Start these brokers. "
                f"Shards of {', '.join(waiting) or 'this deployment'} wait for it, and then go on by themselves"
            )
    return found


def _compacted_letters(topology: Topology) -> list[str]:
    """Warn of dead-letter topics that lose letters, as far as their settings are known."""
    found: dict[str, str] = {}
    for one in topology.wanted():
        retention = topology.retentions.get(one.name) if one.role is Role.DEAD_LETTERS else None
        if retention is not None and retention.compacts:
            found[one.name] = (
                f"{one.entity}: topic {one.name} for its dead letters is compacted: a letter is lost once another one "
                "with its key follows. Kafka refuses letters without a key, so their messages wait. Set "
                "cleanup.policy = delete (C81)"
            )
    return list(found.values())


def _of_users(topology: Topology) -> list[str]:
    """Warn if users are configured and the cluster does not protect their data from others (X4)."""
    users, access = topology.config.users, topology.access
    if not users or access is None:
        return []
    if access.authorizer in _UNFENCED:
        return [_UNFENCED[access.authorizer]]
    nameless = sorted(name for name, user in users.items() if user.principal is None and user.entitlements)
    if not nameless:
        return []
    consequence = (
        "have no principal: `lapse apply` gives them no rights on the cluster, so see to it that they alone can read"
    )
    return [f"users {', '.join(nameless)} {consequence} their deliveries"]
