"""A Kafka share group: the same messages through confluent-kafka's `ShareConsumer`, explicitly acknowledged."""

from __future__ import annotations

import json
import sys
import time

from confluent_kafka import ShareConsumer
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, ResourceType

from benchmarks.load import create, publish


def run(bootstrap_servers: str, messages: int) -> dict[str, float]:
    """Publish, and drain through one consumer; rates in messages a second."""
    topic = group = f"share-{time.time_ns()}"
    create(bootstrap_servers, topic)
    publish(bootstrap_servers, topic, messages)
    earliest = ConfigEntry("share.auto.offset.reset", "earliest", incremental_operation=AlterConfigOpType.SET)
    admin = AdminClient({"bootstrap.servers": bootstrap_servers})
    changes = [ConfigResource(ResourceType.GROUP, group, incremental_configs=[earliest])]
    for future in admin.incremental_alter_configs(changes).values():
        future.result()
    consumer = ShareConsumer(
        {"bootstrap.servers": bootstrap_servers, "group.id": group, "share.acknowledgement.mode": "explicit"}
    )
    consumer.subscribe([topic])
    got = 0
    began = 0.0
    first_cpu = 0.0
    patience = time.monotonic() + 120
    while got < messages and time.monotonic() < patience:
        batch = consumer.poll(1.0)
        if not batch:
            continue
        if not got:
            began, first_cpu = time.perf_counter(), time.process_time()
        for message in batch:
            if message.error() is None:
                message.key()
                message.value()
                consumer.acknowledge(message)
                got += 1
        consumer.commit_async()
    consumer.commit_sync()
    ended = time.perf_counter()
    consumer.close()
    if got < messages:
        raise RuntimeError(f"{got} of {messages} delivered")
    return {"messages": got, "rate": got / (ended - began), "client_cpu_s": time.process_time() - first_cpu}


if __name__ == "__main__":
    print(json.dumps(run(sys.argv[1], int(sys.argv[2]))))
