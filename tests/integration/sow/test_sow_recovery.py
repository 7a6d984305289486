"""A SOW topic of many records, killed again and again, on memory and on RocksDB (S9, Q16, L11)."""

import shutil
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from confluent_kafka import Producer

from lapse_client import Connection, Publisher, SowClient
from support.flow.sow_state import count, restored, size
from support.kafka.compaction import compact_eagerly
from support.kafka.log import until
from support.processes.worker import Worker
from support.suite.at_length import AT_LENGTH, cases

RECORDS = 100_000 if AT_LENGTH else 30_000


@pytest.mark.feature("S9", "Q16", "L11", "L9", "S3")
@pytest.mark.slow
@pytest.mark.parametrize("store", cases(["rocksdb"], ["memory"]))  # begins without its copy, too, like memory
def test_nothing_is_lost_and_nothing_that_expired_comes_back(
    kafka: str, unique: Callable[[str], str], tmp_path: Path, store: str
) -> None:
    name, app = unique("prices"), unique("app")
    worker = Worker(tmp_path, kafka, app, f'[sow."{name}"]\nexpiration = "enabled"\n', store)
    connection = Connection(kafka)

    def held(*keys: str) -> int:
        with SowClient(name, connection=connection) as client:
            return count(client, *keys)

    with worker:
        producer = Producer({"bootstrap.servers": kafka, "linger.ms": 20, "queue.buffering.max.messages": RECORDS})
        # The even ones live for 12 seconds; everything was written before the worker is killed the first time.
        for number in range(RECORDS):
            lifetime = {"lapse-ttl-ms": "12000"} if number % 2 == 0 else {}
            producer.produce(name, b'{"n": %d}' % number, b"k%d" % number, headers=lifetime)
        assert producer.flush(60) == 0
        written_at = time.monotonic()
        worker.kill()
        worker.start()
        worker.kill()
        worker.start()
        until(lambda: held("k1", f"k{RECORDS - 1}") == 2, "the last record", 60)
        with SowClient(name, connection=connection) as client:
            assert client.delete(keys=["k1"]) == 1
        worker.kill()

        # What expires while nothing runs is gone before the first answer.
        time.sleep(max(0.0, 13 - (time.monotonic() - written_at)))
        worker.start()
        assert held() == RECORDS // 2 - 1
        if store == "rocksdb":
            assert restored(worker)[-1].begun_offset > 0, "only the tail of the changelog is read"
        until(lambda: size(kafka, f"lapse.sow.{name}") > RECORDS, "tombstones")

        # After compaction, which forgets the tombstones, they stay gone: with the copy on disk, and without it.
        compact_eagerly(kafka, f"{app}-{name}-changelog")
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
            assert held() == RECORDS // 2 - 1
            assert held("k0", "k1", "k2") == 0
