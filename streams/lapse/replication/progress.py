"""The progress of a link: one record per upstream partition, on a compacted topic of the downstream (S10).

It is written in the same transaction as the records that it counts, so a link goes on exactly where it stopped.
"""

from __future__ import annotations

import logging
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from lapse.protocol import topic as names

logger = logging.getLogger(__name__)

_FETCH_WAIT_MS: Final = 20
"""A fetch that finds nothing shows the end of the topic; a broker answers it so late."""

_PATIENCE_S: Final = 30.0
TOPIC: Final = f"{names.PREFIX}replication"
CONFIG: Final = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
"""The records of a link measure the broker's clock."""


class Progress:
    """Next offsets of one link.

    Args:
        source: id of the deployment that is read.
        target: id of the deployment that is written; several may be on one cluster.
    """

    def __init__(self, source: str, target: str) -> None:
        self._link = f"{source}>{target}"
        self.offsets: dict[tuple[str, int], int] = {}

    def record(self, topic: str, partition: int, offset: int) -> tuple[bytes, bytes]:
        """Key and value of the record that says: everything before `offset` was taken."""
        return f"{self._link}:{topic}:{partition}".encode(), orjson.dumps({"offset": offset})

    def opening(self) -> tuple[bytes, None]:
        """Key and value of a record that says nothing: its timestamp is the broker's clock."""
        return f"{self._link}:opened:0".encode(), None

    def read(self, settings: dict[str, Any]) -> None:
        """Read the topic to its end.

        Raises:
            KafkaException: the brokers do not answer.
        """
        consumer = Consumer(
            {
                **settings,
                "group.id": "lapse-replicate",
                "enable.auto.commit": False,
                "enable.partition.eof": True,
                "fetch.wait.max.ms": _FETCH_WAIT_MS,
                "isolation.level": "read_committed",
            }
        )
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            while True:
                message = consumer.poll(_PATIENCE_S)
                if message is None:
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{TOPIC}: no answer"))
                error = message.error()
                if error is not None:
                    if error.code() == KafkaError._PARTITION_EOF:
                        return
                    raise KafkaException(error)
                self._take(message.key() or b"", message.value())
        finally:
            consumer.close()

    def _take(self, key: bytes, value: bytes | None) -> None:
        link, topic, partition = key.decode("utf-8", "replace").rsplit(":", 2)
        if link == self._link and value is not None:
            self.offsets[topic, int(partition)] = int(orjson.loads(value)["offset"])
