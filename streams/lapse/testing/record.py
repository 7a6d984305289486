"""A record in memory, as shards see it, and a message, as confluent-kafka gives it to the client."""

from __future__ import annotations

from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError

from lapse.runtime.timers.clock import BY_THE_BROKER

Headers = list[tuple[str, bytes]]


class MemoryRecord:
    """A record of a log, with the broker's timestamp, as on topics that lapse creates."""

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
    """A consumer's message like confluent-kafka's `Message`: a record, or an error at an offset."""

    __slots__ = ("_error", "_headers", "_record")

    def __init__(self, record: MemoryRecord, error: KafkaError | None = None) -> None:
        self._record = record
        self._error = error
        self._headers: Headers | None = record.headers or None

    def error(self) -> KafkaError | None:
        """Return the error; None if there is none."""
        return self._error

    def topic(self) -> str:
        """Return its topic."""
        return self._record.topic

    def partition(self) -> int:
        """Return its partition."""
        return self._record.partition

    def offset(self) -> int:
        """Return its offset."""
        return self._record.offset

    def key(self) -> bytes | None:
        """Return its key."""
        return self._record.key

    def value(self) -> bytes | None:
        """Return its value."""
        return self._record.value

    def headers(self) -> Headers | None:
        """Return its headers; None if it has none."""
        return self._headers

    def set_headers(self, headers: Headers) -> None:
        """Replace the headers of this message, but not those of the record in the log."""
        self._headers = headers

    def timestamp(self) -> tuple[int, int]:
        """Return kind and value of its timestamp, ms since the epoch."""
        return TIMESTAMP_LOG_APPEND_TIME, self._record.timestamp
