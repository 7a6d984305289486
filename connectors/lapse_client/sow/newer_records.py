"""Checks whether a SOW topic has a newer record for the key of a dead letter (C84)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from confluent_kafka import Message

from lapse.core.error_code import ErrorCode
from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse_client.error import CommandFailed
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.span import span
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.sow.sow_client import SowClient

_STATE: Final = topic.sow("")
"""Prefix of the compacted topics."""

_ENOUGH_MS: Final = -1
"""An instant before all records, which ends the reading of a topic."""


class NewerRecords:
    """The current records of SOW topics. Each compacted topic is read at the first question about it.

    Args:
        connection: connection to the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topics: Mapping[str, int] = connection.partitions()
        self._known: dict[str, dict[bytes, tuple[Bookmark | None, int]]] = {}
        self._underlying: Mapping[str, str] | None = None

    def is_newer(self, letter: DeadLetter, target: str = "") -> bool:
        """Return whether a SOW topic that takes the redriven letter has a later record of its key.

        Args:
            letter: the letter.
            target: the topic to which it is sent; empty = its origin, where only its own entity takes it (C29).

        Raises:
            LapseError: a compacted topic cannot be read, or a worker does not say which record an edited letter has.
        """
        over = [letter.entity]
        if target:
            if self._underlying is None:
                self._underlying = underlying_topics(self._connection, self._topics)
            over = [entity for entity, underlying in self._underlying.items() if underlying == target]
        return any(self._has_newer(letter, entity) for entity in over if topic.sow(entity) in self._topics)

    def _has_newer(self, letter: DeadLetter, entity: str) -> bool:
        found = self._found(letter, entity)
        if found is None:
            return False
        place, at_ms = found
        if place is not None and letter.origin is not None and place[:2] == letter.origin[:2]:
            return place.offset > letter.origin.offset
        return at_ms > letter.died_ms

    def _found(self, letter: DeadLetter, entity: str) -> tuple[Bookmark | None, int] | None:
        """Return bookmark and timestamp of the record that has the letter's key; None if there is none."""
        if letter.edited and letter.value:
            try:
                return self._found_by_payload(letter.value, entity)
            except CommandFailed as error:  # the keys are Kafka's own, or this payload has none
                if error.code != ErrorCode.INVALID_ARGUMENT:
                    raise
        key = letter.key if letter.record_key is None else letter.record_key
        if key is None:
            return None
        if entity not in self._known:
            self._known[entity] = self._read(topic.sow(entity))
        return self._known[entity].get(key)

    def _found_by_payload(self, value: bytes, entity: str) -> tuple[Bookmark | None, int] | None:
        """Ask the workers for the record whose key is in a payload, because only they know where the key is."""
        with SowClient(entity, connection=self._connection) as client:
            return next(((one.bookmark, one.timestamp_ms) for one in client.query(data=[value])), None)

    def _read(self, name: str) -> dict[bytes, tuple[Bookmark | None, int]]:
        records: dict[bytes, tuple[Bookmark | None, int]] = {}
        for message in span(self._connection, {name: self._topics[name]}):
            key = message.key() or b""
            if message.value() is None:
                records.pop(key, None)
                continue
            stamp = _facts(message).get(header.TIMESTAMP_MS, b"")
            records[key] = (
                _place(message),
                int(stamp) if stamp.isdigit() and len(stamp) < 20 else message.timestamp()[1],
            )
        return records


def underlying_topics(connection: Connection, topics: Mapping[str, int]) -> dict[str, str]:
    """Return the underlying topics of SOW topics, by SOW topic. Their compacted topics name them.

    SOW topics without records are left out, since they have no newer ones.

    Args:
        connection: connection to the cluster.
        topics: topics of the cluster with their numbers of partitions.

    Raises:
        LapseError: a compacted topic cannot be read.
    """
    found: dict[str, str] = {}
    states = {name: partitions for name, partitions in topics.items() if name.startswith(_STATE)}
    for message in span(connection, states, until=lambda name: _ENOUGH_MS if name in found else None):
        place = _place(message)
        if place is not None:
            found[message.topic() or ""] = place.topic
    return {name.removeprefix(_STATE): underlying for name, underlying in found.items()}


def _facts(message: Message) -> dict[str, bytes]:
    return {name: value for name, value in headers_of(message) if value is not None}


def _place(message: Message) -> Bookmark | None:
    """Return the bookmark of a record on a compacted topic; None if it has none."""
    return Bookmark.parse_stated(_facts(message).get(header.BOOKMARK))
