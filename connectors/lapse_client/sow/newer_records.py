"""Checks whether a SOW topic has a newer record for the key of a dead letter (C84)."""

from __future__ import annotations

from collections.abc import Mapping

from lapse.protocol import header, topic
from lapse.protocol.bookmark import Bookmark
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.headers import headers_of
from lapse_client.kafka.span import span
from lapse_client.letters.dead_letter import DeadLetter


class NewerRecords:
    """The current records of SOW topics. Each compacted topic is read at the first question about it.

    Args:
        connection: connection to the cluster.
    """

    def __init__(self, connection: Connection) -> None:
        self._connection = connection
        self._topics: Mapping[str, int] = connection.partitions()
        self._known: dict[str, dict[bytes, tuple[Bookmark | None, int]]] = {}

    def is_newer(self, letter: DeadLetter, entity: str) -> bool:
        """Return whether a SOW topic has a later record of the letter's key; False if the entity is no SOW topic.

        Raises:
            LapseError: its compacted topic cannot be read.
        """
        key = letter.key if letter.record_key is None else letter.record_key
        if key is None or topic.sow(entity) not in self._topics:
            return False
        if entity not in self._known:
            self._known[entity] = self._read(topic.sow(entity))
        found = self._known[entity].get(key)
        if found is None:
            return False
        place, at_ms = found
        if place is not None and letter.origin is not None and place[:2] == letter.origin[:2]:
            return place.offset > letter.origin.offset
        return at_ms > (letter.timestamp_ms if letter.expired_at_ms is None else letter.expired_at_ms)

    def _read(self, name: str) -> dict[bytes, tuple[Bookmark | None, int]]:
        records: dict[bytes, tuple[Bookmark | None, int]] = {}
        for message in span(self._connection, {name: self._topics[name]}):
            key = message.key() or b""
            if message.value() is None:
                records.pop(key, None)
                continue
            facts = {title: value for title, value in headers_of(message) if value is not None}
            stamp = facts.get(header.TIMESTAMP_MS, b"")
            records[key] = (
                Bookmark.parse_stated(facts.get(header.BOOKMARK)),
                int(stamp) if stamp.isdigit() and len(stamp) < 20 else message.timestamp()[1],
            )
        return records
