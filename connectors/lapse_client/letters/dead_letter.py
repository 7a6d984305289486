"""Dead letters: messages that left an entity, with reasons and payload (D2, D3)."""

from __future__ import annotations

import re
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final

from confluent_kafka import Message

from lapse.core.generation import FIRST_REWOUND, position_of
from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.letter_family import LAPSE, LetterFamily, family_of
from lapse.protocol.redrive import OF_SECOND
from lapse_client.argument import check_instant
from lapse_client.error import NoRecord, UnknownEntity
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.topic_reader import PacedReader, TopicReader
from lapse_client.letters import letter_topic
from lapse_client.reading.definitions import Definitions
from lapse_client.reading.replay import Replayed, replay

_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """A dead letter: a message that left an entity, with the reasons.

    Attributes:
        key: the original key, unchanged.
        value: the original value, unchanged.
        headers: all headers of the letter, the original ones included.
        bookmark: bookmark of the letter itself.
        timestamp_ms: when the letter was written, ms since the epoch.
        origin: bookmark of the message; None if the letter has none.
        entity: the entity that the message left. For another system's letter, the share group, connector or consumer
            group, else the letter's topic without `dlq.` (C54).
        reasons: the reasons (L14); for another system's letter, the exception's class.
        message: the reasons as readable text.
        delivery_count: how often the message was delivered.
        cancel_count: how often the message was cancelled.
        expires_at_ms: its deadline, ms since the epoch; None without one.
        expired_at_ms: the instant at which it left, ms since the epoch.
        redriven_count: how often it was redriven before.
        lapse_id: id of the letter, which all its copies share.
        unconfirmed_transfer: id of the transfer that put the message and had not confirmed it; empty = none.
        record_key: the key that a SOW topic with `key` computes from the payload; None if the letter has none.
        null_value: whether the message's value was null. If False, a value of None means that the payload is lost.
        edited: whether `value` is another payload than the letter's.
    """

    key: bytes | None
    value: bytes | None
    headers: list[tuple[str, bytes | None]] = field(repr=False)
    bookmark: Bookmark
    timestamp_ms: int
    origin: Bookmark | None
    entity: str
    reasons: tuple[str, ...]
    message: str
    delivery_count: int
    cancel_count: int
    expires_at_ms: int | None
    expired_at_ms: int | None
    redriven_count: int
    lapse_id: str
    unconfirmed_transfer: str = ""
    record_key: bytes | None = None
    null_value: bool = False
    edited: bool = False

    @property
    def died_ms(self) -> int:
        """When the message left, ms since the epoch; of a letter that does not say so, when it was written."""
        return self.timestamp_ms if self.expired_at_ms is None else self.expired_at_ms

    def with_value(self, value: bytes | None) -> DeadLetter:
        """Return this letter with another payload. The key that was computed from its own payload is left out (C84)."""
        return replace(self, value=value, record_key=None, edited=True)

    def facts(self) -> dict[str, Any]:
        """Return the letter for JSON, without the entity and the message's key, value and headers."""
        return {
            "letter": str(self.bookmark),
            "origin": None if self.origin is None else str(self.origin),
            "reasons": list(self.reasons),
            "message": self.message,
            "expired_at_ms": self.expired_at_ms,
            "expires_at_ms": self.expires_at_ms,
            "delivery_count": self.delivery_count,
            "cancel_count": self.cancel_count,
            "redriven_count": self.redriven_count,
            "lapse_id": self.lapse_id,
        }


_GENERATION: Final = re.compile(r"~([1-9]\d{0,4})/\d+\Z", re.ASCII)
"""Finds in a letter's id the generation of a message that a rewind brought back (C61)."""


def read(message: Message) -> DeadLetter:
    """Decode a record of a dead-letter topic. A missing or unreadable header counts as not given."""
    return parse_letter(
        Replayed(
            bookmark=Bookmark(message.topic() or "", message.partition() or 0, message.offset() or 0),
            key=message.key(),
            value=message.value(),
            timestamp_ms=message.timestamp()[1],
            headers=headers_of(message),
        )
    )


def parse_letter(record: Replayed) -> DeadLetter:
    """Convert a record of a dead-letter topic to a letter."""
    headers = record.headers
    last = dict(headers)
    texts = {name: value.decode("utf-8", "replace") for name, value in last.items() if value is not None}
    family = family_of(last)
    return DeadLetter(
        key=record.key,
        value=record.value,
        headers=headers,
        bookmark=record.bookmark,
        timestamp_ms=record.timestamp_ms,
        origin=None if family is None else _origin(family, headers),
        entity="" if family is None else _entity(family, headers, record.bookmark.topic),
        reasons=() if family is None else _reasons(family, texts),
        message="" if family is None else texts.get(family.message, ""),
        delivery_count=_number(texts, header.DLQ_DELIVERY_COUNT, _INT32) or 0,
        cancel_count=_number(texts, header.CANCEL_COUNT, _INT32) or 0,
        expires_at_ms=_number(texts, _deadline_name(texts)),
        expired_at_ms=_number(texts, header.EXPIRED_AT_MS),
        redriven_count=_number(texts, header.REDRIVEN_COUNT, _INT32) or 0,
        lapse_id=texts.get(header.LAPSE_ID, ""),
        unconfirmed_transfer=texts.get(header.UNCONFIRMED_TRANSFER, ""),
        record_key=next((value for name, value in reversed(headers) if name == header.RECORD_KEY), None),
        null_value=header.NULL_VALUE in texts,
    )


_MISSING: Final = (
    "`dead_letter` of this entity is false or names another topic, or the topic is missing. "
    "`lapse check` says if it is missing, and `lapse apply` creates it"
)
"""Why an entity has no topic of letters."""


class DeadLetterReader(PacedReader[DeadLetter]):
    """Reads dead letters from the beginning, without a consumer group; a crash's duplicates are dropped.

    Args:
        name: name of a dead-letter topic, or of an entity. For an entity, its letters on the topic that its definition
            names are read, or else its default topic `dlq.<name>`.
        connection: connection to the cluster; from the environment by default.
        follow: whether to wait for new letters; otherwise stop after the letters that existed at the beginning.
        since_ms: read only letters written at or after this instant, ms since the epoch; None = all.
        entity: read only letters of this queue or SOW topic; empty = all letters on the topic.

    Attributes:
        copies: the duplicates that were dropped so far.
        definitions: the definitions of the cluster's deployments.
    """

    def __init__(
        self,
        name: str,
        *,
        connection: Connection | None = None,
        follow: bool = False,
        since_ms: int | None = None,
        entity: str = "",
    ) -> None:
        check_reader(name, since_ms, entity)
        self.entity = entity
        self.copies: list[DeadLetter] = []
        self._connection = connection or Connection.from_environment()
        names_letters = name.startswith(topic.DEAD_LETTER_PREFIX)
        default = name if names_letters else topic.dead_letters(name)
        topics = self._connection.partitions(default, name)
        names_entity = not names_letters and topic.commands(name) in topics
        is_topic = default in topics or (name in topics and not names_entity)
        # Letters from before a change of the definition may be on the default topic, which can be named itself.
        may_have_own = names_entity or not (names_letters or is_topic)
        self.definitions = Definitions(self._connection, topics)
        self.topic = letter_topic.named(self.definitions, name) if may_have_own else ""
        if self.topic:
            self.entity = name
        elif default in topics:
            self.topic = default
        elif is_topic:
            self.topic = name
        else:
            letters = (found for found in topics if found.startswith(topic.DEAD_LETTER_PREFIX))
            if topic.commands(name) in topics and not self._connection.unseen([default]):
                raise UnknownEntity("dead-letter topic", default, (), cause=_MISSING)
            raise self._connection.unknown("dead-letter topic", default, letters, default)
        self._reader = TopicReader(self._connection, self.topic, topics[self.topic], follow=follow, since_ms=since_ms)

    def at(self, place: Bookmark | str) -> DeadLetter:
        """Read one letter.

        Args:
            place: its bookmark on the dead-letter topic.

        Raises:
            ValueError: the bookmark is not valid.
            NoRecord: Kafka has no letter there, or has it no longer.
        """
        place = place if isinstance(place, Bookmark) else Bookmark.parse(place)
        if place.topic == self.topic:
            for record in replay(place, connection=self._connection):
                if record.bookmark == place:
                    return parse_letter(record)
                break
        raise NoRecord(f"{place} is no letter of {self.topic}; `lapse dlq show` lists those that there are")

    def paced(self) -> Iterator[DeadLetter | None]:
        """Iterate over the letters, and yield None after each half second without one, so that the caller can stop."""
        seen: set[str] = set()
        for message in self._reader.paced():
            if message is None:
                yield None
                continue
            letter = read(message)
            if self.entity and letter.entity != self.entity:
                continue
            if letter.lapse_id:
                if letter.lapse_id in seen:
                    self.copies.append(letter)
                    continue
                seen.add(letter.lapse_id)
            yield letter


def check_reader(name: object, since_ms: object, entity: object) -> None:
    """Check the arguments of a `DeadLetterReader`, without asking the cluster.

    Raises:
        TypeError: a name is no text.
        ValueError: `since_ms` is no instant.
    """
    if not isinstance(name, str):
        raise TypeError(f"letters of {name!r}: expected the name of an entity or dead-letter topic")
    if not isinstance(entity, str):
        raise TypeError(f"entity = {entity!r}: expected the name of a queue or SOW topic; empty = all letters")
    check_instant("since_ms", since_ms)


def _origin_headers(family: LetterFamily, headers: Sequence[tuple[str, bytes | None]]) -> dict[str, bytes]:
    """Return the headers that name a message's origin: the last of each name, or the first if copies add headers."""
    found = dict(reversed(headers)) if family.piles_up else dict(headers)
    return {name: value for name, value in found.items() if value is not None}


def _origin(family: LetterFamily, headers: Sequence[tuple[str, bytes | None]]) -> Bookmark | None:
    """Return the bookmark of the original message; None if the letter has none, or it is unreadable."""
    origin = _origin_headers(family, headers)
    texts = {name: value.decode("utf-8", "replace") for name, value in origin.items()}
    if family.binary:
        partition, offset = _binary(origin, family.partition, 4), _binary(origin, family.offset, 8)
    else:
        partition, offset = _number(texts, family.partition, _INT32), _number(texts, family.offset)
    topic_name = texts.get(family.topic, "")
    if not topic_name or partition is None or offset is None or offset >= FIRST_REWOUND:
        return None
    generation = _GENERATION.search(texts.get(header.LAPSE_ID, ""))
    return Bookmark(topic_name, partition, position_of(offset, 0 if generation is None else int(generation[1])))


def _deadline_name(texts: Container[str]) -> str:
    """Return the header with the message's deadline. On a first letter that was redriven it has another name (C54)."""
    redriven = header.FIRST_EXPIRES_AT_MS in texts and OF_SECOND not in texts
    return header.FIRST_EXPIRES_AT_MS if redriven else EXPIRES_AT_MS


def _entity(family: LetterFamily, headers: Sequence[tuple[str, bytes | None]], letter_topic: str) -> str:
    named = _origin_headers(family, headers).get(family.entity, b"") if family.entity else b""
    entity = named.decode("utf-8", "replace")
    return entity or ("" if family is LAPSE else letter_topic.removeprefix(topic.DEAD_LETTER_PREFIX))


def _reasons(family: LetterFamily, texts: dict[str, str]) -> tuple[str, ...]:
    reasons = next((texts[name] for name in family.reasons if name in texts), "")
    return tuple(filter(None, reasons.split(",")))


_INT32: Final = (1 << 31) - 1
_INT64: Final = (1 << 63) - 1
_DIGITS: Final = re.compile(r"[0-9]{1,19}\Z", re.ASCII)


def _number(texts: dict[str, str], name: str, most: int = _INT64) -> int | None:
    """Return a header's decimal number; None if it is not a number, or too large."""
    text = texts.get(name, "")
    return int(text) if _DIGITS.match(text) and int(text) <= most else None


def _binary(origin: dict[str, bytes], name: str, width: int) -> int | None:
    """Return a header's big-endian number; None if it is negative, or has another width in bytes."""
    value = origin.get(name, b"")
    number = int.from_bytes(value, "big", signed=True)
    return number if len(value) == width and number >= 0 else None
