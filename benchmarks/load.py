"""The messages that every contestant works on."""

from __future__ import annotations

import os

from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient, NewTopic

PAYLOAD_BYTES = 200


def create(bootstrap_servers: str, topic: str, partitions: int = 1) -> None:
    """Create a topic with the broker's timestamps."""
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    settings = {"message.timestamp.type": "LogAppendTime"}
    for future in admin.create_topics([NewTopic(topic, partitions, 1, config=settings)]).values():
        future.result()


def publish(bootstrap_servers: str, topic: str, count: int) -> None:
    """Write `count` messages of `PAYLOAD_BYTES` bytes with a lifetime of an hour."""
    producer = Producer(
        {
            "bootstrap.servers": bootstrap_servers,
            "linger.ms": 20,
            "batch.size": 500_000,
            "queue.buffering.max.messages": 1_000_000,
            "acks": "all",
        }
    )
    payload = os.urandom(PAYLOAD_BYTES // 2).hex().encode()
    headers = [("lapse-ttl-ms", b"3600000")]
    for number in range(count):
        while True:
            try:
                producer.produce(topic, payload, key=b"k%d" % (number % 100_000), headers=headers)
                break
            except BufferError:
                producer.poll(0.05)
        if number % 5_000 == 0:
            producer.poll(0)
    producer.flush()
