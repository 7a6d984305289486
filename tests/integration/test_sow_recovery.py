"""A SOW topic of 100,000 records, killed again and again, on memory and on RocksDB (S9, Q16, L11)."""

import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

from lapse_client import Connection, Publisher, SowClient
from support.log import Tail, until
from support.worker import Worker

RECORDS = 100_000


def compact(servers: str, topic: str) -> None:
    """Have a topic compacted soon, its tombstones forgotten at once."""
    settings = {
        "segment.ms": "500",
        "min.cleanable.dirty.ratio": "0.001",
        "delete.retention.ms": "0",
        "min.compaction.lag.ms": "0",
        "max.compaction.lag.ms": "1000",
    }
    entries = [
        ConfigEntry(name, value, incremental_operation=AlterConfigOpType.SET) for name, value in settings.items()
    ]
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=entries)
    admin = AdminClient({"bootstrap.servers": servers})
    for future in admin.incremental_alter_configs([resource]).values():
        future.result(30)


def size(servers: str, topic: str) -> int:
    tail = Tail(servers, topic)
    try:
        return len(tail.drain())
    finally:
        tail.close()


@pytest.mark.feature("S9", "Q16", "L11", "L9", "S3")
@pytest.mark.slow
@pytest.mark.parametrize("store", ["memory", "rocksdb"])
def test_nothing_is_lost_and_nothing_that_expired_comes_back(
    kafka: str, unique: Callable[[str], str], tmp_path: Path, store: str
) -> None:
    name, app = unique("prices"), unique("app")
    worker = Worker(tmp_path, kafka, app, f'[sow."{name}"]\nexpiration = "enabled"\n', store)
    connection = Connection(kafka)

    def count(*keys: str) -> int:
        with SowClient(name, connection=connection) as client:
            return sum(1 for _ in client.query(keys=keys or ()))

    with worker:
        producer = Producer({"bootstrap.servers": kafka, "linger.ms": 20, "queue.buffering.max.messages": RECORDS})
        # The even ones live for 25 seconds; everything was written before the worker is killed the first time.
        for number in range(RECORDS):
            lifetime = {"lapse-ttl-ms": "25000"} if number % 2 == 0 else {}
            producer.produce(name, b'{"n": %d}' % number, b"k%d" % number, headers=lifetime)
        assert producer.flush(60) == 0
        written_at = time.monotonic()
        worker.kill()
        worker.start()
        worker.kill()
        worker.start()
        until(lambda: count("k1", f"k{RECORDS - 1}") == 2, "the last record", 60)
        with SowClient(name, connection=connection) as client:
            assert client.delete(keys=["k1"]) == 1
        worker.kill()

        # What expires while nothing runs is gone before the first answer.
        time.sleep(max(0.0, 26 - (time.monotonic() - written_at)))
        worker.start()
        assert count() == RECORDS // 2 - 1
        if store == "rocksdb":
            (restored,) = re.findall(r"restored (\d+) keys \(changelog read from (\d+)", worker.text())[-1:]
            assert int(restored[1]) > 0, "only the tail of the changelog is read"
        until(lambda: size(kafka, f"lapse.sow.{name}") > RECORDS, "tombstones")

        # After compaction, which forgets the tombstones, they stay gone: with the copy on disk, and without it.
        compact(kafka, f"{app}-{name}-changelog")
        with Publisher(connection) as publisher:

            def shrunk() -> bool:
                publisher.publish(name, b"{}", key="k3")  # so that the segment before is closed
                time.sleep(0.6)
                return size(kafka, f"{app}-{name}-changelog") < RECORDS

            until(shrunk, "compaction", 90)
        for without_disk in (False, True):
            worker.kill()
            if without_disk:
                shutil.rmtree(tmp_path / "state", ignore_errors=True)
            worker.start()
            assert count() == RECORDS // 2 - 1
            assert count("k0", "k1", "k2") == 0
