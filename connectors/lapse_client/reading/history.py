"""The life of one message, from the underlying topic, the events, the deliveries and the dead letters (D6).

A message that is forwarded, redriven or handed over continues as another record. Its life includes these (C59).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, KafkaError, Message, TopicPartition

from lapse.core import lifetime
from lapse.core.letter import FORWARDER
from lapse.core.lifetime import NO_TIMESTAMP
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.event import EventKind
from lapse_client.error import LapseError, NoRecord
from lapse_client.kafka.connection import Connection, entities
from lapse_client.kafka.fault import raise_if_unreadable
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.log_offsets import log_bounds
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S
from lapse_client.queue import waiting
from lapse_client.reading.causal_order import in_causal_order
from lapse_client.reading.lineage import Lineage, Step
from lapse_client.reading.moment import ABORTED, ARRIVED, DEAD_LETTER, END, Moment, Watcher, is_about
from lapse_client.reading.moment_search import MomentSearch

_PRODUCERS_CLOCK_MS: Final = 300_000
"""How far a producer's clock may be ahead of the broker's without looking further for the arrival, in ms."""

_FOLLOWING: Final = 100
"""How many later records of the partition say when a message had arrived, if producers stamp them."""

_LONGEST_CHAIN: Final = 50
"""The most messages whose lives are combined."""

_NO_EVENTS: Final = (".commands", ".deliveries", ".decisions")
"""Suffixes of topics without events. An entity's name may begin like a topic of events, so the prefix is not enough."""

_EVERY: Final = {"isolation.level": "read_uncommitted"}
"""Options of a consumer that reads records of open and aborted transactions, too."""

HIDDEN: Final = "hidden"
"""What is shown of a record behind an open transaction: it may be part of it, and nobody reads it yet (C41)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The life of one message.

    Attributes:
        bookmark: bookmark of the message.
        found: whether Kafka still has its record.
        missing: a text that says why there is no record; empty if there is one.
        size: size of its value in bytes; None for a tombstone, or without a record.
        moments: the moments of its life, in order.
        silent: queues that did not answer when they were asked what the message waits for.
        hidden: topics that tell of such messages, and that the brokers hide from this user.
    """

    bookmark: Bookmark
    found: bool
    missing: str = ""
    size: int | None = None
    moments: list[Moment] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)
    hidden: list[str] = field(default_factory=list)


def history(
    bookmark: Bookmark | str,
    *,
    entity: str | None = None,
    connection: Connection | None = None,
    watcher: Watcher = lambda name, done, total: None,
) -> History:
    """Find everything that happened to a message.

    Args:
        bookmark: bookmark of the message.
        entity: the queue or SOW topic of interest, also a deleted one; None = all of them.
        connection: connection to the cluster; from the environment by default.
        watcher: called with the progress of the search; see `Watcher`.

    Raises:
        ValueError: the bookmark is not valid.
        UnknownEntity: there is no such topic or entity.
        NoRecord: the message's partition ends before it, or nothing shows that a rewind brought it back (C61).
        LapseError: a topic cannot be read.
    """
    name = bookmark if isinstance(bookmark, Bookmark) else Bookmark.parse(bookmark)
    cluster = connection or Connection.from_environment()
    topics = cluster.partitions(name.topic)
    known = sorted({*entities(topics, sow=False), *entities(topics, sow=True), *_entities_with_events(topics)})
    if entity is not None and entity not in known:
        raise cluster.unknown("queue or SOW topic", entity, known, topic.commands(entity))
    if name.partition >= topics.get(name.topic, 0):
        raise cluster.no_partition(f"{name.topic}:{name.partition}", topics)
    end = _bounds(cluster, name, **_EVERY)[1]
    if name.log_offset >= end:
        raise NoRecord(f"{name} does not exist: its partition ends before offset {end}. Correct the bookmark")
    bounds = _bounds(cluster, name)  # before the record is read: a transaction that ends meanwhile counts as open
    record = _record(cluster, name)
    chain = _Chain(cluster, topics, known if entity is None else [entity], watcher)
    moments = chain.moments(name, record)
    if entity is not None:
        moments = [moment for moment in moments if is_about(moment.message, name)]
    waits, silent = _waits_for(name, known if entity is None else [entity], topics, moments, cluster)
    moments += waits
    moments = in_causal_order(moments, chain.links)
    missing = ""
    if record is None:
        missing, record, what = _missing(cluster, name, bounds)
        if record is not None:
            at_ms = record.timestamp()[1]
            moments.insert(0, Moment(at_ms=at_ms, entity="", what=what, facts={}, shown_by=name, message=name))
    value = None if record is None else record.value()
    size = None if value is None else len(value)
    hidden = _hidden(known if entity is None else [entity], topics, cluster)
    if name.generation and not (hidden or silent):
        _check_generation(name, moments)
    return History(
        bookmark=name, found=not missing, missing=missing, size=size, moments=moments, silent=silent, hidden=hidden
    )


def _check_generation(name: Bookmark, moments: Sequence[Moment]) -> None:
    """Check that something shows that a rewind brought a message back (C61).

    Raises:
        NoRecord: nothing does.
    """
    if all(one.message != name or one.what == ARRIVED or "from" in one.facts for one in moments):
        raise NoRecord(
            f"nothing is known of {name}: no rewind {name.generation} brought it back, or its events are gone. "
            f"Correct the bookmark; without ~{name.generation} all that is known of the record is shown"
        )


def _hidden(of: Sequence[str], topics: Mapping[str, int], connection: Connection) -> list[str]:
    """Return the topics of events and deliveries that this user may not see."""
    wanted = [topic.events(one) for one in of]
    if not connection.user:  # others have a topic of deliveries only where they have an entitlement
        wanted += [topic.deliveries(one) for one in of]
    return connection.unseen(name for name in wanted if name not in topics)


def _entities_with_events(topics: Mapping[str, int]) -> Iterator[str]:
    """Yield the entities with topics of events, deleted entities included, as their events and letters stay."""
    prefix = topic.events("")
    for name in topics:
        if name.startswith(prefix) and not name.endswith(_NO_EVENTS):
            yield name.removeprefix(prefix)


class _Chain:
    """Finds the moments of a message, of its predecessors and of its successors (C59).

    Attributes:
        links: pairs of messages that were found, the earlier one first.
    """

    def __init__(self, connection: Connection, topics: Mapping[str, int], of: Sequence[str], watcher: Watcher) -> None:
        self._connection = connection
        self._topics = topics
        self._entities = of
        self._watcher = watcher
        self.links: list[tuple[Bookmark, Bookmark]] = []
        cluster = str(connection.admin().list_topics(timeout=METADATA_TIMEOUT_S).cluster_id)
        self._lineage = Lineage(connection, cluster, topics, lambda done, total: watcher("steps", done, total))

    def moments(self, name: Bookmark, record: Message | None) -> list[Moment]:
        """Return all moments of a message and of its chain."""
        moments: list[Moment] = []
        steps: dict[tuple[Bookmark, Bookmark], Step] = {}
        ways: list[tuple[Bookmark, Message | None]] = [(name, record)]
        seen = {name}
        while ways and len(seen) <= _LONGEST_CHAIN:
            bookmark, found = ways.pop(0)
            life = self._life(bookmark, found)
            moments += life
            for step in self._steps(bookmark, found, life):
                steps[step.before, step.after] = step
                for other in (step.before, step.after):
                    # Chains of versions have no end, so only the neighbours of each message are named.
                    if not _is_shown(other, seen) and not step.cluster and step.what != "replaced":
                        seen.add(other)
                        ways.append((other, self._find_record(other)))
        self.links = list(steps)
        for step in steps.values():
            facts = {"from": str(step.before), "to": str(step.after), "cluster": step.cluster, "detail": step.detail}
            moments.append(
                Moment(
                    at_ms=step.at_ms,
                    entity=step.entity,
                    what=step.what,
                    facts={title: fact for title, fact in facts.items() if fact},
                    shown_by=step.after,
                    message=step.before if _is_shown(step.before, seen) else step.after,
                )
            )
        return moments

    def _life(self, bookmark: Bookmark, record: Message | None) -> list[Moment]:
        """Return the moments of one message."""
        moments: list[Moment] = []
        since_ms, at_ms = None, NO_TIMESTAMP
        if record is not None:
            at_ms = record.timestamp()[1]
            since_ms = _earliest_ms(self._connection, bookmark, record)
            facts = _header_facts(record)
            moments.append(
                Moment(at_ms=at_ms, entity="", what=ARRIVED, facts=facts, shown_by=bookmark, message=bookmark)
            )
        search = MomentSearch(self._connection, bookmark, self._entities, self._topics, since_ms, self._watcher, at_ms)
        return [*moments, *search.moments()]

    def _steps(self, bookmark: Bookmark, record: Message | None, life: Sequence[Moment]) -> Iterator[Step]:
        lineage = self._lineage
        if record is not None:
            yield from lineage.origin(bookmark, record)
        for moment in life:
            facts = moment.facts
            if moment.what in _FORWARDING and facts.get("subscription") == FORWARDER:
                yield from lineage.forwarded(moment.message, moment.entity, moment.at_ms)
            elif moment.what == EventKind.TRANSFERRED:
                yield from lineage.transferred(moment.message, moment.entity, facts.get("detail", ""), moment.at_ms)
            elif moment.what == DEAD_LETTER and facts["lapse_id"]:
                yield from lineage.redriven(bookmark, moment.entity, facts["lapse_id"])
                yield from lineage.letter_step(bookmark, moment.entity, moment.shown_by, moment.at_ms)
        ended = {moment.entity for moment in life if moment.what in END or moment.what == EventKind.IGNORED}
        yield from lineage.versions(bookmark, record, self._entities, ended)

    def _find_record(self, name: Bookmark) -> Message | None:
        """Return the record of a message of the chain; None if Kafka no longer has it."""
        try:
            return _record(self._connection, name) if name.partition < self._topics.get(name.topic, 0) else None
        except LapseError:
            return None


def _is_shown(message: Bookmark, seen: Iterable[Bookmark]) -> bool:
    """Return whether the life of a message is shown: as itself, or as one generation of its record."""
    return any(is_about(message, one) for one in seen)


_FORWARDING: Final = frozenset({EventKind.ACKNOWLEDGED, EventKind.DELIVERED_AT_MOST_ONCE})
"""The events of the forwarder's messages: an at-most-once queue has removed them before it sends them (Q6)."""


def _waits_for(
    name: Bookmark, of: Sequence[str], topics: Mapping[str, int], moments: Sequence[Moment], connection: Connection
) -> tuple[list[Moment], list[str]]:
    """Return what a message waits for now, such as a barrier for others, or a dying one for its letter (C48).

    The queues with events of the message are asked, unless it has left them. If no queue has events of it, as with a
    barrier, the queue with its topic's name and some others are asked. Silent queues are returned, too.
    """
    over = {one.entity for one in moments if one.what in END and one.message == name}
    reporting = {one.entity for one in moments if one.entity and one.message == name}
    queues = set(entities(topics, sow=False)).intersection(reporting or of) - over
    found, silent = waiting.ask(name, queues.intersection(of), connection)
    at_ms = int(connection.clock.now_ms()) if found else 0
    moments = [
        Moment(
            at_ms=at_ms,
            entity=entity,
            what="waits",
            facts={"state": one.state, "waits_for": one.waits_for},
            shown_by=name,
            message=name,
        )
        for entity, one in found.items()
    ]
    # Other silent queues may not have the message at all.
    return moments, [entity for entity in silent if entity in reporting or entity == name.topic]


def _missing(connection: Connection, name: Bookmark, bounds: tuple[int, int]) -> tuple[str, Message | None, str]:
    """Return why no committed record has a bookmark; also the record if it was not committed, and what it is then.

    Args:
        connection: the cluster.
        name: the bookmark.
        bounds: the first offset of its partition, and the end of committed records, from before one was looked for.
    """
    record = _record(connection, name, **_EVERY)
    if record is not None and name.log_offset >= bounds[1]:
        text = (
            f"it is behind a transaction that begins at offset {bounds[1]} and is neither committed nor aborted, "
            "or is part of it. No entity reads it before that ends"
        )
        return text, record, HIDDEN
    if record is not None:
        return "its transaction was aborted, so no entity has seen it", record, ABORTED
    if name.log_offset < bounds[0]:
        return "Kafka no longer has the record", None, ""
    return (
        "no record has this offset: it belongs to a transaction's end, or compaction has removed the record",
        None,
        "",
    )


def _bounds(connection: Connection, name: Bookmark, **options: str) -> tuple[int, int]:
    """Return the first offset of a message's partition and its end, by default that of committed records."""
    consumer = connection.consumer(**options)
    try:
        return log_bounds(consumer, TopicPartition(name.topic, name.partition))
    finally:
        consumer.close()


def _record(connection: Connection, name: Bookmark, **options: str) -> Message | None:
    """Return the message's record; None if there is none that is committed, or Kafka no longer has it.

    Raises:
        LapseError: the brokers do not let this user read its topic.
    """
    consumer = connection.consumer(**{"enable.partition.eof": True, **options})
    try:
        tp = TopicPartition(name.topic, name.partition, name.log_offset)
        low, end = log_bounds(consumer, tp)
        if not low <= name.log_offset < end:
            return None
        consumer.assign([tp])
        while True:
            message = consumer.poll(10)
            error = None if message is None else message.error()
            if error is not None and error.code() == KafkaError.GROUP_AUTHORIZATION_FAILED:
                continue  # librdkafka; no group is needed
            if error is not None and error.code() == KafkaError.TOPIC_AUTHORIZATION_FAILED:
                raise_if_unreadable(name.topic, error)
            if message is None or error is not None:
                return None
            return message if message.offset() == name.log_offset else None
    finally:
        consumer.close()


def _earliest_ms(connection: Connection, name: Bookmark, record: Message) -> int | None:
    """Return an instant before which nothing happened to a message, ms since the epoch; None = not known.

    A producer's timestamp may be hours ahead of the broker's clock (C6). The records behind the message arrived later,
    so their timestamps count as well.
    """
    kind, at_ms = record.timestamp()
    if kind != TIMESTAMP_CREATE_TIME:
        return at_ms
    earliest_ms = min([at_ms, *_following_ms(connection, name)]) - _PRODUCERS_CLOCK_MS
    return None if earliest_ms > connection.clock.now_ms() else earliest_ms


def _following_ms(connection: Connection, name: Bookmark) -> list[int]:
    """Return the timestamps of the next records of a message's partition that have one, ms since the epoch."""
    found: list[int] = []
    consumer = connection.consumer(**{"enable.partition.eof": True})
    try:
        tp = TopicPartition(name.topic, name.partition, name.log_offset + 1)
        if tp.offset >= log_bounds(consumer, tp)[1]:
            return found
        consumer.assign([tp])
        while len(found) < _FOLLOWING and (message := consumer.poll(10)) is not None:
            error = message.error()
            if error is None:
                found.append(message.timestamp()[1])
            elif error.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # librdkafka; no group is needed
                break
        return [at_ms for at_ms in found if at_ms >= 0]
    finally:
        consumer.close()


def _header_facts(record: Message) -> dict[str, Any]:
    """Return the facts about a message's life in its record's headers."""
    own = lifetime.NAMES | {
        header.COMMAND,
        header.MESSAGE_ID,
        header.REDRIVE_QUEUE,
        header.REDRIVEN_COUNT,
        header.RETRY_DELAY_MS,
        header.TRANSFER,
        header.TRANSFER_FROM,  # at the destination, all that tells of a source in another cluster
        header.TRANSFER_COUNTS,
    }
    facts: dict[str, Any] = {}
    for name, value in headers_of(record):
        if name in own and value is not None:
            facts[name] = value.hex(" ") if name == lifetime.EXPIRE_TIME else value.decode("utf-8", "replace")
    return facts
