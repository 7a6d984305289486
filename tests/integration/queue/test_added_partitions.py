"""A queue whose topic gets partitions gets shards for them, and keys keep their order meanwhile (C81)."""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections import defaultdict
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from confluent_kafka import Message, Producer
from confluent_kafka.admin import AdminClient, NewPartitions

from lapse.protocol import header, topic
from lapse_client import Queue, SowClient
from lapse_client.error import CommandFailed, LapseError
from lapse_client.queue.queues import Queues
from support.flow.load import account
from support.kafka.log import Tail, until
from support.processes.deployment import Deploy, Deployment, broker_now_ms

KEYS = 24


def add_partitions(here: Deployment, stem: str, count: int) -> None:
    enlarge(here, here.name(stem), count)


def enlarge(here: Deployment, name: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": here.servers})
    admin.create_partitions([NewPartitions(name, count)])[name].result(15)

    def known() -> bool:
        return len(admin.list_topics(name, timeout=15).topics[name].partitions) == count

    until(known, "the partitions are known")


def delivered(here: Deployment, stem: str) -> set[int]:
    """The shards that have handed something out."""
    tail = Tail(here.servers, topic.deliveries(here.name(stem)))
    try:
        kinds = ((record.partition() or 0, dict(record.headers() or [])[header.KIND]) for record in tail.drain())
        return {shard for shard, kind in kinds if kind not in (b"epoch", b"answer")}
    finally:
        tail.close()


def opened(here: Deployment) -> int:
    """How many new shards have begun to read."""
    return sum(worker.log.read_text().count("it begins to read") for worker in here.workers)


class Keyed:
    """Publishes numbered messages of some keys, as any producer does, and consumes them."""

    def __init__(self, here: Deployment, stem: str) -> None:
        self.here, self.stem = here, stem
        self.sent = [0] * KEYS
        self.seen: dict[int, list[int]] = defaultdict(list)
        self.written: dict[tuple[int, int], bytes] = {}
        self.partitions: set[int] = set()
        self._lock = threading.Lock()
        self._ending = threading.Event()

    def _reported(self, error: object, message: Message) -> None:
        assert error is None, error
        self.written[message.partition() or 0, message.offset() or 0] = message.value() or b""

    def publish(self, count: int, over_s: float = 0.0) -> None:
        """A message of each key, so many times; a producer that is new knows all partitions."""
        producer = Producer({"bootstrap.servers": self.here.servers, "partitioner": "murmur2_random", "linger.ms": 2})
        for _ in range(count):
            for key in range(KEYS):
                value = json.dumps({"key": key, "number": self.sent[key]}).encode()
                producer.produce(self.here.name(self.stem), value, str(key).encode(), on_delivery=self._reported)
                self.sent[key] += 1
            producer.poll(0)
            time.sleep(over_s / count)
        assert producer.flush(30) == 0

    @contextmanager
    def consumed(self, consumers: int = 2) -> Iterator[None]:
        """Consume meanwhile."""
        threads = [threading.Thread(target=self._consume, daemon=True) for _ in range(consumers)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            self._ending.set()
            for thread in threads:
                thread.join(30)

    def _consume(self) -> None:
        with self.here.subscriber(self.stem, 20, timeout_s=60) as subscriber:
            while not self._ending.is_set():
                delivery = subscriber.receive(0.1)
                if delivery is None:
                    continue
                facts = json.loads(delivery.value or b"")
                with self._lock:
                    if facts["number"] not in self.seen[facts["key"]]:
                        self.seen[facts["key"]].append(facts["number"])
                with contextlib.suppress(LapseError):  # its lease was over
                    delivery.acknowledge()

    @property
    def all_seen(self) -> bool:
        return sum(map(len, self.seen.values())) == sum(self.sent)

    def check(self) -> None:
        """Every message was seen, and each key's in its order."""
        assert {key: self.seen[key] for key in range(KEYS)} == {key: list(range(n)) for key, n in enumerate(self.sent)}
        account(self.here, self.stem, set(self.written)).assert_balanced()


@pytest.mark.feature("C62", "C81", "Q11", "Q16")
def test_keys_keep_their_order_while_a_queue_gets_shards_and_a_worker_is_killed(deploy: Deploy) -> None:
    here = deploy({"flow": {"partitions": 2, "group_by": "/key", "lease_period": "2s"}}, session_timeout="2s").apply()
    first, second = here.worker(), here.worker()
    until(lambda: first.shards + second.shards >= 2, "both shards", 40)
    keyed = Keyed(here, "flow")
    keyed.publish(5)
    with keyed.consumed(), here.queue("flow") as asked, Queues([here.name("flow")], connection=here.connection) as many:
        until(lambda: keyed.all_seen, "the first messages", 60)
        keyed.publish(20)
        add_partitions(here, "flow", 4)
        keyed.publish(20, over_s=2)
        planned = json.loads(here.lapse("queue", "partitions", here.name("flow"), "--dry-run", "--json").stdout)
        for name in planned["topics"]:  # as a command leaves it that was killed in the middle
            if not name.endswith(".deliveries"):
                enlarge(here, name, 4)
        second.kill()  # it holds leases, as the other does
        keyed.publish(10, over_s=1)
        second.start()
        until(lambda: second.shards >= 1, "a worker starts with half of it", 40)
        printed = here.lapse("queue", "partitions", here.name("flow"), "--json")
        assert printed.returncode == 0, printed.stderr
        assert {key: json.loads(printed.stdout)[key] for key in ("before", "shards", "changed")} == {
            "before": 2, "shards": 4, "changed": True,
        }  # fmt: skip
        publishing = threading.Thread(target=keyed.publish, args=(60, 4.0))
        publishing.start()
        time.sleep(2)
        first.kill()
        publishing.join()
        first.start()
        until(lambda: keyed.all_seen, "all messages", 90)
        deadline = time.monotonic() + 60
        while delivered(here, "flow") != {0, 1, 2, 3}:
            assert time.monotonic() < deadline, "the new shards do not hand out anything"
            keyed.publish(3)
            until(lambda: keyed.all_seen, "the last messages", 60)
        until(lambda: asked.depth()["depth"] == many.depth(here.name("flow")).result(20)["depth"] == 0, "it is empty")
        later = [(header.ENQUEUE_AT_MS, b"%d" % (broker_now_ms() + 3_600_000))]
        here.write("flow", json.dumps({"key": "last"}), partition=3, headers=later)
        until(lambda: asked.depth()["scheduled"] == 1, "who asked before sees the new shards")
        until(lambda: many.depth(here.name("flow")).result(20)["scheduled"] == 1, "who asked many before, too")
    assert {partition for partition, _ in keyed.written} == {0, 1, 2, 3}
    keyed.check()
    assert here.depth("flow")["depth"] == 0
    with here.queue("flow") as queue:
        counted = queue.rewind("beginning", dry_run=True)
    assert counted["rewound"] == len(keyed.written), "no shard brings back what another one reads now (C62)"
    assert here.lapse("check").returncode == 0
    again = here.lapse("queue", "partitions", here.name("flow"))
    assert "Nothing to do" in again.stdout


@pytest.mark.feature("C81", "Q11", "C4")
def test_a_new_shard_reads_nothing_while_an_older_one_holds_what_came_before(deploy: Deploy) -> None:
    """A leased message holds its group back in the new shard, over a kill of the worker; the older shard goes on."""
    here = deploy({"flow": {"partitions": 1, "group_by": "/key", "lease_period": "2m"}}).apply()
    worker = here.worker().wait_for_shards(1)
    moves, stays = json.dumps({"key": 1}), json.dumps({"key": 2})
    here.write("flow", moves)
    with here.subscriber("flow", 10, timeout_s=60) as subscriber:
        first = subscriber.receive(20)
        assert first is not None
        add_partitions(here, "flow", 2)
        worker.kill()
        for number, partition in ((0, 0), (1, 1), (2, 0)):
            here.write("flow", json.dumps({"key": 3, "number": number}), partition=partition)
        worker.start().wait_for_shards(1)
        for number in range(3):  # one shard, two partitions, and still the order in which they were written
            moved = subscriber.receive(40)
            assert moved is not None
            assert json.loads(moved.value or b"") == {"key": 3, "number": number}
            subscriber.settle("acknowledge", [moved], wait=True)
        until(lambda: "2 partitions" in worker.text, "it is told", 40)
        assert here.lapse("queue", "partitions", here.name("flow"), "--dry-run").returncode == 0
        assert here.lapse("queue", "partitions", here.name("flow")).returncode == 0
        until(lambda: "partition 1: waits until the older shards" in worker.text, "the new shard", 60)
        here.write("flow", moves, partition=1)
        worker.kill()
        worker.start().wait_for_shards(2)
        here.write("flow", stays)
        other = subscriber.receive(20)
        assert other is not None
        assert json.loads(other.value or b"") == {"key": 2}
        other.acknowledge()
        assert subscriber.receive(3) is None, "the key's first message is not settled"
        with here.queue("flow") as queue:
            with pytest.raises(CommandFailed, match="is not empty: 1 leased") as refused:
                queue.delete()
            assert "1 new shard not reading yet, and something was published there" in str(refused.value)
            with pytest.raises(CommandFailed, match="is not empty: 1 new shard .* leased messages too"):
                queue.delete(force=True)  # what is there could not get a letter, and may be of a transfer (C77)
            subscriber.settle("acknowledge", [first], wait=True)
            with pytest.raises(CommandFailed, match="is not empty: 1 "):
                queue.delete()  # the new shard learns only some seconds later that it may read (C4)
        second = subscriber.receive(40)
        assert second is not None
        assert (second.bookmark.partition, json.loads(second.value or b"")) == (1, {"key": 1})
        subscriber.settle("acknowledge", [second], wait=True)
        assert opened(here) == 1
    with here.queue("flow") as queue, here.subscriber("flow", 1, timeout_s=60) as holder:
        here.write("flow", moves)
        assert holder.receive(20) is not None
        add_partitions(here, "flow", 4)
        assert here.lapse("queue", "partitions", here.name("flow")).returncode == 0
        until(lambda: "partition 3: waits until the older shards" in worker.text, "two more shards", 60)
        until(lambda: not knows_new_shards(queue), "nothing is there for them, and force takes the rest", 40)


def knows_new_shards(queue: Queue) -> bool:
    """Delete a queue by force; return whether new shards prevent that."""
    try:
        queue.delete(force=True)
    except CommandFailed as error:
        if "new shard" not in str(error):
            raise
        return True
    return False


@pytest.mark.feature("C62", "C81", "L5", "Q21")
def test_a_rewind_brings_back_once_what_an_older_shard_has_of_a_partition_that_a_new_one_reads(deploy: Deploy) -> None:
    """The older shard has scheduled messages of it still, and knows which of its messages live on elsewhere."""
    here = deploy({"flow": {"partitions": 1, "topics": ["flow{}"]}, "sink": {"partitions": 1}}, definitions="topic")
    worker = here.apply().worker().wait_for_shards(2)
    name = here.name("flow")
    add_partitions(here, "flow", 2)
    until(lambda: "2 partitions" in worker.text, "it is told", 40)
    here.write("flow", "forwarded", partition=1)
    assert here.lapse("queue", "alter", name, f"forward_to={here.name('sink')}").returncode == 0
    until(lambda: here.depth("sink")["depth"] == 1, "it is forwarded", 40)
    assert here.lapse("queue", "alter", name, "--unset", "forward_to").returncode == 0
    until(lambda: "version 3 is served" in worker.text, "it forwards no longer", 40)
    later = [(header.ENQUEUE_AT_MS, b"%d" % (broker_now_ms() + 3_600_000))]
    here.write("flow", "scheduled", partition=1, headers=later)
    here.write("flow", "done", partition=1)
    with here.subscriber("flow", 1) as subscriber:
        done = subscriber.receive(20)
        assert done is not None
        subscriber.settle("acknowledge", [done], wait=True)
    assert here.lapse("queue", "partitions", name).returncode == 0
    with here.subscriber("flow", 1) as subscriber:
        for partition in (0, 1):
            here.write("flow", f"new in {partition}", partition=partition)
            new = subscriber.receive(60)
            assert new is not None
            assert new.value == f"new in {partition}".encode()
            subscriber.settle("acknowledge", [new], wait=True)
    with here.queue("flow") as queue:
        assert queue.rewind("beginning", dry_run=True)["rewound"] == 3
        worker.kill()
        worker.start().wait_for_shards(3)
        counted = queue.rewind("beginning")
        assert (counted["rewound"], counted["live"], counted["elsewhere"]) == (3, 1, 1)
        depth = queue.depth()
        assert (depth["scheduled"], depth["depth"]) == (1, 3)
        assert queue.rewind("beginning", handed_over=True)["rewound"] == 1


def publish_records(here: Deployment, stem: str, rows: list[tuple[str, bytes | None]]) -> None:
    """Publish as any producer does; a producer that is new knows all partitions."""
    producer = Producer({"bootstrap.servers": here.servers, "partitioner": "murmur2_random", "linger.ms": 0})
    for key, value in rows:
        producer.produce(here.name(stem), value, key.encode())
        assert producer.flush(30) == 0  # one after the other: their stamps tell the order


def latest(here: Deployment, stem: str, partitions: int) -> dict[str, bytes]:
    """The latest record of each key by the broker's timestamp, as a reader of the whole topic finds it."""
    found: dict[str, tuple[int, bytes | None]] = {}
    tail = here.tail(here.name(stem))
    for record in sorted(tail.drain(), key=lambda one: (one.timestamp()[1], one.partition(), one.offset())):
        assert 0 <= (record.partition() or 0) < partitions
        found[(record.key() or b"").decode()] = (record.timestamp()[1], record.value())
    return {key: value for key, (_, value) in found.items() if value is not None}


@pytest.mark.feature("C81", "C46", "S1", "S3", "S7")
def test_a_sow_topic_reads_added_partitions_and_keeps_one_record_a_key_over_kills(deploy: Deploy) -> None:
    here = deploy({})
    here.configure({}, {"prices": {"partitions": 2}})
    here.apply()
    worker = here.worker().wait_for_shards(2)
    keys = [f"key {number}" for number in range(40)]
    publish_records(here, "prices", [(key, b'{"n": 0}') for key in keys])
    with SowClient(here.name("prices"), connection=here.connection) as client:

        def shown() -> dict[str, bytes]:
            rows = list(client.query())
            assert len({row.key for row in rows}) == len(rows), "a key has one record"
            return {(row.key or b"").decode(): row.value or b"" for row in rows}

        until(lambda: shown() == latest(here, "prices", 2), "the records", 30)
        with client.sow_and_subscribe() as updates:
            seen: dict[str, bytes | None] = {}
            add_partitions(here, "prices", 3)  # no multiple: a key could have a record in two shards
            until(lambda: "Only the first 2 are read" in here.lapse("check").stdout, "it is told", 30)
            add_partitions(here, "prices", 4)
            publish_records(here, "prices", [(key, b'{"n": 1}') for key in keys[:30]])
            until(lambda: shown() == latest(here, "prices", 4), "updates on added partitions", 60)
            worker.kill()
            publish_records(here, "prices", [(key, None) for key in keys[:10]])
            publish_records(here, "prices", [(key, b'{"n": 2}') for key in keys[5:20]])
            worker.start().wait_for_shards(2)
            until(lambda: shown() == latest(here, "prices", 4), "what came meanwhile", 60)
            worker.kill()
            worker.start().wait_for_shards(2)
            publish_records(here, "prices", [(key, b'{"n": 3}') for key in keys[15:]])
            until(lambda: shown() == latest(here, "prices", 4), "what came then", 60)

            def is_logged() -> bool:
                for update in updates.updates(0.5):
                    seen[(update.key or b"").decode()] = update.value if update.kind in ("sow", "publish") else None
                return {key: value for key, value in seen.items() if value is not None} == shown()

            until(is_logged, "the subscriber knows the same", 60)
    assert "are read by nobody" not in worker.text.split("has 4 partitions")[-1]
    assert "its shards read the further ones" in here.lapse("check").stdout.lower().replace("\n", " ")
