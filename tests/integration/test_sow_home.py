"""A SOW topic whose keys come from payloads, over several partitions, on a real broker (C46)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lapse.core.sow.home import Home
from lapse_client import Connection, SowClient
from support.log import until
from support.worker import Worker

PARTITIONS = 3


@pytest.fixture
def worker(kafka: str, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Worker]:
    entity = f'[sow."{unique("orders")}"]\nkey = "/id"\npartitions = {PARTITIONS}\nexpiration = "enabled"\n'
    with Worker(tmp_path, kafka, unique("app"), entity) as running:
        yield running


def publish(servers: str, topic: str, rows: list[tuple[int, object]], **headers: str) -> None:
    producer = Producer({"bootstrap.servers": servers})
    for partition, payload in rows:
        producer.produce(topic, orjson.dumps(payload), partition=partition, headers=headers)
        if len(rows) < 100:
            producer.flush(20)  # one after the other: their stamps tell the order
            time.sleep(0.002)
    assert producer.flush(60) == 0


def compacted(servers: str, topic: str) -> dict[bytes, tuple[int, bytes]]:
    """Key to partition and payload."""
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "enable.auto.commit": False})
    latest: dict[bytes, tuple[int, bytes]] = {}
    try:
        for partition in range(PARTITIONS):
            at = TopicPartition(topic, partition, 0)
            end = consumer.get_watermark_offsets(at, timeout=20)[1]
            consumer.assign([at])
            while end and (record := consumer.poll(10)) is not None:
                if record.value() is None:
                    latest.pop(record.key(), None)
                else:
                    latest[record.key()] = (partition, record.value())
                if record.offset() + 1 >= end:
                    break
    finally:
        consumer.close()
    return latest


@pytest.mark.feature("C46", "S1", "S3", "S5", "S8", "C1")
def test_updates_on_any_partition_meet_at_the_keys_home_and_survive_a_kill(worker: Worker, kafka: str) -> None:
    name = worker.entity
    with SowClient(name, connection=Connection(kafka)) as client:

        def shown() -> dict[int, object]:
            return {row["id"]: row for row in (orjson.loads(record.value) for record in client.query())}

        # Every update of a key stands on another partition than the one before.
        publish(kafka, name, [(turn % PARTITIONS, {"id": 1, "n": turn}) for turn in range(7)])
        until(lambda: shown() == {1: {"id": 1, "n": 6}}, "the last update")
        publish(
            kafka,
            name,
            [(turn % PARTITIONS, {"id": 1, f"f{turn}": turn}) for turn in range(5)],
            **{"lapse-command": "delta"},
        )
        merged = {"id": 1, "n": 6, **{f"f{turn}": turn for turn in range(5)}}
        until(lambda: shown() == {1: merged}, "the deltas")
        assert client.delete(keys=["[1]", "[2]"]) == 1
        assert shown() == {}

        # While nothing runs, a backlog grows whose halves are far apart in time; then it is killed in the middle.
        worker.kill()
        rows = 4000
        publish(kafka, name, [(0, {"id": number, "n": "old"}) for number in range(rows)])
        publish(kafka, name, [(number % PARTITIONS, {"id": number, "n": "new"}) for number in range(rows)])
        publish(kafka, name, [(1, {"id": number, "d": 1}) for number in range(rows)], **{"lapse-command": "delta"})
        worker.start()
        time.sleep(0.3)
        worker.kill()
        worker.start()
        expected = {number: {"id": number, "n": "new", "d": 1} for number in range(rows)}
        until(lambda: shown() == expected, "every record, with its delta", 60)

        table = compacted(kafka, f"lapse.sow.{name}")
        assert {key: orjson.loads(value) for key, (_, value) in table.items()} == {
            b"[%d]" % number: row for number, row in expected.items()
        }
        assert all(Home(partition, PARTITIONS).holds(key) for key, (partition, _) in table.items())
