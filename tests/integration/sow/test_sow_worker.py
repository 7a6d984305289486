"""SOW topics with a real worker process on a real broker, used through the client and through plain Kafka."""

import time
from collections.abc import Callable, Iterator
from pathlib import Path

import orjson
import pytest
from confluent_kafka import Consumer, Producer, TopicPartition

from lapse.protocol import event
from lapse_client.kafka.connection import Connection
from lapse_client.letters.dead_letter import DeadLetterReader
from lapse_client.letters.redrive import Choice, Known, Target, plan, send
from lapse_client.publisher.publisher import Publisher
from lapse_client.sow.sow_client import SowClient
from support.processes.worker import Worker


class Sow:
    """One SOW topic, its worker and its clients."""

    def __init__(self, servers: str, name: str, worker: Worker) -> None:
        self.servers = servers
        self.name = name
        self.worker = worker
        self.connection = Connection(servers)

    def client(self) -> SowClient:
        return SowClient(self.name, connection=self.connection)

    def publish(self, *records: tuple[str, object], **options: object) -> None:
        with Publisher(self.connection) as publisher:
            for key, payload in records:
                publisher.publish(self.name, None if payload is None else orjson.dumps(payload), key, **options)

    def shown(self, *args: object, **options: object) -> dict[str, object]:
        with self.client() as client:
            found = client.query(*args, **options)
            return {record.key.decode(): orjson.loads(record.value) for record in found}

    def read(self, topic: str, partition: int = 0) -> list[object]:
        """Everything in a topic, by a plain consumer."""
        consumer = Consumer({"bootstrap.servers": self.servers, "group.id": "reader", "enable.auto.commit": False})
        try:
            at = TopicPartition(topic, partition, 0)
            end = consumer.get_watermark_offsets(at, timeout=20)[1]
            consumer.assign([at])
            records: list[object] = []
            deadline = time.monotonic() + 20
            while time.monotonic() < deadline and consumer.position([at])[0].offset < end:
                record = consumer.poll(0.2)
                if record is not None:
                    records.append(record)
                    if record.offset() + 1 >= end:
                        break
            return records
        finally:
            consumer.close()

    def table(self) -> dict[bytes, tuple[bytes, dict[str, bytes]]]:
        """The compacted topic as any Kafka table sees it: latest value and headers per key."""
        latest: dict[bytes, tuple[bytes, dict[str, bytes]]] = {}
        for record in self.read(f"lapse.sow.{self.name}"):
            if record.value() is None:
                latest.pop(record.key(), None)
            else:
                latest[record.key()] = (record.value(), dict(record.headers() or ()))
        return latest

    def events(self) -> list[event.Event]:
        return [event.decode(record.value()) for record in self.read(f"lapse.events.{self.name}")]


def until(condition: Callable[[], object], timeout_s: float = 30) -> object:
    deadline = time.monotonic() + timeout_s
    while not (found := condition()):
        assert time.monotonic() < deadline, "not within the time limit"
        time.sleep(0.1)
    return found


Make = Callable[..., Sow]


@pytest.fixture
def sow(kafka: str, unique: Callable[[str], str], tmp_path: Path) -> Iterator[Make]:
    started: list[Worker] = []

    def make(settings: str = 'expiration = "enabled"') -> Sow:
        name = unique("prices")
        worker = Worker(tmp_path, kafka, unique("app"), f'[sow."{name}"]\n{settings}\n')
        started.append(worker)
        worker.apply()
        worker.start()
        return Sow(kafka, name, worker)

    yield make
    for worker in started:
        worker.stop()


@pytest.mark.feature("S1", "S2", "S3", "S5", "S8", "C44", "X2")
def test_publish_delta_delete_query_and_the_compacted_topic(sow: Make) -> None:
    prices = sow()
    prices.publish(("A", {"price": 1, "o": {"x": 1}}), ("B", {"price": 2}), ("C", {"price": 3}))
    prices.publish(("A", {"o": {"y": 2}}), ("D", {"price": 4}), delta=True)
    prices.publish(("B", None))
    expected = {"A": {"price": 1, "o": {"x": 1, "y": 2}}, "C": {"price": 3}, "D": {"price": 4}}
    until(lambda: prices.shown() == expected)
    assert prices.shown("/price > 1", order_by="/price DESC", top_n=1) == {"D": {"price": 4}}
    with prices.client() as client:
        (record,) = client.query(keys=["C"])
        assert str(record.bookmark) == f"{prices.name}:0:2"
        assert record.expires_at_ms is None
        assert client.delete(filter="/price = 4") == 1
        assert client.delete(keys=["C", "nobody"]) == 1
    assert prices.shown() == {"A": expected["A"]}
    ((key, (value, headers)),) = prices.table().items()
    assert (key, orjson.loads(value)) == (b"A", expected["A"])
    assert headers["lapse-bookmark"] == f"{prices.name}:0:3".encode()


@pytest.mark.feature("S4", "S7", "S6", "L10", "L11", "S8", "D4")
def test_a_record_expires_on_time_and_everybody_is_informed(sow: Make) -> None:
    prices = sow('expiration = "1500ms"')
    with prices.client() as client, client.sow_and_subscribe() as updates:
        prices.publish(("A", {"price": 1}))
        prices.publish(("B", {"price": 1}), ttl_ms=0)
        received = [next(iter(updates)) for _ in range(4)]
        assert [(one.kind, one.key, one.operation) for one in received] == [
            ("group-end", None, ""),
            ("publish", b"A", ""),
            ("publish", b"B", ""),
            ("oof", b"A", "expired"),
        ]
        assert received[1].expires_at_ms == received[1].timestamp_ms + 1500
        assert received[3].reasons == ("time_limit",)
    assert set(prices.table()) == {b"B"}
    (gone,) = [one for one in prices.events() if one.event == "expired"]
    assert (gone.key, gone.reasons, gone.expires_at_ms) == (b"A", ("time_limit",), received[1].expires_at_ms)
    assert 0 <= gone.at_ms - gone.expires_at_ms < 500


@pytest.mark.feature("S6", "S2")
def test_the_records_come_whole_and_then_what_changes_in_them(sow: Make) -> None:
    prices = sow()
    prices.publish(("A", {"bid": 1, "ask": 2}))
    until(lambda: len(prices.shown()) == 1)
    with prices.client() as client, client.sow_and_delta_subscribe() as updates:
        prices.publish(("A", {"bid": 1, "ask": 3}), ("B", {"bid": 5}))
        received = [next(iter(updates)) for _ in range(4)]
    assert [(one.kind, one.key, one.value and orjson.loads(one.value)) for one in received] == [
        ("sow", b"A", {"bid": 1, "ask": 2}),
        ("group-end", None, None),
        ("delta", b"A", {"ask": 3}),
        ("publish", b"B", {"bid": 5}),
    ]


@pytest.mark.feature("S9", "L9", "L11", "L6")
def test_what_expired_while_nothing_ran_is_gone_before_the_first_query(sow: Make) -> None:
    prices = sow()
    prices.publish(("A", {}), ("B", {}), ttl_ms=4000)
    prices.publish(("C", {}), ttl_ms=0)
    until(lambda: len(prices.shown()) == 3)
    prices.worker.kill()
    time.sleep(4)
    prices.worker.start()
    assert prices.shown() == {"C": {}}
    assert set(until(lambda: len(table := prices.table()) == 1 and table)) == {b"C"}


@pytest.mark.feature("S9", "C1", "S2")
def test_a_worker_killed_in_the_middle_leaves_no_trace(sow: Make) -> None:
    prices = sow()
    expected: dict[str, object] = {}
    for turn in range(3):
        with Publisher(prices.connection) as publisher:
            for number in range(2000):
                key = f"k{number % 500}"
                publisher.publish(prices.name, orjson.dumps({f"f{number % 7}": [turn, number]}), key, delta=True)
                expected[key] = {**expected.get(key, {}), f"f{number % 7}": [turn, number]}
            if turn < 2:
                time.sleep(0.05 * turn)
                prices.worker.kill()
        if turn < 2:
            prices.worker.start()
    until(lambda: prices.shown() == expected)
    assert {key.decode(): orjson.loads(value) for key, (value, _) in prices.table().items()} == expected


@pytest.mark.feature("L12", "S1", "C25", "X7", "D2")
def test_bad_records_and_bad_commands_hurt_nobody_else(sow: Make) -> None:
    prices = sow('expiration = "enabled"\nkey = "/id"')
    producer = Producer({"bootstrap.servers": prices.servers})
    for value, headers in [
        (b"{", {}),
        (b'{"id": 1}', {"lapse-ttl-ms": "soon"}),
        (b'{"id": 2}', {"lapse-expires-at-ms": "5"}),
        (b'{"id": 3}', {}),
    ]:
        producer.produce(prices.name, value, "x", headers=headers)
    producer.flush(20)
    until(lambda: prices.shown() == {"[3]": {"id": 3}})
    with prices.client() as client, pytest.raises(Exception, match="line 1|column|expected"):
        list(client.query("/id = = 3"))
    letters = [dict(letter.headers()) for letter in prices.read(f"dlq.{prices.name}")]
    assert [letter["lapse-reasons"] for letter in letters] == [b"undecodable", b"invalid_lifetime"]
    assert letters[1]["lapse-original-ttl-ms"] == b"soon"


@pytest.mark.feature("L5", "C47")
def test_a_scheduled_update_takes_effect_at_its_instant_over_a_crash(sow: Make) -> None:
    prices = sow()
    prices.publish(("A", {"n": 0}))
    at_ms = int(time.time() * 1000) + 5000
    prices.publish(("A", {"n": 1}), enqueue_at_ms=at_ms)
    until(lambda: prices.shown() == {"A": {"n": 0}})
    prices.worker.kill()
    prices.worker.start()
    assert until(lambda: prices.shown().get("A") == {"n": 1})
    assert time.time() * 1000 >= at_ms


@pytest.mark.feature("L5", "C1", "C2", "C47")
def test_a_deletion_sent_while_nothing_ran_finds_what_a_scheduled_update_had_made_by_then(sow: Make) -> None:
    prices = sow()
    prices.publish(("A", {"n": 1}))
    at_ms = int(time.time() * 1000) + 3_000
    prices.publish(("A", {"n": 2}), enqueue_at_ms=at_ms)
    until(lambda: prices.shown() == {"A": {"n": 1}})
    prices.worker.kill()
    until(lambda: time.time() * 1000 > at_ms + 100)
    producer = Producer({"bootstrap.servers": prices.servers})
    producer.produce(f"lapse.{prices.name}.commands", b'{"command": "sow_delete", "id": "d", "filter": "/n = 2"}')
    assert producer.flush(20) == 0
    prices.worker.start()
    assert prices.shown() == {}


@pytest.mark.feature("C84", "D5")
def test_a_letter_is_not_redriven_over_a_newer_record(sow: Make) -> None:
    """The plan says so, and `overwrite` does it all the same; the letter of a deletion deletes what is older."""
    one = sow()
    one.publish(("deleted", {"n": 0}))
    producer = Producer({"bootstrap.servers": one.servers})
    for key, value in (("newer", b"1"), ("gone", b"2"), ("deleted", None), ("newer", None)):
        producer.produce(one.name, value, key, headers=[("lapse-ttl-ms", b"soon")])
    producer.flush(10)
    one.publish(("newer", {"n": 3}))
    letters = DeadLetterReader(one.name, connection=one.connection)
    until(lambda: len(list(letters)) == 4 and one.shown() == {"newer": {"n": 3}, "deleted": {"n": 0}})
    known = Known.of(one.connection)
    assert known.newer.is_newer(next(iter(letters)).with_value(b'{"k": "x"}')), "Kafka's key is not in the payload"
    lines = list(plan(letters, Choice(), Target(), 0, known))
    assert {(line.letter.key, line.letter.value): line.refused for line in lines} == {
        (b"newer", b"1"): "newer record",
        (b"newer", None): "newer record",
        (b"gone", b"2"): "",
        (b"deleted", None): "",
    }
    assert send(lines, one.connection, letters=letters.topic, redriven=known.redriven) == 2
    until(lambda: one.shown() == {"newer": {"n": 3}, "gone": 2})
    again = list(plan(letters, Choice(overwrite=True), Target(), 0, Known.of(one.connection)))
    assert {(line.letter.key, line.letter.value): line.refused for line in again} == {
        (b"newer", b"1"): "",
        (b"newer", None): "",
        (b"gone", b"2"): "sent before",
        (b"deleted", None): "sent before",
    }


@pytest.mark.feature("C84", "S1", "D2")
def test_a_letter_whose_payload_has_the_key_is_not_redriven_over_a_newer_record(sow: Make) -> None:
    """Its record key is the original one, so it bears the key that its payload makes. So do letters of expired ones."""
    reasons = ["invalid_lifetime", "time_limit", "withdrawn"]
    one = sow(f'key = "/k"\nexpiration = "enabled"\ndead_letter_reasons = {reasons}')
    producer = Producer({"bootstrap.servers": one.servers})
    for key in ("newer", "gone"):
        producer.produce(one.name, orjson.dumps({"k": key}), headers=[("lapse-ttl-ms", b"soon")])
    producer.produce(one.name, orjson.dumps({"k": "newer", "n": 3}))
    later = [("lapse-enqueue-at-ms", b"9999999999999")]
    for key, own, headers in (("left", b"a\xff", []), ("short", None, []), ("short", b"", later)):
        headers = headers or [("lapse-ttl-ms", b"1")]
        producer.produce(one.name, orjson.dumps({"k": key, "n": 2}), own, headers=headers)
    producer.flush(10)
    with one.client() as client:
        until(lambda: client.withdraw(filter="/n = 2") == 1)
    letters = DeadLetterReader(one.name, connection=one.connection)
    until(lambda: len(list(letters)) == 5)
    left = {(one.lapse_id[-3], one.key, one.record_key) for one in letters if one.reasons != ("invalid_lifetime",)}
    assert left == {("3", b"a\xff", b'["left"]'), ("4", None, b'["short"]'), ("5", b"", b'["short"]')}
    known = Known.of(one.connection)
    lines = list(plan(letters, Choice(reasons=frozenset({"invalid_lifetime"})), Target(), 0, known))
    assert {line.letter.record_key: line.refused for line in lines} == {b'["newer"]': "newer record", b'["gone"]': ""}
    assert {line.letter.key for line in lines} == {None}
    assert send(lines, one.connection, letters=letters.topic, redriven=known.redriven) == 1
    until(lambda: one.shown() == {'["newer"]': {"k": "newer", "n": 3}, '["gone"]': {"k": "gone"}})
    (plain,) = [record for record in one.read(one.name) if "lapse-redriven-count" in dict(record.headers() or ())]
    assert "lapse-record-key" not in dict(plain.headers())
    first = next(iter(letters))
    for payload, refused in (({"k": "newer", "n": 9}, "newer record"), ({"k": "other"}, ""), ({"other": 1}, "")):
        edited = first.with_value(orjson.dumps(payload))  # its key is another one: the workers know which
        (line,) = plan([edited], Choice(again=True), Target(), 0, Known.of(one.connection))
        assert line.refused == refused
