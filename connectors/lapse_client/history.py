"""The life of one message, from the underlying topic, the events, the deliveries and the dead letters (D6).

A message that is forwarded, redriven or handed over goes on as another record: its life is told to the end (C59).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message, TopicPartition

from lapse.core import lifetime
from lapse.core.generation import generation_of, position_of
from lapse.core.letter import FORWARDER
from lapse.protocol import event as events
from lapse.protocol import header, packed_delivery, reference, topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.codec import CodecError
from lapse.protocol.event import TERMINAL, EventKind
from lapse_client import dead_letter, waiting
from lapse_client.connection import Connection, entities, log_bounds
from lapse_client.error import LapseError, NoRecord, UnknownEntity
from lapse_client.headers import headers_of
from lapse_client.lineage import Lineage, Step, place
from lapse_client.metadata import METADATA_TIMEOUT_S
from lapse_client.span import span

_AFTERWARDS_MS: Final = 60_000
"""How long after a message's end its events are read: after a crash they may come twice."""

_PRODUCERS_CLOCK_MS: Final = 300_000
"""So far a producer's clock may be ahead of the broker's without anything being overlooked."""

_LONGEST_CHAIN: Final = 50
"""Messages whose lives are told together."""

DEAD_LETTER: Final = "dead letter"

_END: Final = TERMINAL | {EventKind.DELETED}
Watcher = Callable[[str, int, int], None]
"""Told what is read, how many offsets are done with, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One thing that happened to a message.

    Attributes:
        at_ms: when it counts, ms since the epoch.
        entity: the queue or SOW topic; empty for the record itself.
        what: `arrived`, `delivered`, `dead letter`, the event's kind, or `waits`: what it waits for now.
        facts: what is known of it, by name.
        told: bookmark of the record that tells it.
        message: whose life it belongs to: the message itself, or one that it was before or has become (C59).
    """

    at_ms: int
    entity: str
    what: str
    facts: dict[str, Any]
    told: Bookmark
    message: Bookmark


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The life of one message.

    Attributes:
        bookmark: which message.
        found: whether Kafka still has its record.
        size: bytes of its value; None without a record, or of a tombstone.
        moments: what happened, in order.
        silent: queues that did not answer when they were asked what the message waits for.
    """

    bookmark: Bookmark
    found: bool
    size: int | None = None
    moments: list[Moment] = field(default_factory=list)
    silent: list[str] = field(default_factory=list)


def history(
    bookmark: Bookmark | str,
    *,
    entity: str | None = None,
    connection: Connection | None = None,
    watcher: Watcher = lambda name, done, total: None,
) -> History:
    """Find everything that happened to a message.

    Args:
        bookmark: which one.
        entity: the queue or SOW topic of interest; None = all that tell something of it.
        connection: the cluster; from the environment by default.
        watcher: told how far it is.

    Raises:
        ValueError: the text is no bookmark.
        UnknownEntity: there is no such topic, or no such entity.
        NoRecord: the message's partition ends before it.
        LapseError: a topic cannot be read.
    """
    name = Bookmark.parse(bookmark) if isinstance(bookmark, str) else bookmark
    cluster = connection or Connection.from_environment()
    topics = cluster.partitions(name.topic)
    known = sorted({*entities(topics, sow=False), *entities(topics, sow=True)})
    if entity is not None and entity not in known:
        raise cluster.unknown("queue or SOW topic", entity, known, topic.commands(entity))
    if name.partition >= topics.get(name.topic, 0):
        raise UnknownEntity("partition", f"{name.topic}:{name.partition}", topics)
    record = _record(cluster, name)
    moments = _Chain(cluster, topics, known if entity is None else [entity], watcher).moments(name, record)
    if entity is not None:
        moments = [moment for moment in moments if _is_of(moment.message, name)]
    waits, silent = _waits(name, known if entity is None else [entity], topics, moments, cluster)
    moments += waits
    moments.sort(key=lambda moment: (moment.at_ms, _RANK.get(moment.what, 1)))
    value = None if record is None else record.value()
    size = None if value is None else len(value)
    return History(bookmark=name, found=record is not None, size=size, moments=moments, silent=silent)


class _Chain:
    """Tells the lives of a message, of those that it was before and of those that it has become (C59)."""

    def __init__(self, connection: Connection, topics: Mapping[str, int], of: Sequence[str], watcher: Watcher) -> None:
        self._connection = connection
        self._topics = topics
        self._entities = of
        self._watcher = watcher
        cluster = str(connection.admin().list_topics(timeout=METADATA_TIMEOUT_S).cluster_id)
        self._lineage = Lineage(connection, cluster, topics, lambda done, total: watcher("steps", done, total))

    def moments(self, name: Bookmark, record: Message | None) -> list[Moment]:
        """All that is told of a message and of its chain."""
        told: list[Moment] = []
        steps: dict[tuple[Bookmark, Bookmark], Step] = {}
        ways: list[tuple[Bookmark, Message | None]] = [(name, record)]
        seen = {name}
        while ways and len(seen) <= _LONGEST_CHAIN:
            bookmark, found = ways.pop(0)
            life = self._life(bookmark, found)
            told += life
            for step in self._steps(bookmark, found, life):
                steps[step.before, step.after] = step
                for other in (step.before, step.after):
                    # Versions replace each other without end: of each message the neighbours are named.
                    if other not in seen and not step.cluster and step.what != "replaced":
                        seen.add(other)
                        ways.append((other, self._found(other)))
        for step in steps.values():
            facts = {"from": str(step.before), "to": str(step.after), "cluster": step.cluster, "detail": step.detail}
            told.append(
                Moment(
                    at_ms=step.at_ms,
                    entity=step.entity,
                    what=step.what,
                    facts={title: fact for title, fact in facts.items() if fact},
                    told=step.after,
                    message=step.before if step.before in seen else step.after,
                )
            )
        return told

    def _life(self, bookmark: Bookmark, record: Message | None) -> list[Moment]:
        """What is told of one message."""
        moments: list[Moment] = []
        since_ms = None
        if record is not None:
            kind, at_ms = record.timestamp()
            since_ms = at_ms - _PRODUCERS_CLOCK_MS if kind == TIMESTAMP_CREATE_TIME else at_ms
            facts = _said(record)
            moments.append(Moment(at_ms=at_ms, entity="", what="arrived", facts=facts, told=bookmark, message=bookmark))
        search = _Search(self._connection, bookmark, self._entities, self._topics, since_ms, self._watcher)
        return [*moments, *search.events(), *search.deliveries(), *search.letters()]

    def _steps(self, bookmark: Bookmark, record: Message | None, life: Sequence[Moment]) -> Iterator[Step]:
        lineage = self._lineage
        if record is not None:
            yield from lineage.origin(bookmark, record)
        for moment in life:
            facts = moment.facts
            if moment.what == EventKind.ACKNOWLEDGED and facts.get("subscription") == FORWARDER:
                yield from lineage.forwarded(bookmark, moment.entity, moment.at_ms)
            elif moment.what == EventKind.TRANSFERRED:
                yield from lineage.transferred(bookmark, moment.entity, facts.get("detail", ""), moment.at_ms)
            elif moment.what == DEAD_LETTER and facts["lapse_id"]:
                yield from lineage.redriven(bookmark, moment.entity, facts["lapse_id"])
        yield from lineage.versions(bookmark, record, self._entities)

    def _found(self, name: Bookmark) -> Message | None:
        """The record of a message of the chain; None if there is none any more."""
        try:
            return _record(self._connection, name) if name.partition < self._topics.get(name.topic, 0) else None
        except LapseError:
            return None


_RANK: Final = {"arrived": 0, DEAD_LETTER: 2}
"""What is told of the same millisecond: the record first, its letter last."""


class _Search:
    """Looks for a message in the topics of entities: first the events, which say where else there is something."""

    def __init__(
        self,
        connection: Connection,
        bookmark: Bookmark,
        of: Sequence[str],
        topics: Mapping[str, int],
        since_ms: int | None,
        watcher: Watcher,
    ) -> None:
        self._connection = connection
        self._bookmark = bookmark
        self._entities = of
        self._topics = topics
        self._since_ms = since_ms
        self._watcher = watcher
        self._over_ms: dict[str, int] = {}
        self._letters: dict[str, int] = {}

    def events(self) -> Iterator[Moment]:
        """What the events tell."""
        of = {topic.events(entity): entity for entity in self._entities}
        for message in self._span("events", of, self._since_ms, of):
            try:
                told = events.decode(message.value() or b"")
            except (CodecError, TypeError):
                continue
            found = self._first_in(told.messages)
            if found is None:
                continue
            written_ms = message.timestamp()[1]
            entity = of[message.topic() or ""]
            if told.event in _END:
                self._over_ms[entity] = written_ms + _AFTERWARDS_MS
            if told.dead_letter_topic:
                self._letters[told.dead_letter_topic] = min(
                    written_ms, self._letters.get(told.dead_letter_topic, written_ms)
                )
            yield Moment(
                at_ms=told.at_ms,
                entity=entity,
                what=told.event,
                facts=_facts(told),
                told=place(message),
                message=found,
            )

    def deliveries(self) -> Iterator[Moment]:
        """Where the message was handed out."""
        of = {
            name: entity
            for entity in self._entities
            for name in (topic.deliveries(entity), *topic.private_deliveries(entity, self._topics))
        }
        for message in self._span("deliveries", of, self._since_ms, of):
            found = self._delivered(message)
            if found is not None:
                name, facts = found
                entity, at_ms = of[message.topic() or ""], message.timestamp()[1]
                yield Moment(
                    at_ms=at_ms,
                    entity=entity,
                    what="delivered",
                    facts=facts,
                    told=place(message),
                    message=name,
                )

    def letters(self) -> Iterator[Moment]:
        """The dead letters that the events speak of; each is written just before its event."""
        if not self._letters:
            return
        since_ms = min(self._letters.values()) - _AFTERWARDS_MS
        for message in self._span("dead letters", self._letters, since_ms, {}):
            letter = dead_letter.read(message)
            if letter.origin is not None and _is_of(letter.origin, self._bookmark) and letter.entity in self._entities:
                yield Moment(
                    at_ms=letter.timestamp_ms,
                    entity=letter.entity,
                    what=DEAD_LETTER,
                    facts={"lapse_id": letter.lapse_id, "message": letter.message},
                    told=letter.bookmark,
                    message=letter.origin,
                )

    def _span(self, what: str, names: Iterable[str], since_ms: int | None, of: Mapping[str, str]) -> Iterator[Message]:
        return span(
            self._connection,
            {name: self._topics[name] for name in names if name in self._topics},
            since_ms,
            lambda name: self._over_ms.get(of.get(name, "")),
            lambda done, total: self._watcher(what, done, total),
        )

    def _first_in(self, some: Iterable[BookmarkRange]) -> Bookmark | None:
        """Which generation of the message is the first that some ranges name (C61); None if they name none."""
        for one in some:
            if (one.topic, one.partition) == self._bookmark[:2]:
                position = position_of(self._bookmark.log_offset, generation_of(one.first))
                found = self._bookmark._replace(offset=position)
                if one.first <= position <= one.last and _is_of(found, self._bookmark):
                    return found
        return None

    def _delivered(self, message: Message) -> tuple[Bookmark, dict[str, Any]] | None:
        """What a record of the deliveries topic says of a delivery of the message, and of which generation.

        None if it is about others.
        """
        name: Bookmark | None
        fields = dict(headers_of(message))
        kind = (fields.get(header.KIND) or b"").decode()
        facts: dict[str, Any] = {}
        if kind == "reference":
            try:
                told = reference.decode(message.value() or b"")
            except CodecError:
                return None
            name = self._first_in(told.ranges)
            if name is None:
                return None
            counts = [some.delivery_count for some in told.ranges if some.first <= name.offset <= some.last]
            facts["delivery_count"] = counts[0]
        elif kind == "packed":
            try:
                packed = packed_delivery.decode(message.value() or b"")
            except CodecError:
                return None
            offsets = list(packed.offsets)
            name = self._first_in(BookmarkRange(packed.topic, packed.partition, one, one) for one in offsets)
            if name is None:
                return None
            facts["delivery_count"] = packed.delivery_counts[offsets.index(name.offset)]
        elif (name := self._named(fields.get(header.BOOKMARK))) is None:
            return None
        elif header.DELIVERY_COUNT in fields:
            facts["delivery_count"] = _number(fields[header.DELIVERY_COUNT])
        if kind not in ("delivery", "packed", "reference"):
            facts["kind"] = kind
        facts["subscription"] = (fields.get(header.SUBSCRIPTION) or b"").decode("utf-8", "replace")
        if header.LEASE_UNTIL_MS in fields:
            facts["lease_until_ms"] = _number(fields[header.LEASE_UNTIL_MS])
        return name, facts

    def _named(self, text: bytes | None) -> Bookmark | None:
        """The message that a delivery names, if it is this one."""
        try:
            name = Bookmark.parse((text or b"").decode())
        except ValueError:
            return None
        return name if _is_of(name, self._bookmark) else None


def _is_of(found: Bookmark, name: Bookmark) -> bool:
    """Whether a message is the one that is asked for: without a generation, all generations are (C61)."""
    same = (*found[:2], found.log_offset) == (*name[:2], name.log_offset)
    return same and name.generation in (0, found.generation)


def _waits(
    name: Bookmark, of: Sequence[str], topics: Mapping[str, int], told: Sequence[Moment], connection: Connection
) -> tuple[list[Moment], list[str]]:
    """What a message waits for now: a barrier for others, a dying one for its letter (C48).

    Queues are asked that told something of it, and not its end; where none told anything, as of a barrier, the one of
    its topic's name, and then the first ones of all. Those that do not answer are told, too.
    """
    over = {one.entity for one in told if one.what in _END and one.message == name}
    tell = {one.entity for one in told if one.entity and one.message == name}
    queues = set(entities(topics, sow=False)).intersection(tell or of) - over
    found, silent = waiting.ask(name, queues.intersection(of), connection)
    at_ms = int(connection.clock.now_ms()) if found else 0
    moments = [
        Moment(
            at_ms=at_ms,
            entity=entity,
            what="waits",
            facts={"state": one.state, "waits_for": one.waits_for},
            told=name,
            message=name,
        )
        for entity, one in found.items()
    ]
    # Of the others it is not known whether they have it.
    return moments, [entity for entity in silent if entity in tell or entity == name.topic]


def _record(connection: Connection, name: Bookmark) -> Message | None:
    """The message's record; None if Kafka no longer has it."""
    consumer = connection.consumer(enable_partition_eof=True)
    try:
        place = TopicPartition(name.topic, name.partition, name.log_offset)
        low, end = log_bounds(consumer, place)
        if name.log_offset >= end:
            raise NoRecord(f"{name} does not exist: its partition ends before offset {end}")
        if name.log_offset < low:
            return None
        consumer.assign([place])
        while True:
            message = consumer.poll(10)
            if message is None or message.error() is not None:
                return None
            return message if message.offset() == name.log_offset else None
    finally:
        consumer.close()


def _said(record: Message) -> dict[str, Any]:
    """What a record says of its own life, in its headers."""
    own = lifetime.NAMES | {
        header.COMMAND,
        header.MESSAGE_ID,
        header.REDRIVE_QUEUE,
        header.REDRIVEN_COUNT,
        header.RETRY_DELAY_MS,
        header.TRANSFER,
    }
    facts: dict[str, Any] = {}
    for name, value in headers_of(record):
        if name in own and value is not None:
            facts[name] = value.hex(" ") if name == lifetime.EXPIRE_TIME else value.decode("utf-8", "replace")
    return facts


def _facts(told: events.Event) -> dict[str, Any]:
    facts = {
        "reasons": list(told.reasons),
        "subscription": told.subscription,
        "expires_at_ms": told.expires_at_ms,
        "delivery_count": told.delivery_count,
        "cancel_count": told.cancel_count,
        "dead_letter_topic": told.dead_letter_topic,
        "detail": told.detail,
    }
    return {name: value for name, value in facts.items() if value not in (None, "", [], 0)}


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


__all__: Sequence[str] = ["History", "Moment", "history"]
