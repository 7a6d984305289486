"""The progress of a link: one record per upstream partition, on a compacted topic downstream (S10).

It is written in the same transaction as the records that it counts, so a link goes on exactly where it stopped.
"""

from __future__ import annotations

import contextlib
import logging
import time
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from lapse.protocol import topic as names

logger = logging.getLogger(__name__)

_FETCH_WAIT_MS: Final = 20
"""How long a fetch without records waits before the broker answers it, ms. Such a fetch shows the end of the topic."""

_PATIENCE_S: Final = 30.0
_LOOK_S: Final = 0.5
_OPEN_S: Final = 60.0
"""How long to wait for the end of another link's transaction, s. Kafka aborts it about 30 s after its link died."""

TOPIC: Final = f"{names.PREFIX}replication"
CONFIG: Final = {"cleanup.policy": "compact", "message.timestamp.type": "LogAppendTime"}
"""Settings of the topic. With the broker's timestamps, the records of a link measure the broker's clock."""


class Progress:
    """The next offsets of one link.

    They belong to an upstream and a downstream topic. If one of these was created again, or is another one now, reading
    begins anew. So it does if the SOW topic downstream was deleted and created again: the topic that it reads may not
    have all records any more.

    Args:
        source: id of the deployment that is read.
        target: id of the deployment that is written. One cluster may have several.
        topics: by name of each topic that is read, its id and the id of the topic that is written.
        replicas: by name of each topic that is read, the id of the compacted topic of that name downstream, if there is
            one.
    """

    def __init__(
        self, source: str, target: str, topics: Mapping[str, str], replicas: Mapping[str, str] = MappingProxyType({})
    ) -> None:
        self._link = f"{source}>{target}"
        self._topics = topics
        self._replicas = replicas
        self._offsets: dict[tuple[str, int], dict[str, Any]] = {}

    def record(self, topic: str, partition: int, offset: int) -> tuple[bytes, bytes]:
        """Return key and value of the record that says that everything before `offset` was copied."""
        value = {"offset": offset, "topics": self._topics[topic]}
        # While there is none, the last one is noted still. Another one is new, and has not got what was copied before.
        replica = self._replicas.get(topic) or self._offsets.get((topic, partition), {}).get("replica")
        value |= {"replica": replica} if replica else {}
        return f"{self._link}:{topic}:{partition}".encode(), orjson.dumps(value)

    def next_offset(self, topic: str, partition: int) -> int | None:
        """Return the offset up to which everything was copied; None if nothing was."""
        taken = self._offsets.get((topic, partition))
        if taken is None:
            return None
        if taken.get("topics", self._topics[topic]) != self._topics[topic]:  # older versions wrote no ids
            logger.warning(
                "%s, partition %d: this topic, or the one downstream, was created again; read from its beginning",
                topic,
                partition,
            )
            return None
        known, now = taken.get("replica"), self._replicas.get(topic)
        if known and now and known != now:
            logger.warning(
                "%s, partition %d: the SOW topic downstream was created again; read from its beginning",
                topic,
                partition,
            )
            return None
        return int(taken["offset"])

    def opening(self) -> tuple[bytes, None]:
        """Return key and value of a record without progress, whose timestamp measures the broker's clock."""
        return f"{self._link}:opened:0".encode(), None

    def read(self, settings: dict[str, Any], end: int) -> None:
        """Read the topic to a record that this link has just written.

        A broker that has just begun to lead the topic may say that it ends earlier, and records behind an open
        transaction of another link are hidden. So wait for that record. Otherwise the records that this link has copied
        since would be copied again.

        Args:
            settings: those of librdkafka for the downstream.
            end: the offset behind that record.

        Raises:
            KafkaException: the brokers do not answer, or a transaction stays open.
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
        reached, answered, give_up = 0, False, time.monotonic() + _OPEN_S
        try:
            consumer.assign([TopicPartition(TOPIC, 0, 0)])
            while reached < end:
                message = consumer.poll(_LOOK_S if answered else _PATIENCE_S)
                if message is None:
                    if answered and time.monotonic() < give_up:
                        continue
                    why = f"a transaction is open, which begins at offset {reached}" if answered else "no answer"
                    raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{TOPIC}: {why}"))
                answered, error = True, message.error()
                if error is None:
                    self.take(message.key() or b"", message.value())
                    reached = (message.offset() or 0) + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    reached = message.offset() or 0
                else:
                    raise KafkaException(error)
        finally:
            consumer.close()

    def take(self, key: bytes, value: bytes | None) -> None:
        """Process a record of the topic. Records of other links, and malformed ones, are ignored."""
        start = f"{self._link}:".encode()
        topic, _, partition = key.removeprefix(start).decode("utf-8", "replace").rpartition(":")
        if not key.startswith(start) or value is None:
            return
        with contextlib.suppress(ValueError, TypeError, KeyError):
            facts: dict[str, Any] = orjson.loads(value)
            self._offsets[topic, int(partition)] = {**facts, "offset": int(facts["offset"])}
