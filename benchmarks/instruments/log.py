"""Where the logs of topics end, asked of the broker."""

from __future__ import annotations

from confluent_kafka import Consumer, TopicPartition


class Ends:
    """Asks for log ends; a context manager."""

    def __init__(self, bootstrap_servers: str) -> None:
        self._consumer = Consumer({"bootstrap.servers": bootstrap_servers, "group.id": "benchmark-ends"})

    def of(self, topic: str, partition: int = 0) -> int:
        """Offset behind the last record."""
        return int(self._consumer.get_watermark_offsets(TopicPartition(topic, partition), timeout=20)[1])

    def __enter__(self) -> Ends:
        return self

    def __exit__(self, *_: object) -> None:
        self._consumer.close()
