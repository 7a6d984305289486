"""The topics of a Kafka cluster: reads them and their settings, creates and changes them."""

from __future__ import annotations

import contextlib
import itertools
import time
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from functools import partial
from typing import Any, Final, TypeVar

from confluent_kafka import KafkaError, KafkaException
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AlterConfigOpType,
    ClusterMetadata,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from lapse import topic_creation
from lapse.config import Config
from lapse.controller import admin_client
from lapse.core.shard.retirement import Retirement
from lapse.protocol import broker_address
from lapse.protocol import topic as topic_names
from lapse.runtime.kafka import security
from lapse.runtime.topics import access, permission, topic_lookup
from lapse.runtime.topics.access import Access
from lapse.runtime.topics.advice import definitions_topics, heeded
from lapse.runtime.topics.decided_end import decided_ends
from lapse.runtime.topics.difference import Difference
from lapse.runtime.topics.interrupted_removal import ChangelogGone, InterruptedRemovals
from lapse.runtime.topics.new_entity import with_all_own
from lapse.runtime.topics.patience import Patience
from lapse.runtime.topics.replication import LEAST_IN_SYNC, Copies, settings_of_new
from lapse.runtime.topics.request_parts import parts_of_request
from lapse.runtime.topics.retention import Retention
from lapse.runtime.topics.topic_removal import remove_entity, remove_topics
from lapse.runtime.topics.topology import Topology, TopologyError
from lapse.runtime.topics.wanted import MOST_BYTES, Wanted
from lapse.silence import Silence
from lapse.topic_creation import NewPartitions, NewTopic

_PATIENCE_S: Final = 15.0
_SETTINGS_S: Final = 120.0
"""How long to wait for the settings of topics, s. A broker that has created thousands of topics answers slowly."""

_AT_FIRST_S: Final = (5.0, 10.0)
"""The same for the first tries, s. For some seconds librdkafka may be told to ask a stopped broker, and waits for
it."""

_LATE: Final = frozenset({KafkaError._TIMED_OUT, KafkaError._TRANSPORT, KafkaError._ALL_BROKERS_DOWN})

_HEEDED: Final = (MOST_BYTES, LEAST_IN_SYNC, "cleanup.policy", "retention.ms")
"""The settings of topics that decide whether they fit."""

_MANY: Final = 200
"""For more topics than that, only those settings are asked for, with a connection of its own."""

_FEW: Final = 50
"""Up to so many topics are looked up by their names."""

_SOON_S: Final = 0.02
"""When to look again for the first time whether a broker lists a created topic, s; then after twice the time each."""

FIRST_ANSWER_S: Final = 2.5
"""How long a command waits for a broker, s, since a person waits for it. A worker may wait longer."""
_FIRST_LOOK_S: Final = 0.5
"""How long a command waits, s, before it sees whether anybody listens at all, and again if nobody does."""

_AGAIN_S: Final = 0.2

_One = TypeVar("_One")


class BrokersAway(TopologyError):
    """No broker answers. That may be temporary."""


class GroupRefused(TopologyError):
    """A worker may not join its consumer group."""


def awaited(look: Callable[[float], _One], away: Callable[[str], None]) -> _One:
    """Call `look` until a broker answers, for a worker, which can do nothing without one.

    Args:
        look: looks at the cluster; its argument says how many seconds to wait for an answer.
        away: called with the reason whenever no answer has come.

    Raises:
        TopologyError: the cluster does not fit, or refuses.
    """
    patience_s = FIRST_ANSWER_S
    while True:
        try:
            return look(patience_s)
        except BrokersAway as error:
            away(str(error))
        patience_s = _PATIENCE_S
        time.sleep(_AGAIN_S)


class Cluster:
    """The topics of a Kafka cluster.

    Args:
        config: has the brokers, and how to connect to them.
    """

    def __init__(self, config: Config) -> None:
        self._config = config
        self._silence = Silence()  # collects librdkafka's log lines, of which an error names one
        settings: dict[str, Any] = {
            "bootstrap.servers": config.lapse.brokers,
            **self._silence.settings,
            **security.for_librdkafka(config.security),
        }
        self._settings = settings
        self._admin = admin_client(settings)

    def metadata(self, patience_s: float) -> ClusterMetadata:
        """Return the brokers' metadata about themselves and all topics.

        Args:
            patience_s: how long to wait for an answer, s.

        Raises:
            BrokersAway: no broker answers.
            TopologyError: a broker refuses.
        """
        return self._answered(patience_s, lambda within_s: self._admin.list_topics(timeout=within_s))

    def reach(self, patience_s: float) -> None:
        """Do the same without the topics, of which there may be thousands: only find out that a broker answers."""
        self._answered(patience_s, self._described_cluster)

    def _described_cluster(self, within_s: float) -> None:
        self._admin.describe_cluster(request_timeout=within_s).result()

    def _answered(self, patience_s: float, ask: Callable[[float], _One]) -> _One:
        if why := broker_address.address_fault(self._config.lapse.brokers):
            raise TopologyError(why)
        self._silence.forget()
        if patience_s <= FIRST_ANSWER_S:
            with contextlib.suppress(KafkaException):
                return ask(_FIRST_LOOK_S)
            self._admin.poll(0)  # makes librdkafka pass on its log lines
            if self._silence.refusal or self._silence.is_nobody_there(self._config.lapse.brokers):
                patience_s = _FIRST_LOOK_S
        try:
            return ask(patience_s)
        except KafkaException as error:
            self._admin.poll(0)
            silence = f"no answer from Kafka at {self._config.lapse.brokers}: "
            if refusal := self._silence.refusal:
                raise TopologyError(
                    f"{silence}{refusal}. Correct [security] in lapse.toml: user, password, mechanism, certificates"
                ) from error
            raise BrokersAway(
                f"{silence}{self._silence.why(patience_s)}. Is it running? `lapse kafka start` starts one here; "
                "KAFKA_BOOTSTRAP_SERVERS names another, and [security] says how to speak to it"
            ) from error

    def topology(
        self, *, served: bool = False, patience_s: float | None = None, rights: bool = False, few: bool = False
    ) -> Topology:
        """Look at the cluster. If the removal of a deleted entity's topics was interrupted, finish it first.

        Another process may finish it at the same moment. If a changelog disappears while it is read, the cluster is
        looked at again.

        Brokers return all settings of a topic each time, and slowly. So a worker asks only about topics that concern
        it. With hundreds of queues it starts a second sooner.

        Args:
            served: whether it is for a worker, which changes no settings and needs only those that it obeys or warns
                of.
            patience_s: how long to wait for an answer, s; None for the default, which is longer for a worker.
            rights: whether to check our rights on topics and group, as is always done for a worker.
            few: whether to know no other topics than those that the entities name, if these are few.

        Raises:
            BrokersAway: it does not answer.
            TopologyError: it refuses.
        """
        if patience_s is None:
            patience_s = _PATIENCE_S if served else FIRST_ANSWER_S
        looked_until = time.monotonic() + _PATIENCE_S
        named = self._named() if few else set()
        while True:
            found = self._look(served, patience_s, rights or served, named)
            removals = self._removals()
            try:
                deleted = removals.of(found)
            except ChangelogGone as error:
                if time.monotonic() > looked_until:
                    raise TopologyError(f"{error}: it is listed, and cannot be found when it is read") from error
                time.sleep(_AGAIN_S)
                continue
            if not deleted or time.monotonic() > looked_until:
                return found
            if named:  # topics of former users are left as well, and have other names
                named = set()
                continue
            removals.finish(deleted, found.existing)
            # Another worker may have removed them just now, and the broker may list them a moment longer.

    def _removals(self) -> InterruptedRemovals:
        return InterruptedRemovals(self._config.lapse.app_id, self._settings, self._admin)

    def finish_removals(self, entities: Iterable[str]) -> set[str]:
        """See `InterruptedRemovals.finish_retired`."""
        return self._removals().finish_retired(entities, self.metadata(_PATIENCE_S).topics.keys())

    def ending(self, entities: Iterable[str]) -> dict[str, Retirement]:
        """Return the ends of some entities that are decided, while these still have topics for clients (C4)."""
        topics, app_id = self.metadata(_PATIENCE_S).topics.keys(), self._config.lapse.app_id
        names = {topic_names.changelog(app_id, one): one for one in entities if topic_names.commands(one) in topics}
        return {names[one]: end for one, end in decided_ends(self._settings, names.keys() & topics).items()}

    def _named(self) -> set[str]:
        """Return all topics that the entities can have; empty if these are many, or described by a pattern."""
        config = self._config
        if any(queue.topic_pattern for queue in config.queue.values()):
            return set()
        found = {one.name for one in Topology(config, {}).wanted()} | definitions_topics(config)
        for name in (*config.queue, *config.sow):
            found.update(topic_names.entity_topics(config.lapse.app_id, name))
        return found if len(found) <= _FEW else set()

    def _look(self, served: bool, patience_s: float, rights: bool, named: Collection[str] = ()) -> Topology:
        if named:
            listed = self._answered(patience_s, lambda within_s: topic_lookup.by_name(self._admin, named, within_s))
        else:
            listed = topic_lookup.Found.in_list(self.metadata(patience_s))
        existing, brokers = {name: len(each) for name, each in listed.replicas.items()}, listed.brokers
        plain = Topology(self._config, existing, brokers=brokers)
        names = heeded(plain) if served else {one.name for one in plain.wanted()} | definitions_topics(self._config)
        if not served:
            names = names.union(*map(plain.sources, plain.entities()))
        settings = self.settings_of(names & existing.keys(), _HEEDED)
        limits = {topic: int(one[MOST_BYTES].value) for topic, one in settings.items()}
        retentions = {topic: Retention.of_settings(one) for topic, one in settings.items()}
        leaderless = listed.leaderless
        copies = {
            name: Copies.of(listed.replicas[name], one, leaderless.get(name, ())) for name, one in settings.items()
        }
        lacks = permission.hidden(self._admin, {one.name for one in plain.wanted()} - existing.keys())
        if rights:
            needed = {topic: some for topic, some in plain.operations().items() if topic in existing}
            lacking, restricted = permission.lacking(self._admin, needed)
            lacks |= lacking
            group = self._config.lapse.app_id
            # A worker waits for the group's coordinator in any case.
            if (served or restricted or lacks) and not permission.may_join(self._admin, group):
                raise GroupRefused(f"the consumer group {group} may not be joined: have Read on it granted to workers")
        return Topology(self._config, existing, limits, retentions, self._access(), copies, brokers, lacks)

    def _access(self) -> Access | None:
        """Return the cluster's rights on topics; None if no users are configured."""
        if not self._config.users:
            return None
        try:
            return access.look(self._admin)
        except KafkaException as error:
            raise TopologyError(f"the cluster does not tell its ACLs: {error.args[0].str()}") from error

    def settings_of(self, topics: Iterable[str], wanted: Collection[str] = ()) -> dict[str, Mapping[str, Any]]:
        """Return the settings of topics, by name and setting, without topics that do not exist or may not be described.

        Args:
            topics: names of the topics.
            wanted: names of settings; others may be returned as well. Empty for all.
        """
        topics = list(topics)
        if wanted and len(topics) > _MANY:
            from lapse.runtime.topics import topic_settings  # aiokafka: not needed by `lapse.testing` (X8)

            with contextlib.suppress(topic_settings.KafkaError, OSError):  # librdkafka may succeed
                return {**topic_settings.of_many(self._config, topics, wanted, _SETTINGS_S)}
        found: dict[str, Mapping[str, Any]] = {}
        late = topics
        for within_s in (*_AT_FIRST_S, _SETTINGS_S):
            described, late = self._described(late, within_s)
            found |= described
            if not late:
                break
            self._admin = admin_client(self._settings)  # a new client finds the brokers anew
        return found

    def _described(self, topics: Iterable[str], within_s: float) -> tuple[dict[str, Mapping[str, Any]], list[str]]:
        """Return the settings of topics, and the topics for which no broker has answered in time."""
        found: dict[str, Mapping[str, Any]] = {}
        late: list[str] = []
        resources = [ConfigResource(ResourceType.TOPIC, topic) for topic in topics]
        parts = parts_of_request(resources, lambda _: 4)
        answers = [self._admin.describe_configs(part, request_timeout=within_s) for part in parts]  # all at once
        for resource, future in itertools.chain.from_iterable(one.items() for one in answers):
            try:
                found[resource.name] = future.result()
            except KafkaException as error:
                if error.args[0].code() in _LATE:
                    late.append(resource.name)
        return found, late

    def alter(self, differences: Iterable[Difference]) -> None:
        """Change settings of topics.

        Raises:
            TopologyError: the cluster refused one.
        """
        settings: dict[str, dict[str, str]] = {}
        for one in differences:
            settings.setdefault(one.topic, {}).update(one.alter)
        resources = [
            ConfigResource(
                ResourceType.TOPIC,
                topic,
                incremental_configs=[
                    ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
                    for name, value in some.items()
                ],
            )
            for topic, some in settings.items()
        ]
        parts = parts_of_request(resources, lambda _: 4)
        changed = (self._admin.incremental_alter_configs(some, request_timeout=_SETTINGS_S) for some in parts)
        for resource, future in itertools.chain.from_iterable(one.items() for one in changed):
            try:
                future.result()
            except KafkaException as error:
                raise TopologyError(f"{resource.name}: could not be changed: {error.args[0].str()}") from error

    def grant(self, differences: Iterable[Difference]) -> None:
        """Grant users and workers the rights that they lack (X4).

        Raises:
            TopologyError: the cluster refused one.
        """
        try:
            access.give(self._admin, [grant for one in differences for grant in one.grants])
        except KafkaException as error:
            raise TopologyError(f"a right could not be given: {error.args[0].str()}") from error

    def hidden(self, topics: Iterable[str]) -> set[str]:
        """Return which of these unlisted topics we may not see if they exist."""
        return {*permission.hidden(self._admin, topics)}

    def revoke(self, topics: Iterable[str]) -> None:
        """Revoke the rights on topics that are removed for good (X4).

        Raises:
            TopologyError: the cluster refused.
        """
        try:
            access.take(self._admin, topics)
        except KafkaException as error:
            raise TopologyError(f"a right could not be taken away: {error.args[0].str()}") from error

    def create(self, topics: Iterable[Wanted]) -> None:
        """Create topics, and wait for some time until the brokers list them.

        Of a new entity all own topics are created that do not exist, whether a broker lists them or not: it lists a
        deleted one for a moment longer, and an entity that was created just then had no changelog (C4).

        Raises:
            TopologyError: the cluster refused one. Nothing was created if it could know that beforehand.
        """
        copies = self._config.lapse.replication_factor
        safe = settings_of_new(copies)
        wanted = with_all_own(self._config, topics)
        new = [NewTopic(topic.name, topic.partitions, copies, config={**safe, **topic.config}) for topic in wanted]
        parts = list(parts_of_request(new, lambda one: 1 + one.num_partitions + len(one.config or ())))
        for request in (partial(self._admin.create_topics, validate_only=True), self._admin.create_topics):
            for some in parts:
                self._create(request, some)
        self._see({one.topic for one in new})

    def remove(self, topics: Iterable[str]) -> None:
        """Delete topics; those that do not exist are passed over.

        Raises:
            TopologyError: the cluster refused one.
        """
        remove_topics(self._admin, topics)

    def remove_entity(self, name: str) -> None:
        """Delete the topics of an entity that no worker serves, the changelog last.

        Raises:
            TopologyError: the cluster does not answer, or refused one.
        """
        there = self.metadata(_PATIENCE_S).topics.keys()
        remove_entity(self._admin, self._config.lapse.app_id, name, there)

    def enlarge(self, topics: Iterable[str], partitions: int) -> None:
        """Add partitions to topics, all in one request.

        Raises:
            TopologyError: the cluster refused one.
        """
        new = [NewPartitions(name, partitions) for name in topics]
        if not new:
            return
        for name, error in topic_creation.create(self._admin.create_partitions, new, _PATIENCE_S).items():
            raise TopologyError(
                f"{name}: could not get {partitions} partitions: {error.args[0].str()}. What was done stays; run "
                "the command again"
            ) from error

    def _see(self, topics: set[str]) -> None:
        """Wait until a broker lists topics that the controller has created, but not forever.

        With hundreds of topics a broker may be a second behind, with thousands a minute. A worker that starts meanwhile
        would not serve their entities. A topic that we may not see is never listed, so a timeout is no error.
        """
        if not topics:
            return
        patience, pause_s = Patience(_PATIENCE_S), _SOON_S
        with contextlib.suppress(KafkaException):
            while missing := topics - self._listed(topics):
                if patience.is_over(-len(missing)):
                    return
                time.sleep(pause_s)
                pause_s = min(2 * pause_s, _AGAIN_S)

    def _listed(self, topics: set[str]) -> AbstractSet[str]:
        """Return which of these topics a broker lists, perhaps with others."""
        if len(topics) <= _FEW:
            return topic_lookup.described_topics(self._admin, topics, _PATIENCE_S).keys()
        return {*self._admin.list_topics(timeout=_PATIENCE_S).topics}

    def _create(self, request: Callable[..., Any], new: list[NewTopic]) -> None:
        for name, error in topic_creation.create(request, new, _PATIENCE_S).items():
            if error.args[0].name() != "TOPIC_ALREADY_EXISTS":
                fault = f"{name}: could not be created: {error.args[0].str().rstrip('.')}"
                raise TopologyError(f"{fault}. Mend that, or have Create on topics granted") from error
