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

from lapse.core.shard.retirement import LAST_READ, RETIREMENT, Phase, Retirement

_TAIL: Final = -2_000
"""librdkafka's offset that stands for the end of a partition. Lower ones stand for offsets before it."""

_PATIENCE_S: Final = 5.0
"""How long to wait for the last records, s. What is not read by then counts as not decided."""


def is_retirement(message: Message) -> bool:
    """Return whether a record of a changelog's first partition is a note on the end of its entity."""
    key = message.key()
    return isinstance(key, bytes) and key[:1] == RETIREMENT


def retirement_decided(message: Message) -> Retirement | None:
    """Return the end that such a note says is decided; None = none is."""
    value = message.value()
    retirement = None if value is None else Retirement.decode(value)
    return None if retirement is None or retirement.phase is not Phase.RETIRED else retirement


def decided_ends(settings: Mapping[str, Any], changelogs: Collection[str]) -> dict[str, Retirement]:
    """Return, by changelog, the ends that are decided. All are read at the same time.

    Shards keep the note of a decision among the last records. Changelogs that we may not read, or that are gone, are
    left out.

    Args:
        settings: librdkafka's settings: brokers and security.
        changelogs: the changelog topics.
    """
    if not changelogs:
        return {}
    options = {
        "group.id": min(changelogs),  # librdkafka asks for one; nobody joins it
        "enable.auto.commit": False,
        "enable.partition.eof": True,
        "fetch.wait.max.ms": 10,  # the ends are reported by answers without records
        "auto.offset.reset": "earliest",
        "isolation.level": "read_uncommitted",
    }
    consumer = Consumer({**settings, **options})
    found, unread = dict[str, Retirement](), set(changelogs)
    try:
        with contextlib.suppress(KafkaException):  # it knows the brokers sooner
            consumer.list_topics(timeout=_PATIENCE_S)
        consumer.assign([TopicPartition(name, 0, _TAIL - LAST_READ) for name in unread])
        give_up = time.monotonic() + _PATIENCE_S
        while unread and time.monotonic() < give_up:
            for message in consumer.consume(1_000, 0.05):
                name, failure = message.topic() or "", message.error()
                if failure is not None:
                    if failure.code() != KafkaError.GROUP_AUTHORIZATION_FAILED:  # no group is needed
                        unread.discard(name)
                elif is_retirement(message):
                    found.pop(name, None)
                    if (decided := retirement_decided(message)) is not None:
                        found[name] = decided
    finally:
        consumer.close()
    return found
