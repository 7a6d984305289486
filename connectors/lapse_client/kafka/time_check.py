"""Measures the broker's clock once, for tools that send no commands of their own (C3)."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Final

from confluent_kafka import TIMESTAMP_LOG_APPEND_TIME, KafkaError, KafkaException, Message

from lapse.protocol import topic
from lapse.protocol.tick import TICK_KEY
from lapse_client.error import ConnectionFailed, LapseError
from lapse_client.kafka.clock import elapsed_ms
from lapse_client.kafka.connection import Connection, entities
from lapse_client.kafka.fault import flushed
from lapse_client.kafka.metadata import METADATA_TIMEOUT_S

_ANSWER_S: Final = 5.0
_TICKS: Final = 2
"""Number of ticks. The first one opens the connection and measures badly, the second one is quick."""


def now_ms(connection: Connection, name: str, warn: Callable[[str], None]) -> int:
    """Return the broker's time, ms since the epoch. If it is unknown, return this machine's time, with a warning.

    Args:
        connection: the cluster.
        name: an entity, or its dead-letter topic.
        warn: called with a sentence that says what is wrong.
    """
    try:
        measure(connection, name)
    except LapseError as error:
        warn(f"this machine's clock is used; the broker's time is unknown: {error}")
    return int(connection.clock.now_ms())


def measure(connection: Connection, name: str = "") -> None:
    """Measure the broker's clock with ticks, unless the connection has measured it already.

    A tick changes nothing: it makes a shard look at its timers. It is written to the named entity if that exists,
    else to another one.

    Args:
        connection: the cluster.
        name: an entity, or its dead-letter topic.

    Raises:
        LapseError: the broker's time cannot be found; the text says why.
    """
    if connection.clock.is_measured:
        return
    topics = connection.partitions()
    wanted = name.removeprefix(topic.DEAD_LETTER_PREFIX)
    known = sorted({*entities(topics, sow=False), *entities(topics, sow=True)}, key=lambda one: (one != wanted, one))
    if not known:
        raise LapseError("there is no entity; `lapse apply` makes the topics whose timestamps tell the broker's time")
    commands = topic.commands(known[0])
    faults: list[KafkaError] = []
    kinds: list[int] = []
    producer = connection.producer(**{"message.timeout.ms": int(_ANSWER_S * 1000)})
    try:
        producer.list_topics(timeout=METADATA_TIMEOUT_S)
        for _ in range(_TICKS):
            sent_ms = elapsed_ms()

            def reported(error: KafkaError | None, message: Message, sent_ms: float = sent_ms) -> None:
                if error is not None:
                    faults.append(error)
                    return
                kind, stamp_ms = message.timestamp()
                kinds.append(kind)
                if kind == TIMESTAMP_LOG_APPEND_TIME:
                    connection.clock.observe(sent_ms, stamp_ms, elapsed_ms())

            producer.produce(commands, b"", TICK_KEY, partition=0, on_delivery=reported)
            give_up = time.monotonic() + 2 * _ANSWER_S
            while flushed(producer, _ANSWER_S) and time.monotonic() < give_up:
                pass
            if faults:
                raise LapseError(f"{commands}: {faults[0].str()}")
    except (KafkaException, BufferError) as error:
        raise ConnectionFailed(connection.bootstrap_servers, error) from error
    if not connection.clock.is_measured:
        why = "its timestamps are not the broker's (LogAppendTime)" if kinds else "no answer in time"
        raise LapseError(f"{commands}: {why}")
