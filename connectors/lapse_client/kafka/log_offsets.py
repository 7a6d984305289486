"""Offsets of partitions: where they begin and end, and which offset belongs to an instant.

For a moment after a broker was lost, nobody leads its partitions. Each question is asked again until somebody does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from typing import Final, TypeVar

from confluent_kafka import Consumer, KafkaError, KafkaException, TopicPartition

from lapse_client.error import ConnectionFailed
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S

_RETRY_S: Final = 0.1

_ELECTING: Final = frozenset(
    {
        KafkaError.NOT_LEADER_FOR_PARTITION,
        KafkaError.LEADER_NOT_AVAILABLE,
        KafkaError.REPLICA_NOT_AVAILABLE,
        KafkaError.KAFKA_STORAGE_ERROR,
        KafkaError.OFFSET_NOT_AVAILABLE,
        KafkaError.FENCED_LEADER_EPOCH,
        KafkaError.UNKNOWN_LEADER_EPOCH,
    }
)
"""Errors that brokers return for a moment after a broker was lost: another one leads the partition now, or will."""

_NEW: Final = frozenset({KafkaError.UNKNOWN_TOPIC_OR_PART, KafkaError._UNKNOWN_PARTITION})
"""Errors that brokers return for a moment after a topic was created."""

T = TypeVar("T")


def log_bounds(consumer: Consumer, tp: TopicPartition, new_s: float = METADATA_TIMEOUT_S) -> tuple[int, int]:
    """Return the first offset of a partition and its end offset; wait while a leader is being elected.

    Args:
        consumer: a consumer of the cluster.
        tp: the partition.
        new_s: how long brokers may not know the topic, s.

    Raises:
        KafkaException: no answer in time, or a refusal.
    """
    return _elected(
        consumer,
        tp.topic,
        lambda: consumer.get_watermark_offsets(tp, timeout=METADATA_TIMEOUT_S),
        _ELECTING | _NEW,
        new_s,
    )


def _elected(
    consumer: Consumer,
    topic: str,
    ask: Callable[[], T],
    passing: Collection[int],
    new_s: float = METADATA_TIMEOUT_S,
) -> T:
    """Ask a partition's leader; ask again while brokers answer with a passing error, and leaders are elected."""
    began = time.monotonic()
    while True:
        try:
            return ask()
        except KafkaException as error:
            code = error.args[0].code()
            patience_s = new_s if code in _NEW else METADATA_TIMEOUT_S
            if code not in passing or time.monotonic() - began >= patience_s:
                raise
            time.sleep(_RETRY_S)
            with suppress(KafkaException):  # it keeps what it has heard of a topic, even from a broker just back
                consumer.list_topics(topic, timeout=1.0)


def log_end(consumer: Consumer, name: str, partition: int) -> TopicPartition:
    """Return the present end of a partition. Unlike OFFSET_END, it cannot skip the answer to a command sent next.

    Raises:
        KafkaException: no answer in time, or a refusal.
    """
    tp = TopicPartition(name, partition)
    _, tp.offset = log_bounds(consumer, tp)
    return tp


def assign_ends(consumer: Consumer, tps: Iterable[tuple[str, int]], servers: str) -> None:
    """Have a consumer read partitions from their present ends on.

    Args:
        consumer: the consumer.
        tps: topics and partitions.
        servers: the brokers, for the error's text.

    Raises:
        ConnectionFailed: no answer in time, or a refusal.
    """
    try:
        consumer.assign([log_end(consumer, *tp) for tp in tps])
    except KafkaException as error:
        raise ConnectionFailed(servers, error) from error


def offsets_at(consumer: Consumer, instants: Sequence[TopicPartition]) -> list[TopicPartition]:
    """Return each partition with the offset of its first record at or after an instant; negative = there is none.

    Wait while a leader is being elected.

    Args:
        consumer: a consumer of the cluster.
        instants: the partitions, each with an instant, ms since the epoch, in place of the offset. Negative ones count
            as 0: to a broker they are other questions, such as where a partition ends.

    Raises:
        KafkaException: no answer in time, or a refusal, be it for one partition only.
    """
    asked = [TopicPartition(one.topic, one.partition, max(0, one.offset)) for one in instants]

    def ask() -> list[TopicPartition]:
        found = consumer.offsets_for_times(asked, timeout=METADATA_TIMEOUT_S)
        if fault := next((tp.error for tp in found if tp.error is not None), None):
            raise KafkaException(fault)
        return found

    return _elected(consumer, asked[0].topic, ask, _ELECTING) if asked else []
