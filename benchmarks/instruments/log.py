"""Asks the broker for the end offsets of topics."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition


class Ends:
    """Asks for end offsets; a context manager."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "benchmark-ends"})

    def of(self, topic: str, partition: int = 0) -> int:
        """Return the offset after a partition's last record."""
        return int(self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1])

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
