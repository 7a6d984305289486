"""`lapse replicate` between two real deployments: two brokers, two workers, two processes for both directions (S10)."""

import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import NamedTuple

import orjson
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AdminClient

import support.workers.skewed
from lapse.embedded import EmbeddedKafka
from lapse.protocol import topic as names
from lapse.replication import progress, replicator
from lapse.replication.link import Link
from lapse.replication.progress import Progress
from lapse.replication.replicator import Replicator
from lapse.replication.translation import TIMESTAMP_MS
from lapse.topic_creation import NewPartitions, NewTopic
from lapse_client import Connection, Publisher, SowClient
from lapse_client.sow.record import SowRecord
from support.flow.sow_state import size
from support.kafka.compaction import compact_eagerly
from support.kafka.created_topic import create, take_at_most
from support.kafka.log import Tail, until, write
from support.processes import fork_server
from support.processes.deployment import broker_now_ms
from support.processes.worker import Worker
from support.suite import command


class Replica:
    """A `lapse replicate` process."""

    def __init__(self, directory: Path, source: str, target: str, topic: str) -> None:
        self.log = directory / "replicate.log"
        self._run, self._start = ["-m", "lapse"], fork_server.start
        self._command = ["replicate", "--from", source, "--to", target, "--topic", topic, "--log-format", "json"]
        self.process: fork_server.Process | None = None

    def skew(self, ahead_s: float) -> None:
        """Have its wall clock be wrong from the next start on."""
        clock = self.log.with_name("replicate.clock")
        clock.write_text(str(ahead_s))
        self._run, self._start = [support.workers.skewed.__file__, str(clock)], fork_server.fresh

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = self._start([*self._run, *self._command], log, os.environ)

    def end(self, number: int = signal.SIGTERM) -> None:
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(number)
            try:
                self.process.wait(15)
            except subprocess.TimeoutExpired:
                self.process.kill()
                self.process.wait()


class Side(NamedTuple):
    """One deployment."""

    servers: str
    name: str
    worker: Worker
    out: Replica

    def publish(self, key: str, payload: object, **options: object) -> None:
        with Publisher(Connection(self.servers)) as publisher:
            value = None if payload is None else orjson.dumps(payload)
            publisher.publish(self.name, value, key, **options)

    def records(self) -> dict[str, SowRecord]:
        with SowClient(self.name, connection=Connection(self.servers)) as client:
            return {(record.key or b"").decode(): record for record in client.query()}

    def shown(self) -> dict[str, object]:
        return {key: orjson.loads(record.value or b"null") for key, record in self.records().items()}

    def written(self) -> int:
        """Records on the underlying topic."""
        tail = Tail(self.servers, self.name)
        try:
            return len(tail.drain())
        finally:
            tail.close()


ENABLED = 'expiration = "enabled"'
BRIEF = 'expiration = "1s"\nexpiration_model = "ceiling"'
"""The downstream's own default and ceiling must not touch what comes from upstream."""


@pytest.fixture(scope="module")
def other_kafka(kafka: str) -> Iterator[str]:
    """The broker of the second deployment; the fixture of the first one skips where there is no Java."""
    with EmbeddedKafka() as other:
        yield other.bootstrap_servers


@pytest.fixture
def sides(
    request: pytest.FixtureRequest,
    kafka: str,
    other_kafka: str,
    unique: Callable[[str], str],
    tmp_path: Path,
) -> Iterator[tuple[Side, Side]]:
    """Two deployments; the parameter is what the second one is configured with."""
    with deployments(kafka, other_kafka, unique, tmp_path, getattr(request, "param", BRIEF)) as made:
        yield made


@contextmanager
def deployments(
    kafka: str, other: str, unique: Callable[[str], str], tmp_path: Path, settings: str
) -> Iterator[tuple[Side, Side]]:
    """Two deployments on two brokers, the second one with these settings."""
    name = unique("prices")
    with ExitStack() as running:
        made = []
        for number, servers in enumerate((kafka, other)):
            directory = tmp_path / str(number)
            directory.mkdir()
            own = settings if number == 1 else ENABLED
            worker = running.enter_context(Worker(directory, servers, unique("app"), f'[sow."{name}"]\n{own}\n'))
            target = (other, kafka)[number]
            replica = Replica(directory, servers, target, name)
            running.callback(replica.end)
            made.append(Side(servers, name, worker, replica))
        yield made[0], made[1]


@pytest.mark.feature("S10", "S4", "S3")
@pytest.mark.slow
def test_deadlines_are_kept_expiry_is_local_deletes_travel_and_a_separation_is_caught_up(
    sides: tuple[Side, Side],
) -> None:
    above, below = sides
    above.out.start()
    above.publish("long", {"n": 1}, ttl_ms=3_600_000)
    above.publish("ever", {"n": 1}, ttl_ms=0)
    above.publish("gone", {"n": 1}, ttl_ms=0)
    until(lambda: len(below.records()) == 3, "three records below", timeout_s=60)
    above.publish("short", {"n": 1}, ttl_ms=8_000)
    until(lambda: len(below.records()) == 4, "four records below")

    # To the millisecond, and neither default nor ceiling of the downstream count.
    up, down = above.records(), below.records()
    assert {key: record.expires_at_ms for key, record in down.items()} == {
        key: record.expires_at_ms for key, record in up.items()
    }
    assert {key: record.timestamp_ms for key, record in down.items()} == {
        key: record.timestamp_ms for key, record in up.items()
    }
    assert up["ever"].expires_at_ms is None

    # A delete travels; the expiry does not: below it happens by itself, with the link cut.
    above.publish("gone", None)
    until(lambda: "gone" not in below.shown(), "the delete below")
    above.publish("short", {"n": 2}, ttl_ms=4_000)  # restarts the lifespan, here and there
    until(lambda: below.shown()["short"] == {"n": 2}, "the update below")
    assert below.records()["short"].expires_at_ms == above.records()["short"].expires_at_ms
    above.publish("late", {"n": 1}, ttl_ms=0)
    until(lambda: "late" in below.shown(), "a record below")
    above.publish("late", {"n": 2}, expires_at_ms=1)  # never stands above, and takes along what was there (S10)
    until(lambda: "late" not in below.shown(), "what the update took along below")
    written = below.written()
    above.out.end(signal.SIGKILL)
    until(lambda: "short" not in below.shown(), "the expiry below")
    assert below.written() == written
    until(lambda: "short" not in above.shown(), "the expiry above")

    # Apart: updates, a delete, and an update that crosses an expiry.
    above.publish("long", {"n": 2}, ttl_ms=3_600_000)
    above.publish("short", {"n": 3}, ttl_ms=600_000)
    above.publish("ever", None)
    above.publish("brief", {"n": 1}, ttl_ms=500)
    time.sleep(1)
    above.out.start()
    until(lambda: below.shown() == {"long": {"n": 2}, "short": {"n": 3}}, "what happened meanwhile")
    up, down = above.records(), below.records()
    assert {key: record.expires_at_ms for key, record in down.items()} == {
        key: record.expires_at_ms for key, record in up.items()
    }
    # Exactly where it had stopped: only what was new was written, `brief` with its update, or nothing of it; and that
    # `short` had expired, if that was ten seconds ago by now.
    assert below.written() - written in (3, 4, 5)

    # The end of the entity itself does not travel.
    with SowClient(below.name, connection=Connection(below.servers)) as client:
        client.delete_topic(force=True)
    assert above.shown() == {"long": {"n": 2}, "short": {"n": 3}}


@pytest.mark.feature("S10")
@pytest.mark.slow
@pytest.mark.parametrize("sides", ['expiration = "6s"\nexpiration_model = "ceiling"'], indirect=True)
def test_two_directions_do_not_loop_and_a_conflict_ends_the_same_on_both_sides(sides: tuple[Side, Side]) -> None:
    one, two = sides
    one.out.start()
    two.out.start()
    one.publish("a", {"by": "one"}, ttl_ms=3_600_000)
    two.publish("b", {"by": "two"}, ttl_ms=5_000)
    two.publish("c", {"by": "two"}, expires_at_ms=broker_now_ms() + 5_000)
    until(lambda: one.shown().get("a") == two.shown().get("a") == {"by": "one"}, "a on both sides")
    until(lambda: one.shown() == two.shown() == {"a": {"by": "one"}}, "b and c expired on both sides")
    # Each was written once here and once there.
    until(lambda: one.written() == two.written() == 3, "three records on both sides")
    time.sleep(1)
    assert one.written() == two.written() == 3

    # Apart, both change the same record; the later one wins on both sides.
    one.out.end(signal.SIGKILL)
    two.out.end()
    one.publish("a", {"by": "one", "n": 2}, ttl_ms=3_600_000)
    time.sleep(0.05)
    two.publish("a", {"by": "two", "n": 3}, ttl_ms=900)  # below the ceiling that holds there
    one.publish("d", {"by": "one"}, ttl_ms=3_600_000)
    one.out.start()
    two.out.start()
    until(lambda: one.shown() == two.shown() == {"d": {"by": "one"}}, "the same end on both sides", 40)
    until(lambda: one.written() == two.written(), "the same number of records on both sides")
    time.sleep(1)
    assert one.written() == two.written()

    # A record that the topic there does not take is named, and waits; a batch is sent one by one.
    take_at_most(two.servers, two.name, 20_000)
    for number in range(8):
        one.publish(f"e{number}", os.urandom(2_500).hex(), ttl_ms=3_600_000)
    until(lambda: two.shown() == one.shown(), "small records, whatever comes together")
    one.publish("large", os.urandom(25_000).hex(), ttl_ms=3_600_000)
    warning = "that of key b'large': raise its max.message.bytes; trying again"
    until(lambda: warning in one.out.log.read_text(), "the record that is too large")
    *lines, _ = one.out.log.read_text().split("\n")  # perhaps the last one is being written
    assert {orjson.loads(line)["logger"] for line in lines} >= {"lapse.cli.replicate"}
    take_at_most(two.servers, two.name, 2_000_000)
    until(lambda: two.shown() == one.shown(), "the large record", 40)

    # The end of the SOW topic here deletes nothing there.
    kept = two.shown()
    two.publish("behind", "the others", ttl_ms=3_600_000)
    until(lambda: "behind" in one.shown(), "all that was written there is here")
    done = command.run("sow", "delete-topic", one.name, "-b", one.servers, "--force", "--yes")
    assert done.returncode == 0, done.stderr
    one.out.end()
    assert two.shown() == {**kept, "behind": "the others"}


@pytest.mark.long
@pytest.mark.feature("S10", "C3")
@pytest.mark.slow
def test_a_replica_with_a_wrong_clock_knows_how_late_it_reads_an_expiry(
    kafka: str, own_kafka: EmbeddedKafka, unique: Callable[[str], str], tmp_path: Path
) -> None:
    """It reads the expiry at once; by its own clock that would be five minutes late, and the expiry would be told."""
    servers = own_kafka.bootstrap_servers
    # As older versions made it, with the timestamps of producers.
    old = NewTopic(progress.TOPIC, 1, 1, config={"cleanup.policy": "compact"})
    create(AdminClient({"bootstrap.servers": servers}), old)
    with deployments(kafka, servers, unique, tmp_path, ENABLED) as (above, below):
        above.out.skew(300)
        above.out.start()
        above.publish("long", {"n": 1}, ttl_ms=0)
        until(lambda: "long" in below.shown(), "the link, which may start after seconds", timeout_s=60)
        above.publish("short", {"n": 1}, ttl_ms=2_000)
        until(lambda: "short" not in above.shown(), "the expiry above")
        above.publish("later", {"n": 1}, ttl_ms=0)
        until(lambda: "later" in below.shown(), "what was written after the expiry")
        assert below.written() == 3


@pytest.mark.feature("S10")
def test_progress_is_read_up_to_what_the_link_has_written_itself(kafka: str, unique: Callable[[str], str]) -> None:
    """A broker that has just begun to lead the topic may say that it ends earlier."""
    admin = AdminClient({"bootstrap.servers": kafka})
    made = admin.create_topics([NewTopic(progress.TOPIC, 1, 1, config=progress.CONFIG)])[progress.TOPIC].exception(30)
    assert made is None or "already exists" in str(made), "links of other tests create it, too"
    until(lambda: admin.list_topics(progress.TOPIC, timeout=15).topics[progress.TOPIC].error is None, "it is listed")
    link = Progress(unique("here"), "there", {"lapse.sow.prices": "1>2"})

    def note(offset: int) -> int:
        key, value = link.record("lapse.sow.prices", 0, offset)
        return write(kafka, progress.TOPIC, [value], key=key)[0].offset

    end = note(3) + 2
    reading = threading.Thread(target=link.read, args=({"bootstrap.servers": kafka}, end))
    reading.start()
    reading.join(1)
    assert reading.is_alive(), "what was written last is not there yet"
    note(7)
    reading.join(30)
    assert link.next_offset("lapse.sow.prices", 0) == 7


@pytest.mark.feature("S10", "C56")
@pytest.mark.slow
@pytest.mark.parametrize("sides", [ENABLED], indirect=True)
def test_an_update_and_a_delete_that_crossed_while_apart_end_the_same_on_both_sides(sides: tuple[Side, Side]) -> None:
    """Nothing is configured for it, and one side has never had an update of the other one before."""
    one, two = sides
    one.out.start()
    for key in ("a", "b", "c", "d"):
        one.publish(key, {"n": 1}, ttl_ms=0)
    until(lambda: len(two.shown()) == 4, "four records below", timeout_s=60)
    one.out.end(signal.SIGKILL)

    two.publish("a", {"n": 2}, ttl_ms=0)
    one.publish("b", {"n": 2}, ttl_ms=0)
    one.publish("c", None)
    with SowClient(two.name, connection=Connection(two.servers)) as client:
        client.delete(keys=[b"d"])
    time.sleep(0.1)
    one.publish("a", None)
    two.publish("b", None)
    two.publish("c", {"n": 3}, ttl_ms=0)
    one.publish("d", {"n": 3}, ttl_ms=0)
    time.sleep(1)
    one.out.start()
    two.out.start()
    until(lambda: one.shown() == two.shown() == {"c": {"n": 3}, "d": {"n": 3}}, "the same end on both sides", 60)
    time.sleep(1)
    assert one.shown() == two.shown() == {"c": {"n": 3}, "d": {"n": 3}}


@pytest.mark.feature("S10", "S8")
@pytest.mark.slow
def test_after_hours_apart_only_the_latest_of_every_key_is_left_to_be_read(sides: tuple[Side, Side]) -> None:
    """Compaction removes what the replica has not read yet, the place where it stopped included."""
    above, below = sides
    keys = [f"k{number}" for number in range(30)]

    def all_of(keys: list[str], n: int, **options: object) -> None:
        with Publisher(Connection(above.servers)) as publisher:
            for key in keys:
                publisher.submit(above.name, orjson.dumps({"n": n}), key, **options)
            publisher.flush()

    above.out.start()
    all_of(keys, 0, ttl_ms=0)
    until(lambda: len(below.shown()) == 30, "all records below")
    above.out.end(signal.SIGKILL)
    written = below.written()

    for n in range(1, 20):
        all_of(keys, n, ttl_ms=3_600_000)
    all_of(keys[:10], 20, ttl_ms=800)
    all_of(["new"], 20, ttl_ms=7_200_000)
    for key in keys[10:20]:
        above.publish(key, None)
    until(lambda: len(above.shown()) == 11, "what expired and was deleted above")
    time.sleep(10.5)  # nothing is compacted sooner; then an expiry is told to the replica, too
    compacted = f"lapse.sow.{above.name}"
    compact_eagerly(above.servers, compacted, tombstones_ms=3_600_000)

    def shrunk() -> bool:
        above.publish("new", {"n": 21}, ttl_ms=7_200_000)  # so that the segment before is closed
        time.sleep(0.6)
        return size(above.servers, compacted) < 200

    until(shrunk, "compaction", 90)
    above.out.start()
    until(lambda: below.shown() == above.shown(), "the same on both sides", 40)
    assert {key: (one.expires_at_ms, one.timestamp_ms) for key, one in below.records().items()} == {
        key: (one.expires_at_ms, one.timestamp_ms) for key, one in above.records().items()
    }
    assert below.written() - written < 200, "what was replaced was not brought"


@pytest.mark.feature("S10", "C81")
@pytest.mark.slow
def test_partitions_are_added_upstream_where_the_downstream_has_another_number_of_them(
    kafka: str, other_kafka: str, unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(replicator, "_LOOK_S", 0.2)
    name = unique("prices")
    above, below = (AdminClient({"bootstrap.servers": one}) for one in (kafka, other_kafka))
    create(above, NewTopic(names.sow(name), 1, 1))
    create(below, NewTopic(name, 3, 1))
    link = Link.model_validate({"from": kafka, "to": other_kafka, "topics": [name]})
    replica = Replicator(link)
    running = threading.Thread(target=replica.run)
    tail = Tail(other_kafka, name)
    producer = Producer({"bootstrap.servers": kafka})
    stamped = {"headers": {TIMESTAMP_MS: b"1000"}}
    running.start()
    try:
        producer.produce(names.sow(name), b"{}", b"first", partition=0, **stamped)
        producer.flush(30)
        tail.wait(1, 60)
        for future in above.create_partitions([NewPartitions(names.sow(name), 2)]).values():
            future.result()
        until(
            lambda: len(producer.list_topics(names.sow(name)).topics[names.sow(name)].partitions) == 2, "2 partitions"
        )
        producer.produce(names.sow(name), b"{}", b"second", partition=1, **stamped)
        producer.flush(30)
        assert [record.key() for record in tail.wait(2, 60)] == [b"first", b"second"]
    finally:
        replica.stop()
        running.join(60)
        tail.close()
