"""Dead letters: messages that left an entity, with reasons and payload (D2, D3)."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from confluent_kafka import Message

from lapse.core.generation import position_of
from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse_client.connection import Connection
from lapse_client.error import NoRecord
from lapse_client.headers import headers_of
from lapse_client.replay import Replayed, replay
from lapse_client.topic_reader import PacedReader, TopicReader

_POLL_S: Final = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class DeadLetter:
    """One message that left for the dead letters.

    Attributes:
        key: the original key, untouched.
        value: the original value, untouched.
        headers: all headers as they stand on the letter, the original ones included.
        bookmark: where the letter itself stands.
        timestamp_ms: when the letter was written, ms since the epoch.
        origin: bookmark of the message; None if the letter does not say.
        entity: who lost it.
        reasons: why (L14).
        message: the same for people.
        delivery_count: how often it was delivered.
        cancel_count: how often it was cancelled.
        expires_at_ms: its deadline, ms since the epoch; None without one.
        expired_at_ms: the instant of the decision, ms since the epoch.
        redriven_count: how often it was sent back before.
        lapse_id: the same for every copy of this letter.
        unconfirmed_transfer: id of the transfer that put the record there and had not confirmed it; empty = none.
        record_key: the key that its payload makes at a SOW topic with `key`; None where the letter does not say.
        null_value: whether the message's value was null; else a value of None is a payload that is lost.
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

    def facts(self) -> dict[str, Any]:
        """What it says of the message, for JSON: all but the entity, and the message's own key, value and headers."""
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
"""The generation of a message that a rewind brought back, in the letter's id (C61)."""


def read(message: Message) -> DeadLetter:
    """Read a record of a dead-letter topic; a header that is missing or unreadable counts as not given."""
    return letter_of(
        Replayed(
            bookmark=Bookmark(message.topic() or "", message.partition() or 0, message.offset() or 0),
            key=message.key(),
            value=message.value(),
            timestamp_ms=message.timestamp()[1],
            headers=headers_of(message),
        )
    )


def letter_of(record: Replayed) -> DeadLetter:
    """A record of a dead-letter topic as the letter that it is."""
    headers = record.headers
    texts = {name: value.decode("utf-8", "replace") for name, value in headers if value is not None}
    partition, offset = _number(texts, header.DLQ_PARTITION), _number(texts, header.DLQ_OFFSET)
    origin = None
    if header.DLQ_TOPIC in texts and partition is not None and offset is not None:
        generation = _GENERATION.search(texts.get(header.LAPSE_ID, ""))
        origin = Bookmark(
            texts[header.DLQ_TOPIC], partition, position_of(offset, 0 if generation is None else int(generation[1]))
        )
    return DeadLetter(
        key=record.key,
        value=record.value,
        headers=headers,
        bookmark=record.bookmark,
        timestamp_ms=record.timestamp_ms,
        origin=origin,
        entity=texts.get(header.DLQ_GROUP, ""),
        reasons=tuple(filter(None, texts.get(header.REASONS, "").split(","))),
        message=texts.get(header.DLQ_MESSAGE, ""),
        delivery_count=_number(texts, header.DLQ_DELIVERY_COUNT) or 0,
        cancel_count=_number(texts, header.CANCEL_COUNT) or 0,
        expires_at_ms=_number(texts, EXPIRES_AT_MS),
        expired_at_ms=_number(texts, header.EXPIRED_AT_MS),
        redriven_count=_number(texts, header.REDRIVEN_COUNT) or 0,
        lapse_id=texts.get(header.LAPSE_ID, ""),
        unconfirmed_transfer=texts.get(header.UNCONFIRMED_TRANSFER, ""),
        record_key=next((value for name, value in reversed(headers) if name == header.RECORD_KEY), None),
        null_value=header.NULL_VALUE in texts,
    )


class DeadLetterReader(PacedReader[DeadLetter]):
    """Reads dead letters from the beginning, without a consumer group; a crash's duplicates are dropped.

    Args:
        name: an entity, then its default topic `dlq.<name>` is read; or a dead-letter topic as it is called.
        connection: the cluster; from the environment by default.
        follow: wait for new letters too; otherwise it ends with those that there were at the beginning.
        since_ms: only letters written at or after this instant, ms since the epoch.
    """

    def __init__(
        self,
        name: str,
        *,
        connection: Connection | None = None,
        follow: bool = False,
        since_ms: int | None = None,
    ) -> None:
        self._connection = connection or Connection.from_environment()
        names_letters = name.startswith(topic.DEAD_LETTER_PREFIX)
        default = name if names_letters else topic.dead_letters(name)
        topics = self._connection.partitions(default, name)
        self.topic = default if default in topics else name
        named_queue = self.topic == name and not names_letters and topic.commands(name) in topics
        if self.topic not in topics or named_queue:
            letters = (found for found in topics if found.startswith(topic.DEAD_LETTER_PREFIX))
            raise self._connection.unknown("dead-letter topic", default, letters, default)
        self._reader = TopicReader(self._connection, self.topic, topics[self.topic], follow=follow, since_ms=since_ms)

    def at(self, place: Bookmark) -> DeadLetter:
        """Read one letter.

        Args:
            place: where it stands on the dead-letter topic.

        Raises:
            NoRecord: Kafka has no letter there, or no longer.
        """
        if place.topic == self.topic:
            for record in replay(place, connection=self._connection):
                if record.bookmark == place:
                    return letter_of(record)
                break
        raise NoRecord(f"{place} is no letter of {self.topic}; `lapse dlq show` lists those that there are")

    def paced(self) -> Iterator[DeadLetter | None]:
        """Iterate over the letters, and yield None after each half second without one: somebody may want to stop."""
        seen: set[str] = set()
        for message in self._reader.paced():
            if message is None:
                yield None
                continue
            letter = read(message)
            if letter.lapse_id:
                if letter.lapse_id in seen:
                    continue
                seen.add(letter.lapse_id)
            yield letter


def _number(texts: dict[str, str], name: str) -> int | None:
    text = texts.get(name, "")
    return int(text) if text.isascii() and text.isdigit() else None
