"""Creates topics and publishes the messages that every contestant handles."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from typing import Final

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

from lapse.topic_creation import NewTopic

PAYLOAD_BYTES: Final = 200
KEYS: Final = 100_000

Headers = list[tuple[str, str | bytes | None]]

AN_HOUR: Final[Sequence[Headers]] = ([("lapse-ttl-ms", b"3600000")],)
"""Headers with a lifetime that does not end while a benchmark runs."""


def create(bootstrap_servers: str, topic: str, partitions: int = 1) -> None:
    """Create a topic whose timestamps are the broker's."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    settings = {"message.timestamp.type": "LogAppendTime"}
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
        future.result()


def publish(
    bootstrap_servers: str,
    topic: str,
    count: int,
    *,
    headers: Sequence[Headers] = AN_HOUR,
    payload: Callable[[int], bytes] | None = None,
    keys: int = KEYS,
    at_once: bool = False,
) -> None:
    """Write messages of about `PAYLOAD_BYTES` bytes as fast as possible, and wait until Kafka has all.

    Args:
        bootstrap_servers: the broker.
        topic: the topic.
        count: the number of messages.
        headers: the headers that messages get in turn.
        payload: makes a payload from a message's number; None = the same random text for all.
        keys: the number of different keys, used in turn.
        at_once: write in one transaction, so that all become visible at one instant.
    """
    settings: dict[str, str | int] = {
        "bootstrap.servers": bootstrap_servers,
        "linger.ms": 20,
        "batch.size": 500_000,
        "queue.buffering.max.messages": 1_000_000,
        "acks": "all",
    }
    producer = Producer(settings | {"transactional.id": topic} if at_once else settings)
    if at_once:
        producer.init_transactions(30)
        producer.begin_transaction()
    same = os.urandom(PAYLOAD_BYTES // 2).hex().encode()
    kinds = len(headers)
    for number in range(count):
        body = same if payload is None else payload(number)
        while True:
            try:
                producer.produce(topic, body, key=b"k%d" % (number % keys), headers=headers[number % kinds])
                break
            except BufferError:
                producer.poll(0.05)
        if number % 5_000 == 0:
            producer.poll(0)
    producer.flush()
    if at_once:
        producer.commit_transaction(30)


def order(number: int, accounts: int = 50_000) -> bytes:
    """Return a JSON payload for expressions: prices from 0 to 999, 26 symbols, and accounts in no order."""
    head = b'{"id":%d,"price":%d,"qty":%d,"symbol":"%cBC","account":"a%d","note":"' % (
        number,
        number * 7919 % 1000,
        number % 90 + 1,
        65 + number % 26,
        (number * 2_654_435_761 >> 8) % accounts,
    )
    return head + b"x" * max(0, PAYLOAD_BYTES - len(head) - 2) + b'"}'
