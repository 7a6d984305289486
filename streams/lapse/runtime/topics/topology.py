"""Topology: the topics that a configuration needs, and how the cluster differs from that."""

from __future__ import annotations

import itertools
from collections import deque
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from functools import cached_property
from typing import Final

from lapse.config import Config, QueueConfig, SowConfig
from lapse.config.shares import partition_rate_fault
from lapse.protocol import topic as names
from lapse.runtime.kafka.output import MAX_BATCH_BYTES
from lapse.runtime.topics import worker_rights
from lapse.runtime.topics.access import Access, Grant
from lapse.runtime.topics.cleanup_policy import wrong_policies
from lapse.runtime.topics.difference import Difference
from lapse.runtime.topics.existing_shards import ExistingShards
from lapse.runtime.topics.name_clash import with_clashes
from lapse.runtime.topics.record_limits import ADDED_BYTES, DEFAULT_BYTES, record_limits
from lapse.runtime.topics.replication import Copies
from lapse.runtime.topics.retention import Retention
from lapse.runtime.topics.standing import Standing, standing_of
from lapse.runtime.topics.user_rights import WRITTEN_BESIDE, user_grants
from lapse.runtime.topics.wanted import MOST_BYTES, OF_THE_USER, Role, Wanted, without

_FOR_REPLICAS: Final = {"delete.retention.ms": str(7 * 86_400_000), "min.compaction.lag.ms": "60000"}
"""How long a replica may be disconnected and still learn of every delete, and how long a superseded update stays. A
replica that reads of an expiry within seconds has then read the update before it (S10)."""

_LARGE: Final = {MOST_BYTES: str(2 * MAX_BATCH_BYTES)}


class TopologyError(RuntimeError):
    """The cluster does not fit the configuration; the text says what differs and how to mend it."""


_HOLDS_PAYLOADS: Final = frozenset({Role.DELIVERIES, Role.CHANGELOG, Role.SOW, Role.DEAD_LETTERS})

_OF_ANY_BREADTH: Final = frozenset({*OF_THE_USER, Role.DEFINER})
"""Topics whose number of partitions is never wrong by itself; `_misshapen` checks underlying ones."""


class Topology:
    """Compares the topics on the cluster with those that a configuration needs.

    Args:
        config: the configuration.
        existing: the number of partitions of every topic on the cluster.
        limits: the largest record that a topic takes, bytes, as far as known.
        retentions: how long Kafka keeps the records of a topic, as far as known.
        access: the cluster's rights on topics; None if it was not asked, because there are no users.
        copies: the copies of topics, as far as known.
        brokers: the cluster's number of brokers.
        lacks: the operations on needed topics that we lack, by topic, as far as known.
    """

    def __init__(
        self,
        config: Config,
        existing: dict[str, int],
        limits: Mapping[str, int] | None = None,
        retentions: Mapping[str, Retention] | None = None,
        access: Access | None = None,
        copies: Mapping[str, Copies] | None = None,
        brokers: int = 1,
        lacks: Mapping[str, tuple[str, ...]] | None = None,
    ) -> None:
        self.lacks = {} if lacks is None else dict(lacks)
        self.copies = {} if copies is None else dict(copies)
        self.brokers = brokers
        self.config = config
        self.existing = existing
        self.access = access
        self.limits = {} if limits is None else dict(limits)
        self.retentions = {} if retentions is None else dict(retentions)
        self._there = ExistingShards(config, existing)
        self._named_topics: dict[str, list[str]] = {}

    def partitions(self, entity: str) -> int:
        """Return the number of shards of an entity: as many as its underlying topics have partitions."""
        return self._shards[entity]

    @cached_property
    def _shards(self) -> dict[str, int]:
        """The number of shards of each entity; topics that it reads may still have to be created (D1)."""
        letters: dict[str, int] = {}
        shared: dict[str, int] = {}
        found: dict[str, int] = {}
        readers = self._reading()
        waiting = deque(self.entities())
        for _ in range(2 * len(waiting) ** 2):  # enough for every path without a cycle
            if not waiting:
                break
            name = waiting.popleft()
            count = self._shards_of(name, letters, shared)
            if found.get(name) == count:
                continue
            found[name] = count
            target = self._entity(name).dead_letter_topic(name)
            for planned, topics, width in (
                (letters, [target] if target else [], count),
                (shared, self._named(name), self._breadth(name, count)),
            ):
                for topic in topics:
                    if topic not in self.existing and width > planned.get(topic, 0):
                        planned[topic] = width
                        waiting.extend(readers.get(topic, ()))
        return found

    def _shards_of(self, entity: str, letters: Mapping[str, int], shared: Mapping[str, int]) -> int:
        """Return the number of shards of an entity.

        Args:
            entity: name of the entity.
            letters: the numbers of partitions of dead-letter topics that must be created.
            shared: the same for other topics: enough for each entity that reads them.
        """
        settings = self._entity(entity)
        if isinstance(settings, QueueConfig) and settings.shards_read_topics:
            return 1 if settings.ordering == "total" else settings.partitions
        if self._there.exists(entity):  # its shards stay, whatever became of its underlying topics (C81)
            return self._there.count(entity)
        topics = settings.underlying(entity)
        counts = [self.existing.get(topic, letters.get(topic, 0)) for topic in topics]
        return max(counts, default=0) or max([settings.partitions, *(shared.get(topic, 0) for topic in topics)])

    def _reading(self) -> dict[str, list[str]]:
        """Return the entities that read each topic, by name or pattern."""
        found: dict[str, list[str]] = {}
        for name in self.entities():
            for topic in self.sources(name):
                found.setdefault(topic, []).append(name)
        return found

    def _named(self, name: str) -> list[str]:
        """Return underlying topics that must exist: those with a name, and the target of publishes."""
        if name not in self._named_topics:
            entity = self._entity(name)
            target = entity.publish_target(name)
            self._named_topics[name] = [*dict.fromkeys([*entity.underlying(name), *([target] if target else [])])]
        return self._named_topics[name]

    def _breadth(self, name: str, shards: int) -> int:
        """Return the number of partitions of an entity's missing topics.

        Shards that feed themselves accept any number.
        """
        entity = self._entity(name)
        return entity.partitions if isinstance(entity, QueueConfig) and entity.shards_read_topics else shards

    def entities(self) -> list[str]:
        """Return the names of all entities."""
        return [*self.config.queue, *self.config.sow]

    def _entity(self, name: str) -> QueueConfig | SowConfig:
        return self.config.queue[name] if name in self.config.queue else self.config.sow[name]

    def sources(self, name: str) -> list[str]:
        """Return all underlying topics of an entity, including those that match a pattern."""
        entity = self._entity(name)
        pattern = entity.pattern() if isinstance(entity, QueueConfig) else None
        named = self._named(name)
        if pattern is None:
            return named
        return list(dict.fromkeys([*named, *filter(pattern.fullmatch, {**self.existing, **self._to_be_made})]))

    @cached_property
    def _to_be_made(self) -> dict[str, int]:
        """Topics of the user that entities name and the cluster lacks."""
        found: dict[str, int] = {}
        for name in self.entities():
            letters = self._entity(name).dead_letter_topic(name)
            found.update(dict.fromkeys([*self._named(name), *([letters] if letters else [])], 0))
        return {name: 0 for name in found if name not in self.existing}

    def _most_bytes(self, name: str) -> int:
        """Return the greatest size of a message of an entity, bytes, with the headers that lapse adds (C27)."""
        limits = [self._to_be.get(topic, DEFAULT_BYTES) for topic in self.sources(name)]
        return max(limits, default=DEFAULT_BYTES) + ADDED_BYTES

    @cached_property
    def _to_be(self) -> dict[str, int]:
        """The largest record of each topic after `lapse apply`, bytes; see `record_limits`."""
        letters = {name: self._entity(name).dead_letter_topic(name) for name in self.entities()}
        return record_limits(self.limits, self.existing, letters, {name: self.sources(name) for name in letters})

    def record_bytes(self, name: str) -> int:
        """Return the greatest size of a SOW topic's record, bytes, that all topics take to which it is written."""
        return min(self.limits.get(topic, 2 * MAX_BATCH_BYTES) for topic in self.written(name)) - ADDED_BYTES

    def written(self, name: str) -> list[str]:
        """Return the topics to which a SOW topic writes its records."""
        return [names.sow(name), *self._deliveries(name), names.changelog(self.config.lapse.app_id, name)]

    def _deliveries(self, name: str) -> list[str]:
        """Return the topics on which an entity writes to clients: to all, and to each of its users alone (X4)."""
        return [names.deliveries(name, user) for user in ("", *self.config.entitled_users(name))]

    @cached_property
    def _of(self) -> dict[str, tuple[Wanted, ...]]:
        """Every topic that an entity needs, by its name."""
        return {name: tuple(self._needed_by(name)) for name in self.entities()}

    def _needed_by(self, name: str) -> Iterator[Wanted]:
        entity = self._entity(name)
        count = self.partitions(name)
        stamped = {"message.timestamp.type": "LogAppendTime"}
        large = {MOST_BYTES: str(max(2 * MAX_BATCH_BYTES, self._most_bytes(name)))}
        retained = {"retention.ms": str(entity.retention)}
        compacted = {**stamped, **large, "cleanup.policy": "compact"}
        for topic in self._named(name):
            yield Wanted(topic, Role.UNDERLYING, name, self._breadth(name, count), stamped)
        yield Wanted(names.commands(name), Role.COMMANDS, name, count, {**stamped, **_LARGE, **retained})
        for deliveries in self._deliveries(name):
            yield Wanted(deliveries, Role.DELIVERIES, name, count, {**stamped, **large, **retained})
        yield Wanted(names.events(name), Role.EVENTS, name, count, {**stamped, **_LARGE, "retention.ms": "-1"})
        # A new epoch rewrites the inherited state step by step, and until then the old records must stay. Copies on
        # disk, which are trusted for half a day, must learn of removals, whatever the broker's default is.
        journaled = {**compacted, "min.compaction.lag.ms": "3600000", "delete.retention.ms": str(86_400_000)}
        yield Wanted(names.changelog(self.config.lapse.app_id, name), Role.CHANGELOG, name, count, journaled)
        if name in self.config.sow:
            yield Wanted(names.sow(name), Role.SOW, name, count, {**compacted, **_FOR_REPLICAS})
        letters = entity.dead_letter_topic(name)
        if letters:
            yield Wanted(letters, Role.DEAD_LETTERS, name, count, {**stamped, **large, "retention.ms": "-1"})
        target = self.config.forward_topic(name) if name in self.config.queue else None
        if target is not None:
            yield Wanted(target, Role.FORWARDED, name, count, {**stamped, **large})

    def _of_definitions(self) -> Iterator[Wanted]:
        """Yield the topics on which clients ask for entities, and are answered (Q23)."""
        if self.config.lapse.definitions == "file":
            return
        settings = {"message.timestamp.type": "LogAppendTime", **_LARGE, "retention.ms": "86400000"}
        for name in names.definer_topics(self.config.lapse.app_id, self.config.creators()):
            yield Wanted(name, Role.DEFINER, names.definer(self.config.lapse.app_id), 1, settings)

    def wanted(self) -> list[Wanted]:
        """Return every topic that the configuration needs, once, even if several entities name it."""
        return list(self._wanted)

    @cached_property
    def _wanted(self) -> tuple[Wanted, ...]:
        found: dict[str, Wanted] = {}
        for topic in itertools.chain(self._of_definitions(), *self._of.values()):
            known = found.get(topic.name)
            if known is not None and known.role is topic.role:
                topic = replace(topic, partitions=max(topic.partitions, known.partitions))
            if known is None or topic.rank >= known.rank:
                found[topic.name] = topic
        return tuple(found.values())

    def differences(self) -> list[Difference]:
        """Return how the cluster differs from what is needed; empty if it fits."""
        found: list[Difference] = []
        deleted = set(self.deleted())
        for topic in self.wanted():
            count = self.existing.get(topic.name)
            bars = () if topic.role in OF_THE_USER or topic.role is Role.DEFINER else (topic.entity,)
            if topic.name in self.lacks:
                found.append(self._not_permitted(topic))
            elif count is None:
                what = f"missing; {topic.purpose}, {_partitions(topic.partitions)}"
                if topic.role is not Role.UNDERLYING and topic.entity in deleted:
                    what += f"; {topic.entity} was deleted, this begins a new one"
                found.append(Difference(topic.name, what, topic, bars=bars))
            elif self._there.is_growing(topic, count):
                what = f"has {_partitions(count)}, and {topic.entity} {topic.partitions} shards: giving it more was "
                what += f"interrupted. Run `lapse queue partitions {topic.entity}` again; it is served"
                found.append(Difference(topic.name, what))
            elif count != topic.partitions and topic.role not in _OF_ANY_BREADTH:
                found.append(
                    Difference(
                        topic.name,
                        f"has {_partitions(count)}; {topic.entity} needs {topic.partitions}, as many as its underlying "
                        "topics. Give all of them the same number, or take a new name for the entity",
                        bars=bars,
                    )
                )
        changed = wrong_policies(self.wanted(), self.retentions)
        found = with_clashes(found, self.existing, self._there.exists)
        return [*found, *self._misshapen(), *self._faults(), *self._too_small(), *changed, *self._not_granted()]

    def operations(self) -> dict[str, tuple[str, ...]]:
        """Return the operations for which a worker needs rights, by topic."""
        return worker_rights.operations(
            (one, name in self.config.queue) for name, some in self._of.items() for one in some
        )

    def _not_permitted(self, topic: Wanted) -> Difference:
        """Return the lack of rights on a topic, with the entities that cannot be served without them."""
        lacking = self.lacks[topic.name]
        uses = [one for some in self._of.values() for one in some if one.name == topic.name] or [topic]
        barred = [one for one in uses if worker_rights.bars(one, lacking)]
        why = [one.purpose for one in barred]
        why += [f"{one.purpose}: {text}" for one in uses if (text := worker_rights.consequence(one, lacking))]
        what = f"{self._forbidden(topic.name)}; {'; '.join(why) or topic.purpose}"
        return Difference(topic.name, what, bars=tuple(dict.fromkeys(one.entity for one in barred)))

    def _forbidden(self, topic: str) -> str:
        return f"we lack the right {' and '.join(self.lacks[topic])} on it: have it granted"

    def _misshapen(self) -> list[Difference]:
        """Return underlying topics with another number of partitions than their entities have shards (C81)."""
        found: list[Difference] = []
        for name in self.entities():
            entity = self._entity(name)
            if isinstance(entity, QueueConfig) and entity.shards_read_topics:
                continue
            shards = self.partitions(name)
            for topic in self._named(name):
                count = self.existing.get(topic)
                if count is None or count == shards:
                    continue
                what = f"has {_partitions(count)}; {name} needs {shards}, "
                if self._there.exists(name):
                    what += f"as many as it was created with. {self._meanwhile(name, count, shards)}"
                    found.append(Difference(topic, what))
                else:
                    what += "as many as its underlying topics. Give all of them the same number, or take a new name "
                    found.append(Difference(topic, f"{what}for the entity", bars=(name,)))
        return found

    def _meanwhile(self, name: str, count: int, shards: int) -> str:
        """Say what an entity does with a topic whose number of partitions differs from its number of shards."""
        remedy = "take a new name for the entity, so that it has as many shards"
        if count < shards:
            return f"The other shards have nothing to read; create the topic with {shards}, or {remedy}"
        if name in self.config.sow:
            if count % shards:
                return f"Only the first {count // shards * shards} are read; add more up to a multiple of {shards}"
            return f"Its shards read the further ones as well; to spread the load, {remedy}"
        spread = f"add more up to a multiple of {shards}" if count % shards else f"run `lapse queue partitions {name}`"
        return f"Its shards read the further ones as well; to spread the load, {spread}"

    def missing(self) -> list[str]:
        """Return warnings of missing and misshapen topics: what does not happen, and what to do."""
        found: list[str] = []
        for name in self.entities():
            kind = "queue" if name in self.config.queue else "SOW topic"
            found += [
                f"{kind} {name}: {without(topic.role, topic.name)}"
                for topic in self._of[name]
                if topic.role in OF_THE_USER and topic.name not in self.existing and topic.name not in self.lacks
            ]
        misshapen = [one for one in self._misshapen() if not one.bars]
        return [*found, *(f"topic {one.topic} {one.what}" for one in misshapen)]

    def barred(self) -> dict[str, list[str]]:
        """Return the entities that cannot be served, with the reasons; the others can be (C52)."""
        return {name: list(why) for name, why in self._barred.items()}

    @cached_property
    def _barred(self) -> dict[str, list[str]]:
        found: dict[str, list[str]] = {}
        for one in self.differences():
            for name in one.bars:
                found.setdefault(name, []).append(f"{one.topic}: {one.what}")
        return found

    def grants(self) -> list[Grant]:
        """Return the rights on topics that users need, and workers with them: a right excludes all others (X4)."""
        written = {one.name for some in self._of.values() for one in some if one.role in WRITTEN_BESIDE}
        return user_grants(self.config, {name: self.sources(name) for name in self.entities()}, written)

    def _not_granted(self) -> list[Difference]:
        """Return missing rights, by topic."""
        missing: dict[str, list[Grant]] = {}
        for grant in [] if self.access is None else self.access.lacks(self.grants()):
            missing.setdefault(grant.topic, []).append(grant)
        return [
            Difference(topic, f"no right to {', '.join(map(str, some))}", grants=tuple(some))
            for topic, some in missing.items()
        ]

    def _too_small(self) -> list[Difference]:
        """Return existing topics that might refuse what an entity writes to them."""
        found: dict[str, Difference] = {}
        for topic in (one for one in self.wanted() if one.role in _HOLDS_PAYLOADS):
            limit, needed = self.limits.get(topic.name), self._most_bytes(topic.entity)
            if limit is not None and limit < needed:
                what = f"{MOST_BYTES} is {limit:,}; with its headers a message of {topic.entity} may take {needed:,}"
                found[topic.name] = Difference(topic.name, what, alter={MOST_BYTES: topic.config[MOST_BYTES]})
        return list(found.values())

    def _faults(self) -> list[Difference]:
        """Return demands of the configuration that this cluster cannot fulfil, whatever topics are created."""
        found: list[Difference] = []
        for name, queue in self.config.queue.items():
            for one in queue.recovery_point if isinstance(queue.recovery_point, tuple) else ():
                count = self.existing.get(one.topic)
                if count is not None and one.partition >= count:
                    what = f"queue {name}: recovery_point {one}: topic {one.topic} has {_partitions(count)}, from 0 on"
                    found.append(Difference(one.topic, what, bars=(name,)))
            count = self.partitions(name)
            if queue.priority is not None and queue.ordering == "partition" and count > 1:
                what = f'queue.{name}.priority: priority over {count} partitions requires ordering = "total" (Q17)'
                found.append(Difference(names.commands(name), what, bars=(name,)))
            if queue.rate is not None and queue.ordering == "partition" and count > 1:
                what = f"queue.{name}.rate: {partition_rate_fault(count)}"
                found.append(Difference(names.commands(name), what, bars=(name,)))
        return found

    def standing(self, name: str) -> Standing:
        """Return how many of an entity's own topics are on the cluster."""
        return standing_of(self.config, self.existing, name)

    def deleted(self) -> list[str]:
        """Return entities of the configuration that were deleted: of their topics only the events exist."""
        return [name for name in self.entities() if self.standing(name) is Standing.DELETED]

    def without(self, entities: Iterable[str]) -> Topology:
        """Return the topology for the configuration without some entities."""
        config = self.config
        gone = set(entities)
        queue = {name: one for name, one in config.queue.items() if name not in gone}
        sow = {name: one for name, one in config.sow.items() if name not in gone}
        remaining = config.model_copy(update={"queue": queue, "sow": sow})
        return Topology(
            remaining,
            self.existing,
            self.limits,
            self.retentions,
            self.access,
            self.copies,
            self.brokers,
            self.lacks,
        )

    def servable(self) -> Topology:
        """Return the topology for the entities that can be served.

        Raises:
            TopologyError: none can.
        """
        barred = self.barred()
        if barred and not set(self.entities()) - barred.keys():
            listed = "\n".join(f"  {why}" for why in dict.fromkeys(itertools.chain.from_iterable(barred.values())))
            raise TopologyError(f"the cluster does not fit the configuration; run `lapse apply`:\n{listed}")
        return self.without(barred) if barred else self


def _partitions(count: int) -> str:
    return f"{count} partition{'s' if count != 1 else ''}"
