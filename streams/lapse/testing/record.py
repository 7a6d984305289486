"""A record in memory, as shards see it, and a message, as confluent-kafka hands it to the client."""

from __future__ import annotations

from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from lapse.runtime.timers.clock import BY_THE_BROKER

Headers = list[tuple[str, bytes]]


class MemoryRecord:
    """A record of a log; its stamp is the broker's, as on topics that lapse creates."""

    __slots__ = ("headers", "key", "offset", "partition", "timestamp", "topic", "value")

    timestamp_type: Final = BY_THE_BROKER

    def __init__(
        self,
        topic: str,
        partition: int,
        offset: int,
        timestamp: int,
        key: bytes | None,
        value: bytes | None,
        headers: Headers,
    ) -> None:
        self.topic = topic
        self.partition = partition
        self.offset = offset
        self.timestamp = timestamp
        self.key = key
        self.value = value
        self.headers = headers


class MemoryMessage:
    """What a consumer gets: confluent-kafka's `Message`, of a record or of an error at a place."""

    __slots__ = ("_error", "_headers", "_record")

    def __init__(self, record: MemoryRecord, error: KafkaError | None = None) -> None:
        self._record = record
        self._error = error
        self._headers: Headers | None = record.headers or None

    def error(self) -> KafkaError | None:
        """What is wrong; None = nothing."""
        return self._error

    def topic(self) -> str:
        """Its topic."""
        return self._record.topic

    def partition(self) -> int:
        """Its partition."""
        return self._record.partition

    def offset(self) -> int:
        """Its offset."""
        return self._record.offset

    def key(self) -> bytes | None:
        """Its key."""
        return self._record.key

    def value(self) -> bytes | None:
        """Its value."""
        return self._record.value

    def headers(self) -> Headers | None:
        """Its headers; None = it has none."""
        return self._headers

    def set_headers(self, headers: Headers) -> None:
        """Replace the headers of this message; the log keeps the record's."""
        self._headers = headers

    def timestamp(self) -> tuple[int, int]:
        """Kind and instant, ms since the epoch."""
        return TIMESTAMP_LOG_APPEND_TIME, self._record.timestamp
