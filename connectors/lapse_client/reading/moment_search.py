"""The search for the moments of a message, in the events, the deliveries and the dead letters of entities (D6)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Final

from confluent_kafka import Message

from lapse.core.generation import generation_of, position_of
from lapse.core.lifetime import NO_TIMESTAMP
from lapse.protocol import event as events
from lapse.protocol import header, packed_delivery, reference, topic
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.codec import CodecError
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.span import span
from lapse_client.letters import dead_letter
from lapse_client.reading.lineage import place
from lapse_client.reading.moment import DEAD_LETTER, DELIVERED, END, ENDS_BEFORE_DELIVERY, Moment, Watcher, is_about

_AFTERWARDS_MS: Final = 60_000
"""How long after a message's end its events are read, in ms: after a crash they may come twice."""


class MomentSearch:
    """Looks for a message in the topics of entities. The events come first, because they name the letters' topics.

    Args:
        connection: connection to the cluster.
        bookmark: bookmark of the message.
        of: the entities.
        topics: the cluster's topics, with their numbers of partitions.
        since_ms: an instant before which nothing happened to it, ms since the epoch; None = not known.
        watcher: called with the progress of the search.
        record_ms: timestamp of its record, ms since the epoch; -1 = it has none, or is gone.
    """

    def __init__(
        self,
        connection: Connection,
        bookmark: Bookmark,
        of: Sequence[str],
        topics: Mapping[str, int],
        since_ms: int | None,
        watcher: Watcher,
        record_ms: int = -1,
    ) -> None:
        self._connection = connection
        self._bookmark = bookmark
        self._entities = of
        self._topics = topics
        self._since_ms = since_ms
        self._watcher = watcher
        self._record_ms = record_ms
        self._older_ms: dict[str, int] = {}
        """By queue, when it last delivered an earlier message with this bookmark, ms since the epoch."""
        self._over_ms: dict[str, int] = {}
        self._letters: dict[str, int] = {}

    def moments(self) -> list[Moment]:
        """Return the moments of the message, without those of an earlier one with its bookmark.

        There is an earlier one if the topic was deleted and created again (C42).
        """
        events = list(self._events())
        deliveries = list(self._deliveries())
        gone_ms = last_of_older(events, self._older_ms)
        left = [one for one in (*events, *deliveries) if one.at_ms > gone_ms.get(one.entity, NO_TIMESTAMP)]
        return [*left, *self._dead_letters(gone_ms)]

    def _events(self) -> Iterator[Moment]:
        """Yield the moments in the events. All events are read, because a rewind may come at any time (C61)."""
        of = {topic.events(entity): entity for entity in self._entities}
        ended = of if self._bookmark.generation else {}
        for message in self._span("events", of, self._since_ms, ended):
            try:
                event = events.decode(message.value() or b"")
            except (CodecError, TypeError):
                continue
            found = self._first_in(event.messages)
            if found is None:
                continue
            written_ms = message.timestamp()[1]
            entity = of[message.topic() or ""]
            if event.event in END:
                self._over_ms[entity] = written_ms + _AFTERWARDS_MS
            elif event.event == events.EventKind.REWOUND:
                self._over_ms.pop(entity, None)
            if event.dead_letter_topic:
                self._letters[event.dead_letter_topic] = min(
                    written_ms, self._letters.get(event.dead_letter_topic, written_ms)
                )
            yield Moment(
                at_ms=event.at_ms,
                entity=entity,
                what=event.event,
                facts=_facts(event),
                shown_by=place(message),
                message=found,
            )

    def _deliveries(self) -> Iterator[Moment]:
        """Yield the deliveries of the message."""
        of = {
            name: entity
            for entity in self._entities
            for name in (topic.deliveries(entity), *topic.private_deliveries(entity, self._topics))
        }
        for message in self._span("deliveries", of, self._since_ms, of):
            found = self._delivered(message)
            if found is not None:
                name, facts, arrived_ms = found
                entity, at_ms = of[message.topic() or ""], message.timestamp()[1]
                if arrived_ms is not None and NO_TIMESTAMP < arrived_ms < self._record_ms:
                    self._older_ms[entity] = max(at_ms, self._older_ms.get(entity, at_ms))
                    self._over_ms.pop(entity, None)  # this may have been the earlier message's end
                    continue
                yield Moment(
                    at_ms=at_ms,
                    entity=entity,
                    what=DELIVERED,
                    facts=facts,
                    shown_by=place(message),
                    message=name,
                )

    def _dead_letters(self, gone_ms: Mapping[str, int]) -> Iterator[Moment]:
        """Yield the dead letters that the events mention. Each letter is written just before its event.

        `gone_ms` has the last instants of an earlier message, ms since the epoch, by queue.
        """
        if not self._letters:
            return
        since_ms = min(self._letters.values()) - _AFTERWARDS_MS
        for message in self._span("dead letters", self._letters, since_ms, {}):
            letter = dead_letter.read(message)
            if (
                letter.origin is not None
                and is_about(letter.origin, self._bookmark)
                and letter.entity in self._entities
                and letter.died_ms > gone_ms.get(letter.entity, NO_TIMESTAMP)
            ):
                yield Moment(
                    at_ms=letter.timestamp_ms,
                    entity=letter.entity,
                    what=DEAD_LETTER,
                    facts={"lapse_id": letter.lapse_id, "fault": letter.message},
                    shown_by=letter.bookmark,
                    message=letter.origin,
                )

    def _span(self, what: str, names: Iterable[str], since_ms: int | None, of: Mapping[str, str]) -> Iterator[Message]:
        return span(
            self._connection,
            {name: self._topics[name] for name in names if name in self._topics},
            since_ms,
            lambda name: self._over_ms.get(of.get(name, "")),
            lambda done, total: self._watcher(what, done, total),
            listed=True,
        )

    def _first_in(self, some: Iterable[BookmarkRange]) -> Bookmark | None:
        """Return the first generation of the message that is in some ranges (C61); None if there is none."""
        for one in some:
            if (one.topic, one.partition) == self._bookmark[:2]:
                position = position_of(self._bookmark.log_offset, generation_of(one.first))
                found = self._bookmark._replace(offset=position)
                if one.first <= position <= one.last and is_about(found, self._bookmark):
                    return found
        return None

    def _delivered(self, message: Message) -> tuple[Bookmark, dict[str, Any], int | None] | None:
        """Return the message's bookmark with its generation, the facts of a delivery record, and the arrival.

        The arrival is in ms since the epoch; None if the delivery does not state that of its message. Return None if
        the record delivers other messages.
        """
        name: Bookmark | None
        fields = dict(headers_of(message))
        kind = (fields.get(header.KIND) or b"").decode()
        facts: dict[str, Any] = {}
        arrived_ms = _number(fields.get(header.TIMESTAMP_MS)) if kind == "delivery" else None
        if kind == "reference":
            try:
                named = reference.decode(message.value() or b"")
            except CodecError:
                return None
            name = self._first_in(named.ranges)
            if name is None:
                return None
            counts = [some.delivery_count for some in named.ranges if some.first <= name.offset <= some.last]
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
            arrived_ms = int(packed.timestamps_ms[offsets.index(name.offset)])
        elif (name := self._named_bookmark(fields.get(header.BOOKMARK))) is None:
            return None
        elif header.DELIVERY_COUNT in fields:
            facts["delivery_count"] = _number(fields[header.DELIVERY_COUNT])
        if kind not in ("delivery", "packed", "reference"):
            facts["kind"] = kind
        facts["subscription"] = (fields.get(header.SUBSCRIPTION) or b"").decode("utf-8", "replace")
        if header.LEASE_UNTIL_MS in fields:
            facts["lease_until_ms"] = _number(fields[header.LEASE_UNTIL_MS])
        return name, facts, arrived_ms

    def _named_bookmark(self, text: bytes | None) -> Bookmark | None:
        """Return the bookmark in a delivery if it is the message's, else None."""
        try:
            name = Bookmark.parse((text or b"").decode())
        except ValueError:
            return None
        return name if is_about(name, self._bookmark) else None


def last_of_older(moments: Iterable[Moment], older_ms: Mapping[str, int]) -> dict[str, int]:
    """Return by queue the last instant of an earlier message with the same bookmark, ms since the epoch (C42).

    Args:
        moments: the moments in the events of both messages.
        older_ms: by queue, when it last delivered the earlier message, ms since the epoch. An end that is written
            before the delivery is that message's, otherwise the first end behind it.
    """
    gone_ms = dict(older_ms)
    for entity, last_ms in older_ms.items():
        ends = [one for one in moments if one.entity == entity and one.what in END]
        if any(one.what in ENDS_BEFORE_DELIVERY and one.at_ms <= last_ms for one in ends):
            continue
        gone_ms[entity] = min((one.at_ms for one in ends if one.at_ms >= last_ms), default=last_ms)
    return gone_ms


def _facts(event: events.Event) -> dict[str, Any]:
    facts = {
        "reasons": list(event.reasons),
        "subscription": event.subscription,
        "expires_at_ms": event.expires_at_ms,
        "delivery_count": event.delivery_count,
        "cancel_count": event.cancel_count,
        "dead_letter_topic": event.dead_letter_topic,
        "detail": event.detail,
    }
    return {name: value for name, value in facts.items() if value not in (None, "", [], 0)}


def _number(value: bytes | None) -> int | None:
    return int(value) if value is not None and value.isdigit() else None
