"""A Kafka share group: the same messages through confluent-kafka's `ShareConsumer`, explicitly acknowledged."""

from __future__ import annotations

import time
from collections.abc import Sequence

from confluent_kafka import Message, ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks.comparison.contestant import Figures, Stopwatch, alone
from benchmarks.instruments.load import create, publish


def run(bootstrap_servers: str, messages: int = 300_000) -> Figures:
    """Publish, and drain through one consumer.

    The time runs from the first batch to the answer to the last acknowledgment.
    """
    topic = group = f"share-{time.time_ns()}"
    create(bootstrap_servers, topic)
    publish(bootstrap_servers, topic, messages)
    from_the_beginning(bootstrap_servers, group)
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([topic])
    got = 0
    watch: Stopwatch | None = None
    patience = time.monotonic() + 120
    while got < messages and time.monotonic() < patience:
        batch = consumer.poll(1.0)
        if not batch:
            continue
        watch = watch or Stopwatch()
        got += acknowledge_all(consumer, batch)
    consumer.commit_sync()
    if got < messages or watch is None:
        raise RuntimeError(f"{got} of {messages} delivered")
    figures = watch.figures(got)
    consumer.close()
    return figures


def acknowledge_all(consumer: ShareConsumer, batch: Sequence[Message]) -> int:
    """Read key and payload of each message, as lapse's consumers do, and acknowledge them; return how many."""
    got = 0
    for message in batch:
        if message.error() is None:
            message.key()
            message.value()
            consumer.acknowledge(message)
            got += 1
    consumer.commit_async()
    return got


def from_the_beginning(bootstrap_servers: str, group: str) -> None:
    """Make a share group start at the beginning of the log, and read only committed transactions."""
    settings = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET)
        for name, value in (("share.auto.offset.reset", "earliest"), ("share.isolation.level", "read_committed"))
    ]
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    changes = [ConfigResource(ResourceType.GROUP, group, incremental_configs=settings)]
    for future in admin.incremental_alter_configs(changes).values():
        future.result()


if __name__ == "__main__":
    alone(run)
