"""Orders: what a transfer was asked to hand over, so that `--resume` can finish all of it (C57).

The shards know what is held and what has left, but not what was still to be held. So the order is written to a
compacted topic of the deployment that hands over, before anything is held.
"""

from __future__ import annotations

import logging
from dataclasses import dataclass, field, replace
from typing import Final

import orjson
from confluent_kafka import Consumer, KafkaError, KafkaException, TopicCollection, TopicPartition

from lapse.core.generation import position_of
from lapse.protocol.bookmark import Bookmark, BookmarkRange, range_text
from lapse_client.kafka import compacted_topic
from lapse_client.kafka.connection import Connection
from lapse_client.kafka.fault import flushed
from lapse_client.kafka.log_offsets import log_bounds
from lapse_client.kafka.span import span

logger = logging.getLogger(__name__)

TOPIC: Final = "lapse.transfers"
_PATIENCE_S: Final = 30.0


@dataclass(frozen=True, slots=True)
class Order:
    """What a transfer is asked to hand over.

    Attributes:
        named: ranges of bookmarks, by shard.
        filter: only messages that match this expression; empty for all.
        listed: whether the messages were named one by one, so that a missing one is reported.
        cancelled: whether the transfer was cancelled.
        unfinished: the first generation of a follower that may have left something, and the latest one.
        topics: id of each named topic. In another topic with the name, the bookmarks are of other messages (C42).
        target: queue and cluster to which they go; empty if an earlier version of lapse did not note it.
    """

    named: dict[int, tuple[str, ...]]
    filter: str = ""
    listed: bool = False
    cancelled: bool = False
    unfinished: tuple[int, int] = (0, 0)
    topics: dict[str, str] = field(default_factory=dict)
    target: str = ""


class Orders:
    """The orders of the transfers of one queue. A transfer that is begun again under its id replaces its order.

    Args:
        connection: the cluster that hands over.
        queue: its queue.
    """

    def __init__(self, connection: Connection, queue: str) -> None:
        self._connection = connection
        self._queue = queue

    def write(self, transfer: str, order: Order) -> None:
        """Store an order. It is safe when this returns.

        Raises:
            KafkaException: the broker refuses, or does not answer.
        """
        compacted_topic.make(self._connection, TOPIC)
        order = replace(order, topics=self._topic_ids(order))
        faults: list[KafkaError] = []
        producer = self._connection.producer()
        producer.produce(
            TOPIC,
            orjson.dumps(order, option=orjson.OPT_NON_STR_KEYS),
            self._key(transfer),
            on_delivery=lambda error, _: None if error is None else faults.append(error),
        )
        if flushed(producer, _PATIENCE_S):
            raise KafkaException(KafkaError(KafkaError._TIMED_OUT, f"{TOPIC}: no answer"))
        if faults:
            raise KafkaException(faults[0])

    def read(self, transfer: str) -> Order | None:
        """Return a transfer's order, without ranges of topics that no longer exist; None if there is no order.

        Raises:
            LapseError: the topic cannot be read.
            KafkaException: the brokers do not say which topics exist.
        """
        topics, key, found = self._connection.partitions(), self._key(transfer), None
        there = {TOPIC: topics[TOPIC]} if TOPIC in topics else {}
        for message in span(self._connection, there, committed=False):
            if message.key() == key:
                found = _read(message.value()) or found
        return None if found is None else self._without_deleted_topics(found)

    def _without_deleted_topics(self, order: Order) -> Order:
        now = self._topic_ids(order)
        gone = {name for name, topic_id in order.topics.items() if now.get(name) != topic_id}
        named = {
            shard: tuple(text for text in texts if BookmarkRange.parse(text).topic not in gone)
            for shard, texts in order.named.items()
        }
        return replace(order, named=named)

    def _topic_ids(self, order: Order) -> dict[str, str]:
        """Return the ids of the topics that an order names, without topics that do not exist."""
        names = {BookmarkRange.parse(text).topic for texts in order.named.values() for text in texts}
        admin, ids = self._connection.admin(), {}
        answers = admin.describe_topics(TopicCollection(sorted(names)), request_timeout=_PATIENCE_S) if names else {}
        for name, answer in answers.items():
            try:
                ids[name] = str(answer.result().topic_id)
            except KafkaException as error:
                if error.args[0].code() != KafkaError.UNKNOWN_TOPIC_OR_PART:
                    raise
        return ids

    def _key(self, transfer: str) -> bytes:
        return f"{self._queue}/{transfer}".encode()


def ranges_to_end(consumer: Consumer, source: Bookmark) -> list[str]:
    """Return the ranges of an underlying partition up to its present end, one for each generation (C61).

    Args:
        consumer: reads the end.
        source: the position before which the shard has read, in the latest generation.
    """
    _, end = log_bounds(consumer, TopicPartition(source.topic, source.partition))
    last = max(end, source.log_offset) - 1
    if last < 0:
        return []
    return [
        range_text(source.topic, source.partition, position_of(0, generation), position_of(last, generation))
        for generation in range(source.generation + 1)
    ]


def _read(value: bytes | None) -> Order | None:
    """Return the order in a record; None if it holds none, as a foreign record may."""
    try:
        kept = orjson.loads(value or b"")
        named = {int(shard): tuple(texts) for shard, texts in kept["named"].items()}
        for texts in named.values():
            for text in texts:
                BookmarkRange.parse(text)
        first, last = kept.get("unfinished", (0, 0))
        return Order(
            named,
            str(kept.get("filter", "")),
            bool(kept.get("listed")),
            bool(kept.get("cancelled")),
            (int(first), int(last)),
            {str(name): str(topic_id) for name, topic_id in kept.get("topics", {}).items()},
            str(kept.get("target", "")),
        )
    except (ValueError, TypeError, KeyError, AttributeError) as error:
        logger.warning("%s: a record that is no order is passed over: %s", TOPIC, error)
        return None
