"""Handing a record to a producer whose queue may be full."""

from __future__ import annotations

from typing import Any

from confluent_kafka import Producer


def produce(producer: Producer, topic: str, value: Any, key: Any, **options: Any) -> None:
    """Produce a record, once the producer's queue has room for it."""
    while True:
        try:
            producer.produce(topic, value, key, **options)
        except BufferError:
            producer.poll(0.1)
        else:
            return
