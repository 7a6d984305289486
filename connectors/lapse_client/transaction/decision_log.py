"""The decisions about a queue's messages: claims and commits on a transactional topic (X9).

A transaction writes a claim for each of its messages to the log before it is committed. A committed claim says that the
message's outputs are committed. The log is read for redelivered messages only, so a transaction that stays open delays
nothing else.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from enum import Enum, auto
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]  # it lists no names

from lapse import topic_creation
from lapse.protocol import topic as names
from lapse.topic_creation import NewTopic
from lapse_client.error import LapseError
from lapse_client.kafka.connection import Connection, arrived
from lapse_client.kafka.log_offsets import log_bounds, offsets_at

log = logging.getLogger("lapse_client")

_KEEP_MS: Final = 7 * 24 * 3_600_000
_CONFIG: Final = {"cleanup.policy": "delete", "retention.ms": str(_KEEP_MS), "message.timestamp.type": "LogAppendTime"}
_FROM_BROKER: Final = -1
_AT_ONCE: Final = 1_000
_LOOK_S: Final = 0.1
_PATIENCE_S: Final = 30.0
_FORGET_S: Final = 60.0
_MOST_KEPT: Final = 100_000
"""How many claims of a partition are kept, unless the ones since the oldest message in doubt are more."""

_SLACK_MS: Final = 60_000
"""How long before a message's arrival the search for its claims begins, in ms: brokers' clocks differ."""

Claim = bytes
"""The log's key for a message: its bookmark and its arrival, because a topic that was deleted and created again has the
same bookmarks."""


def claim(delivery: Any) -> Claim:
    """Return the claim for a delivery's message."""
    return b"%b@%d" % (delivery.place, delivery.timestamp_ms)


class Verdict(Enum):
    """The outcome of a message's earlier transactions."""

    NONE = auto()
    """No transaction was committed or is open."""
    OPEN = auto()
    """A transaction is open, and may still be committed."""
    DONE = auto()
    """A transaction was committed."""


class DecisionLog:
    """The decision log of one queue. Each partition is read when it is needed. Not thread-safe.

    Args:
        connection: connection to the cluster.
        queue: name of the queue.
        shards: number of its shards.

    Attributes:
        queue: name of the queue.
        topic: topic of the log.
    """

    def __init__(self, connection: Connection, queue: str, shards: int) -> None:
        self.queue = queue
        self.topic = names.decisions(queue)
        self._connection = connection
        self._shards = shards
        self._parts: dict[int, _Part] = {}
        self._stamped: dict[str, bool] = {}

    def make(self) -> None:
        """Create the topic if it is missing.

        Raises:
            LapseError: the broker refuses.
        """
        if self.topic in self._connection.partitions():
            return
        admin = self._connection.admin()  # must stay referenced until the answer
        new = NewTopic(self.topic, self._shards, _FROM_BROKER, config=_CONFIG)
        for error in topic_creation.create(admin.create_topics, [new], _PATIENCE_S).values():
            if error.args[0].code() != KafkaError.TOPIC_ALREADY_EXISTS:
                raise LapseError(
                    f"{self.topic} could not be created, and transactions stand on it: {error}. Create it with "
                    f"{self._shards} partitions, or give this user the right to"
                ) from error

    def verdicts(self, deliveries: Sequence[Any]) -> list[Verdict]:
        """Return the outcome of the earlier transactions of each delivery's message.

        Raises:
            KafkaException: the log cannot be read.
            LapseError: the log could not be read to its end in time.
        """
        found: dict[Claim, Verdict] = {}
        for partition in {delivery.shard.partition for delivery in deliveries}:
            concerned = [delivery for delivery in deliveries if delivery.shard.partition == partition]
            wanted = [claim(delivery) for delivery in concerned]
            found |= self._part(partition, min(map(self._first_ms, concerned))).verdicts(wanted)
        return [found[claim(delivery)] for delivery in deliveries]

    def _part(self, partition: int, first_ms: int) -> _Part:
        part = self._parts.get(partition)
        if part is None or part.first_ms > first_ms or part.is_stale or part.is_outgrown:
            if part is not None:
                del self._parts[partition]  # first: if the next one cannot be opened, no closed one may be left
                part.close()
            part = self._parts[partition] = _Part(self._connection, TopicPartition(self.topic, partition), first_ms)
        return part

    def _first_ms(self, delivery: Any) -> int:
        """Return an instant before all claims for a message, ms since the epoch."""
        return max(0, delivery.timestamp_ms - _SLACK_MS) if self._is_broker_stamped(delivery.bookmark.topic) else 0

    def _is_broker_stamped(self, source: str) -> bool:
        """Return whether a topic has the broker's timestamps. Then no claim for a message is older than its arrival."""
        known = self._stamped.get(source)
        if known is None:
            resource = ConfigResource(ResourceType.TOPIC, source)
            admin = self._connection.admin()  # must stay referenced until the answer
            try:
                (described,) = admin.describe_configs([resource], request_timeout=_PATIENCE_S).values()
                known = described.result()["message.timestamp.type"].value == "LogAppendTime"
            except KafkaException as error:
                log.info(
                    "%s: the kind of its timestamps is not known, so decisions are read from the first one: %s",
                    source,
                    error,
                )
                known = False
            self._stamped[source] = known
        return known

    def close(self) -> None:
        """Disconnect."""
        for part in self._parts.values():
            part.close()
        self._parts.clear()


class _Part:
    """One partition of the log: all claims, and the committed ones."""

    def __init__(self, connection: Connection, tp: TopicPartition, first_ms: int) -> None:
        self.first_ms = first_ms
        self._asked = time.monotonic()
        self._at_first = -1
        """How many messages had claims when the partition was read for the first time."""
        self._claimed: dict[Claim, int] = {}
        """The offset of each message's last claim, committed or not."""
        self._committed: set[Claim] = set()
        self._all = _Reader(connection, tp, first_ms, "read_uncommitted")
        self._safe = _Reader(connection, tp, first_ms, "read_committed")

    @property
    def is_stale(self) -> bool:
        """Whether the partition was last read so long ago that a new start is cheaper than reading on."""
        return time.monotonic() - self._asked > _FORGET_S

    @property
    def is_outgrown(self) -> bool:
        """Whether most claims came after the first reading, so that a new start forgets them."""
        return len(self._claimed) > max(_MOST_KEPT, 2 * self._at_first)

    def verdicts(self, wanted: Sequence[Claim]) -> dict[Claim, Verdict]:
        self._asked = time.monotonic()
        for found, offset in self._all.new_claims():
            self._claimed[found] = offset
        if self._at_first < 0:
            self._at_first = len(self._claimed)
        if any(one in self._claimed and one not in self._committed for one in wanted):
            self._committed.update(found for found, _ in self._safe.new_claims())
        return {one: self._verdict(one) for one in wanted}

    def _verdict(self, wanted: Claim) -> Verdict:
        if wanted in self._committed:
            return Verdict.DONE
        last = self._claimed.get(wanted)
        return Verdict.NONE if last is None or self._safe.end > last else Verdict.OPEN

    def close(self) -> None:
        self._all.close()
        self._safe.close()


class _Reader:
    """Reads a partition to its end repeatedly. For `read_committed`, the end is the first open transaction."""

    def __init__(self, connection: Connection, tp: TopicPartition, first_ms: int, isolation: str) -> None:
        self._consumer: Consumer = connection.consumer(isolation_level=isolation, enable_partition_eof=True)
        self._tp = tp
        instant = TopicPartition(tp.topic, tp.partition, first_ms)
        (found,) = offsets_at(self._consumer, [instant])
        first, end = log_bounds(self._consumer, tp)
        self.end = max(first, found.offset) if found.offset >= 0 else end
        self._consumer.assign([TopicPartition(tp.topic, tp.partition, self.end)])

    def new_claims(self) -> Sequence[tuple[Claim, int]]:
        """Return the claims since the last call, with their offsets, and move `end` to the partition's end."""
        _, end = log_bounds(self._consumer, self._tp)
        claims: list[tuple[Claim, int]] = []
        give_up = time.monotonic() + _PATIENCE_S
        while self.end < end:
            for message in arrived(self._consumer, _AT_ONCE, _LOOK_S):
                error = message.error()
                if error is None:
                    claims.append((message.key() or b"", message.offset() or 0))
                    self.end = (message.offset() or 0) + 1
                elif error.code() == KafkaError._PARTITION_EOF:
                    self.end = max(self.end, message.offset() or 0)
                elif error.fatal():
                    raise KafkaException(error)
            if time.monotonic() >= give_up:
                raise LapseError(f"{self._tp.topic} could not be read to its end within {_PATIENCE_S:g} s")
        return claims

    def close(self) -> None:
        self._consumer.close()
