"""Entities whose end their shards have decided, while their topics may all be there still (C4, Q18).

The changelog says so from the decision on. The shards answer only for a moment that the entity is deleted, and are
silent until the topics are removed.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Collection, Mapping
from typing import Any, Final

from confluent_kafka import Consumer, KafkaError, KafkaException, Message, TopicPartition

from lapse.core.shard.retirement import RETIREMENT, Phase, Retirement

_LAST: Final = 1_000
"""How many of the last offsets of a changelog are read. After the decision only removals of messages are written."""

_TAIL: Final = -2_000
"""librdkafka's offset that stands for the end of a partition. Lower ones stand for offsets before it."""

_PATIENCE_S: Final = 5.0
"""How long to wait for the last records, s. What is not read by then counts as not decided."""


def retirement_decided(message: Message) -> bool | None:
    """Return whether a record of a changelog's first partition says that the end is decided; None = nothing on it."""
    key, value = message.key(), message.value()
    if not isinstance(key, bytes) or key[:1] != RETIREMENT:
        return None
    return value is not None and Retirement.decode(value).phase is Phase.RETIRED


def decided_ends(settings: Mapping[str, Any], changelogs: Collection[str]) -> set[str]:
    """Return those of some changelogs by which the end of their entities is decided. All are read at the same time.

    Changelogs that we may not read, or that are gone, are left out.

    Args:
        settings: librdkafka's settings: brokers and security.
        changelogs: the changelog topics.
    """
    if not changelogs:
        return set()
    options = {
        "group.id": min(changelogs),  # librdkafka asks for one; nobody joins it
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,  # the ends are reported by answers without records
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",
    }
    consumer = Consumer({**settings, **options})
    found, unread = set[str](), set(changelogs)
    try:
        with contextlib.suppress(KafkaException):  # it knows the brokers sooner
            consumer.list_topics(timeout=_PATIENCE_S)
        consumer.assign([TopicPartition(name, 0, _TAIL - _LAST) for name in unread])
        give_up = time.monotonic() + _PATIENCE_S
        while unread and time.monotonic() < give_up:
            for message in consumer.consume(1_000, 0.05):
                name, failure = message.topic() or "", message.error()
                if failure is not None:
                    if failure.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # no group is needed
                        unread.discard(name)
                elif (decided := retirement_decided(message)) is not None:
                    (found.add if decided else found.discard)(name)
    finally:
        consumer.close()
    return found
