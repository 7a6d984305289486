"""The process behind `lapse replicate`: reads compacted topics upstream, and writes underlying topics downstream (S10).

Records and progress are written in one transaction, whose id names the link. So a crash repeats nothing and leaves
nothing out, and of two processes on one link the later one goes on and the earlier one ends.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import (
    OFFSET_BEGINNING,
    Consumer,
    KafkaError,
    KafkaException,
    Producer,
    TopicCollection,
    TopicPartition,
)
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from lapse import topic_creation
from lapse.controller import admin_client
from lapse.log_limit import LogLimit
from lapse.protocol import topic as names
from lapse.replication import progress
from lapse.replication.copier import Copier
from lapse.replication.link import Link
from lapse.replication.link_error import GRANT, LinkError
from lapse.replication.progress import Progress
from lapse.replication.translation import Translation
from lapse.runtime.kafka import security
from lapse.runtime.topics.replication import settings_of_new
from lapse.topic_creation import NewTopic
from lapse_client.kafka.connection import Connection, entities
from lapse_client.kafka.fault import FENCED, LACKS_RIGHT
from lapse_client.kafka.log_offsets import log_bounds

logger = logging.getLogger(__name__)

_BATCH: Final = 2_000
_WAIT_S: Final = 0.1
_PATIENCE_S: Final = 30.0
_LOOK_S: Final = 20.0
"""How often to see whether the topics are still there, s. A consumer is not told that its topic was deleted."""
_RETRY_S: Final = 1.0
_SET_WITHIN_S: Final = 5.0
"""How long to try until the downstream's progress topic has the broker's timestamps, s."""
_END_WITHIN_S: Final = 5.0
"""How long to wait until brokers know where the topics upstream end, s."""
_MOST_BYTES: Final = 1_000_000_000
"""The largest record that this client sends, bytes. The brokers know what a topic takes."""

_QUIET: Final = {"log_level": 2}
"""librdkafka logs critical faults only: errors come back from the calls."""

_NOT_SEEN: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError.TOPIC_AUTHORIZATION_FAILED})


class Replicator:
    """Replicates one link.

    Args:
        link: source, target and topics.
        on_written: called after each transaction with the number of records written.
        opened: called once both sides have let the link begin.
    """

    def __init__(
        self, link: Link, on_written: Callable[[int], None] = lambda _: None, opened: Callable[[], None] = lambda: None
    ) -> None:
        self._link = link
        self._on_written = on_written
        self._opened: Callable[[], None] | None = opened
        self._stopped = threading.Event()
        self._from = {"bootstrap.servers": link.upstream, **security.for_librdkafka(link.from_security)}
        self._to = {"bootstrap.servers": link.downstream, **security.for_librdkafka(link.to_security)}

    def stop(self) -> None:
        """Let `run` return after the transaction under way."""
        self._stopped.set()

    def run(self) -> None:
        """Replicate until `stop` is called. While one side does not answer, try again and again.

        Raises:
            LinkError: the link cannot work as it is.
        """
        limit = LogLimit()
        while not self._stopped.is_set():
            try:
                self._session()
            except KafkaException as error:
                fault = error.args[0]
                if fault.code() in FENCED:
                    raise LinkError("another `lapse replicate` has taken over this link; this one ends") from error
                if fault.code() in LACKS_RIGHT:
                    raise LinkError(f"{fault.str().rstrip('.')}. {GRANT}") from error
                if limit.allows(fault.str(), time.monotonic()):
                    logger.warning("%s; trying again", fault.str())
                self._stopped.wait(_RETRY_S)

    def _session(self) -> None:
        """Open the link, and copy until `stop` is called or a topic was created again.

        Raises:
            KafkaException: one side does not answer.
            LinkError: the link cannot work as it is.
        """
        upstream = admin_client({**self._from, **_QUIET})
        downstream = admin_client({**self._to, **_QUIET})
        breadths = self._breadths(upstream, downstream)
        source, target = _cluster_id(upstream), _cluster_id(downstream)
        if source == target:
            raise LinkError(
                f"{self._link.upstream} and {self._link.downstream} are one Kafka cluster; a replica needs its own"
            )
        self._make_progress_topic(downstream)
        producer = self._producer(source)
        ids, replicas = self._topic_ids(upstream, downstream), self._replicas(downstream)
        reached = Progress(source, target, ids, replicas)
        consumer = self._consumer()
        try:
            copier = Copier(consumer, producer, Translation(source, target), reached, self._link, breadths)
            if not copier.open() and self._keep_stamps(downstream):
                # Brokers learn of a setting a moment after it was set.
                until_s = time.monotonic() + _SET_WITHIN_S
                while not copier.open() and time.monotonic() < until_s and not self._stopped.wait(_WAIT_S):
                    pass
            reached.read({**self._to, **_QUIET}, copier.progress_end)
            consumer.assign(self._starts(consumer, upstream, reached))
            if self._opened is not None:
                self._opened()
                self._opened = None
            looked_s = time.monotonic()
            while not self._stopped.is_set():
                if written := copier.step():
                    self._on_written(written)
                if time.monotonic() - looked_s >= _LOOK_S:
                    now = self._breadths(upstream, downstream), self._topic_ids(upstream, downstream)
                    if (*now, self._replicas(downstream)) != (breadths, ids, replicas):
                        logger.warning(
                            "topics of this link were created again, or have other partitions; beginning anew"
                        )
                        return
                    looked_s = time.monotonic()
        finally:
            consumer.close()

    def _producer(self, source: str) -> Producer:
        """Return a producer with the link's transactional id. Another one with that id ends."""
        producer = Producer(
            {
                **self._to,
                **_QUIET,
                "transactional.id": self._link.transactional_id(source),
                "transaction.timeout.ms": int(_PATIENCE_S * 1000),
                "linger.ms": 1,
                "message.max.bytes": _MOST_BYTES,
                "partitioner": "murmur2_random",
            }
        )
        producer.init_transactions(_PATIENCE_S)
        return producer

    def _consumer(self) -> Consumer:
        """Return a consumer of committed records upstream. It commits no offsets: the progress has them."""
        return Consumer(
            {
                **self._from,
                **_QUIET,
                "group.id": "lapse-replicate",
                "enable.auto.commit": False,
                "auto.offset.reset": "earliest",
                "isolation.level": "read_committed",
                "fetch.wait.max.ms": 50,
            }
        )

    def _breadths(self, upstream: AdminClient, downstream: AdminClient) -> dict[str, tuple[int, int]]:
        """Return for each compacted topic its number of partitions, and that of the underlying topic downstream.

        Raises:
            LinkError: a topic is missing, or we may not see it.
        """
        above = upstream.list_topics(timeout=_PATIENCE_S).topics
        below = downstream.list_topics(timeout=_PATIENCE_S).topics
        breadths: dict[str, tuple[int, int]] = {}
        for name, underlying in self._link.topics.items():
            compacted = names.sow(name)
            if compacted not in above:
                there = Connection(self._link.upstream, security.for_librdkafka(self._link.from_security))
                known = entities(dict.fromkeys(above, 1), sow=True)
                raise LinkError(f"{self._link.upstream}: {there.unknown('SOW topic', name, known, compacted)}")
            if underlying not in below:
                there = Connection(self._link.downstream, security.for_librdkafka(self._link.to_security))
                if hidden := there.hidden(underlying):
                    raise LinkError(f"{self._link.downstream}: {hidden}")
                raise LinkError(
                    f"{self._link.downstream} has no topic {underlying}; run `lapse apply` there, "
                    f"or name its underlying topic: --topic {name}=TOPIC"
                )
            if names.is_own(underlying, below):
                where = f"{underlying} at {self._link.downstream}"
                raise LinkError(f"{where} is a changelog, which only lapse writes; name another topic for {name}")
            breadths[compacted] = len(above[compacted].partitions), len(below[underlying].partitions)
        return breadths

    def _topic_ids(self, upstream: AdminClient, downstream: AdminClient) -> dict[str, str]:
        """Return, by compacted topic, its id and the id of the downstream topic, since names may be reused."""
        sources = [names.sow(name) for name in self._link.topics]
        above = upstream.describe_topics(TopicCollection(sources), request_timeout=_PATIENCE_S)
        targets = TopicCollection(list(self._link.topics.values()))
        below = downstream.describe_topics(targets, request_timeout=_PATIENCE_S)
        return {
            source: f"{above[source].result().topic_id}>{below[target].result().topic_id}"
            for source, target in zip(sources, self._link.topics.values(), strict=True)
        }

    def _replicas(self, downstream: AdminClient) -> dict[str, str]:
        """Return, by name, the ids of the compacted topics that are there downstream, as far as we may see them."""
        wanted = TopicCollection([names.sow(name) for name in self._link.topics])
        found: dict[str, str] = {}
        for name, described in downstream.describe_topics(wanted, request_timeout=_PATIENCE_S).items():
            try:
                found[name] = str(described.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() not in _NOT_SEEN:
                    raise
        return found

    def _make_progress_topic(self, downstream: AdminClient) -> None:
        copies = self._link.replication_factor
        new = NewTopic(progress.TOPIC, 1, copies, config={**progress.CONFIG, **settings_of_new(copies)})
        for error in topic_creation.create(downstream.create_topics, [new], _PATIENCE_S).values():
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise error

    def _keep_stamps(self, downstream: AdminClient) -> bool:
        """Set the timestamp type of a topic that an older version created; return whether that succeeded."""
        resource = ConfigResource(ResourceType.TOPIC, progress.TOPIC)
        name, set_it = "message.timestamp.type", AlterConfigOpType.SET
        resource.add_incremental_config(ConfigEntry(name, progress.CONFIG[name], incremental_operation=set_it))
        try:
            downstream.incremental_alter_configs([resource], request_timeout=_PATIENCE_S)[resource].result()
        except KafkaException as error:
            logger.warning(
                "the topic %s could not get %s=%s, so this machine's clock counts: %s",
                progress.TOPIC, name, progress.CONFIG[name], error.args[0].str(),
            )  # fmt: skip
            return False
        return True

    def _starts(self, consumer: Consumer, upstream: AdminClient, reached: Progress) -> list[TopicPartition]:
        """Return the positions from which to read.

        A broker that has just begun to lead a partition may say that it ends earlier, so it is asked again for a while.
        """
        starts: list[TopicPartition] = []
        until_s = time.monotonic() + _END_WITHIN_S
        topics = upstream.list_topics(timeout=_PATIENCE_S).topics
        for name in map(names.sow, self._link.topics):
            for partition in topics[name].partitions:
                taken = reached.next_offset(name, partition)
                tp = TopicPartition(name, partition, OFFSET_BEGINNING if taken is None else taken)
                while tp.offset > (end := log_bounds(consumer, tp)[1]) and time.monotonic() < until_s:
                    self._stopped.wait(_WAIT_S)
                if tp.offset > end:
                    logger.warning("%s, partition %d: created again upstream; read from its beginning", name, partition)
                    tp.offset = OFFSET_BEGINNING
                starts.append(tp)
        return starts


def _cluster_id(admin: AdminClient) -> str:
    return str(admin.list_topics(timeout=_PATIENCE_S).cluster_id)
