"""A SOW topic whose keys come from payloads, over several partitions, on a real broker (C46)."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.core.sow.keys.home import Home
from lapse.protocol import event, topic
from lapse.topic_creation import NewTopic
from lapse_client import Connection, SowClient
from support.kafka.created_topic import create
from support.kafka.log import Tail, until
from support.processes.worker import Worker

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
        assert client.delete(data=['{"id": 2}']) == 0
        assert client.delete(data=['{"id": 1, "n": "any"}']) == 1
        assert shown() == {}
        publish(kafka, name, [(0, {"id": 1})])
        until(lambda: shown() == {1: {"id": 1}}, "the record again")
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


@pytest.mark.feature("C88", "C46", "D4")
def test_one_stamp_ahead_of_the_clock_hides_nothing_that_follows(
    kafka: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("stamped")
    admin = AdminClient({"bootstrap.servers": kafka})
    config = {"message.timestamp.type": "CreateTime"}
    create(admin, NewTopic(name, PARTITIONS, 1, config=config))
    entity = f'[sow."{name}"]\nkey = "/id"\npartitions = {PARTITIONS}\n'
    producer = Producer({"bootstrap.servers": kafka})

    def put(partition: int, text: str, at_ms: int) -> None:
        value = orjson.dumps({"id": 1, "n": text})
        producer.produce(name, value, partition=partition, timestamp=at_ms)
        assert producer.flush(20) == 0

    with Worker(tmp_path, kafka, unique("app"), entity), SowClient(name, connection=Connection(kafka)) as client:

        def shown() -> list[object]:
            return [orjson.loads(record.value)["n"] for record in client.query()]

        def now_ms() -> int:
            return time.time_ns() // 1_000_000

        put(0, "an hour ahead", now_ms() + 3_600_000)
        until(lambda: shown() == ["an hour ahead"], "it is there")
        time.sleep(0.05)  # more than the broker's clock is known to
        put(1, "another partition", now_ms())
        until(lambda: shown() == ["another partition"], "what follows counts")
        put(1, "the same partition", now_ms() - 3_600_000)
        until(lambda: shown() == ["the same partition"], "the offset decides")
        put(0, "older", now_ms() - 60_000)
        home = next(number for number in range(PARTITIONS) if Home(number, PARTITIONS).holds(b"[1]"))
        tail = Tail(kafka, topic.events(name))
        try:
            records = tail.wait_for(lambda found: any(b"ignored" in (one.value() or b"") for one in found), "ignored")
        finally:
            tail.close()
        (emitted,) = [
            one for one in map(event.decode, (one.value() or b"" for one in records)) if one.event == "ignored"
        ]
        assert (emitted.partition, str(emitted.messages[0])) == (home, f"{name}:0:1")
        assert shown() == ["the same partition"]
