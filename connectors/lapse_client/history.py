"""The life of one message, from the underlying topic, the events, the deliveries and the dead letters (D6)."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import TIMESTAMP_CREATE_TIME, Message, TopicPartition

from lapse.core import lifetime
from lapse.protocol import event as events
from lapse.protocol import header, reference, topic
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.codec import CodecError
from lapse.protocol.event import TERMINAL, EventKind
from lapse_client import dead_letter
from lapse_client.connection import Connection, entities, log_bounds
from lapse_client.error import LapseError, UnknownEntity
from lapse_client.headers import headers_of
from lapse_client.span import span

_AFTERWARDS_MS: Final = 60_000
"""So long after its end a message is still looked for: a crash tells things twice."""

_PRODUCERS_CLOCK_MS: Final = 300_000
"""So far a producer's clock may be ahead of the broker's without anything being overlooked."""

_END: Final = TERMINAL | {EventKind.DELETED}
Watcher = Callable[[str, int, int], None]
"""Told what is read, how many offsets are done with, and how many there are."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Moment:
    """One thing that happened to a message.

    Attributes:
        at_ms: when it counts, ms since the epoch.
        entity: the queue or SOW topic; empty for the record itself.
        what: `arrived`, `delivered`, `dead letter`, or the event's kind.
        facts: what is known of it, by name.
        told: bookmark of the record that tells it.
    """

    at_ms: int
    entity: str
    what: str
    facts: dict[str, Any]
    told: Bookmark


@dataclass(frozen=True, slots=True, kw_only=True)
class History:
    """The life of one message.

    Attributes:
        bookmark: which message.
        found: whether Kafka still has its record.
        size: bytes of its value; None without a record, or of a tombstone.
        moments: what happened, in order.
    """

    bookmark: Bookmark
    found: bool
    size: int | None = None
    moments: list[Moment] = field(default_factory=list)


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
        LapseError: a topic cannot be read.
    """
    name = Bookmark.parse(bookmark) if isinstance(bookmark, str) else bookmark
    cluster = connection or Connection.from_environment()
    topics = cluster.partitions(name.topic)
    known = sorted({*entities(topics, sow=False), *entities(topics, sow=True)})
    if entity is not None and entity not in known:
        raise UnknownEntity("queue or SOW topic", entity, known)
    if name.partition >= topics.get(name.topic, 0):
        raise UnknownEntity("partition", f"{name.topic}:{name.partition}", topics)
    record = _record(cluster, name)
    moments: list[Moment] = []
    since_ms = None
    if record is not None:
        kind, at_ms = record.timestamp()
        since_ms = at_ms - _PRODUCERS_CLOCK_MS if kind == TIMESTAMP_CREATE_TIME else at_ms
        moments.append(Moment(at_ms=at_ms, entity="", what="arrived", facts=_said(record), told=name))
    search = _Search(cluster, name, [entity] if entity is not None else known, topics, since_ms, watcher)
    moments += [*search.events(), *search.deliveries(), *search.letters()]
    moments.sort(key=lambda moment: (moment.at_ms, _RANK.get(moment.what, 1)))
    value = None if record is None else record.value()
    return History(bookmark=name, found=record is not None, size=None if value is None else len(value), moments=moments)


_RANK: Final = {"arrived": 0, "dead letter": 2}
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
            if not any(self._is_in(some.topic, some.partition, some.first, some.last) for some in told.messages):
                continue
            written_ms = message.timestamp()[1]
            entity = of[message.topic() or ""]
            if told.event in _END:
                self._over_ms[entity] = written_ms + _AFTERWARDS_MS
            if told.dead_letter_topic:
                self._letters[told.dead_letter_topic] = min(
                    written_ms, self._letters.get(told.dead_letter_topic, written_ms)
                )
            yield Moment(at_ms=told.at_ms, entity=entity, what=told.event, facts=_facts(told), told=_place(message))

    def deliveries(self) -> Iterator[Moment]:
        """Where the message was handed out."""
        of = {
            name: entity
            for entity in self._entities
            for name in (topic.deliveries(entity), *topic.private_deliveries(entity, self._topics))
        }
        for message in self._span("deliveries", of, self._since_ms, of):
            facts = self._delivered(message)
            if facts is not None:
                entity, at_ms = of[message.topic() or ""], message.timestamp()[1]
                yield Moment(at_ms=at_ms, entity=entity, what="delivered", facts=facts, told=_place(message))

    def letters(self) -> Iterator[Moment]:
        """The dead letters that the events speak of; each is written just before its event."""
        if not self._letters:
            return
        since_ms = min(self._letters.values()) - _AFTERWARDS_MS
        for message in self._span("dead letters", self._letters, since_ms, {}):
            letter = dead_letter.read(message)
            if letter.origin == self._bookmark and letter.entity in self._entities:
                yield Moment(
                    at_ms=letter.timestamp_ms,
                    entity=letter.entity,
                    what="dead letter",
                    facts={"lapse_id": letter.lapse_id, "message": letter.message},
                    told=letter.bookmark,
                )

    def _span(self, what: str, names: Iterable[str], since_ms: int | None, of: Mapping[str, str]) -> Iterator[Message]:
        return span(
            self._connection,
            {name: self._topics[name] for name in names if name in self._topics},
            since_ms,
            lambda name: self._over_ms.get(of.get(name, "")),
            lambda done, total: self._watcher(what, done, total),
        )

    def _is_in(self, name: str, partition: int, first: int, last: int) -> bool:
        return (name, partition) == self._bookmark[:2] and first <= self._bookmark.offset <= last

    def _delivered(self, message: Message) -> dict[str, Any] | None:
        """What a record of the deliveries topic says of a delivery of the message; None if it is about others."""
        fields = dict(headers_of(message))
        kind = (fields.get(header.KIND) or b"").decode()
        facts: dict[str, Any] = {}
        if kind == "reference":
            try:
                told = reference.decode(message.value() or b"")
            except CodecError:
                return None
            counts = [
                some.delivery_count
                for some in told.ranges
                if self._is_in(some.topic, some.partition, some.first, some.last)
            ]
            if not counts:
                return None
            facts["delivery_count"] = counts[0]
        elif fields.get(header.BOOKMARK) != str(self._bookmark).encode():
            return None
        elif header.DELIVERY_COUNT in fields:
            facts["delivery_count"] = _number(fields[header.DELIVERY_COUNT])
        if kind not in ("delivery", "reference"):
            facts["kind"] = kind
        facts["subscription"] = (fields.get(header.SUBSCRIPTION) or b"").decode("utf-8", "replace")
        if header.LEASE_UNTIL_MS in fields:
            facts["lease_until_ms"] = _number(fields[header.LEASE_UNTIL_MS])
        return facts


def _record(connection: Connection, name: Bookmark) -> Message | None:
    """The message's record; None if Kafka no longer has it."""
    consumer = connection.consumer(enable_partition_eof=True)
    try:
        place = TopicPartition(name.topic, name.partition, name.offset)
        low, end = log_bounds(consumer, place)
        if name.offset >= end:
            raise LapseError(f"{name} does not exist: its partition ends before offset {end}")
        if name.offset < low:
            return None
        consumer.assign([place])
        while True:
            message = consumer.poll(10)
            if message is None or message.error() is not None:
                return None
            return message if message.offset() == name.offset else None
    finally:
        consumer.close()


def _said(record: Message) -> dict[str, Any]:
    """What a record says of its own life, in its headers."""
    own = lifetime.NAMES | {
        header.COMMAND,
        header.MESSAGE_ID,
        header.REDRIVE_QUEUE,
        header.REDRIVEN_COUNT,
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


def _place(message: Message) -> Bookmark:
    return Bookmark(message.topic() or "", message.partition() or 0, message.offset() or 0)


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None


__all__: Sequence[str] = ["History", "Moment", "history"]
