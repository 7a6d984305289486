"""The embedded broker: it starts, keeps its data over a crash, and never outlives whoever started it."""

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka import Consumer, KafkaException, Producer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.embedded import BrokerFailed, EmbeddedKafka, class_archive
from lapse.embedded import kafka as embedded_kafka
from lapse.topic_creation import NewTopic
from support.kafka import created_topic, left_topics
from support.kafka.log import until
from support.suite.at_length import cases


def produce(servers: str, topic: str, values: list[bytes]) -> None:
    producer = Producer({"bootstrap.servers": servers, "acks": "all"})
    for value in values:
        producer.produce(topic, value)
    assert producer.flush(30) == 0


def consume(servers: str, topic: str, count: int) -> list[bytes]:
    consumer = Consumer({"bootstrap.servers": servers, "group.id": "reader", "auto.offset.reset": "earliest"})
    consumer.assign([TopicPartition(topic, 0, 0)])
    values: list[bytes] = []
    deadline = time.monotonic() + 30
    while len(values) < count and time.monotonic() < deadline:
        message = consumer.poll(0.5)
        if message is not None and message.error() is None:
            values.append(message.value())
    consumer.close()
    return values


def gone(process: psutil.Process) -> bool:
    try:
        return not process.is_running() or process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:  # it went between the two
        return True


def wait_until(condition: Callable[[], bool], timeout_s: float = 10) -> bool:
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.05)
    return condition()


@pytest.fixture(scope="module")
def running(kafka: str) -> Iterator[EmbeddedKafka]:
    """A broker of this module, which each test leaves as it was; `kafka` says why there is none."""
    with EmbeddedKafka() as own:
        yield own


def test_shared_broker_carries_messages(kafka: str, create_topic: Callable[..., str], topic_prefix: str) -> None:
    topic = create_topic(f"{topic_prefix}orders", partitions=1)
    produce(kafka, topic, [b"one", b"two"])
    assert consume(kafka, topic, 2) == [b"one", b"two"]


def test_topics_are_not_made_by_accident(kafka: str, topic_prefix: str) -> None:
    consumer = Consumer({"bootstrap.servers": kafka, "group.id": "g", "allow.auto.create.topics": True})
    consumer.list_topics(f"{topic_prefix}typo", timeout=10)
    consumer.close()
    assert f"{topic_prefix}typo" not in AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics


def test_what_ended_tests_have_left_is_deleted_and_nothing_else(kafka: str, unique: Callable[[str], str]) -> None:
    named, kept, token = unique("named"), unique("named-too"), unique("token")
    admin = AdminClient({"bootstrap.servers": kafka})
    created_topic.create(admin, *(NewTopic(name, 1, 1) for name in (named, kept, f"lapse.{token}.events")))
    left_topics.leave(kafka, [named, unique("deleted already")], token)
    left_topics.leave("127.0.0.1:1", [kept])
    left_topics.delete(kafka)
    left_topics.delete(kafka)

    def left() -> set[str]:
        there = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics
        return {name for name in there if name in (named, kept) or token in name}

    until(lambda: left() == {kept}, "those of ended tests are gone")
    left_topics.leave(kafka, [kept])


def test_a_crash_keeps_address_and_data(running: EmbeddedKafka) -> None:
    servers = running.bootstrap_servers
    admin = AdminClient({"bootstrap.servers": servers})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(10)
    produce(servers, "orders", [b"before"])

    running.kill()
    assert not running.running
    running.start()
    assert running.bootstrap_servers == servers
    produce(servers, "orders", [b"between"])

    running.restart()
    assert consume(servers, "orders", 2) == [b"before", b"between"]


def test_a_paused_broker_is_silent_and_goes_on(running: EmbeddedKafka) -> None:
    admin = AdminClient({"bootstrap.servers": running.bootstrap_servers})
    running.pause()
    threads = psutil.Process(running.jvm.pid).threads()
    states = {Path(f"/proc/{one.id}/stat").read_text().rpartition(")")[2].split()[0] for one in threads}
    assert states == {"T"}, "what is sent from now on is not answered, not even on a busy machine"
    with pytest.raises(Exception, match="_TRANSPORT|_TIMED_OUT"):
        admin.list_topics(timeout=1)
    running.resume()

    def answers() -> bool:
        try:
            return bool(admin.list_topics(timeout=5).brokers)
        except KafkaException:  # the client may still be about to connect anew
            return False

    until(answers, "it answers again", 60)


def test_a_paused_broker_can_be_closed_and_its_temporary_data_goes() -> None:
    with EmbeddedKafka() as temporary:
        process, where = psutil.Process(temporary.jvm.pid), temporary.data
        assert where.is_dir()
        temporary.pause()
    assert gone(process)
    assert not where.exists()


def test_given_data_stays_and_options_of_java_take_the_place_of_ours(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LC_ALL", "C")  # Java could not open the directory
    properties = {"log.message.timestamp.type": "LogAppendTime"}
    where = tmp_path / "für später"
    options = ["-XX:+UseParallelGC", *class_archive.options()]
    with EmbeddedKafka(where, properties=properties, java_options=options) as kept:
        options = [word for word in psutil.Process(kept.jvm.pid).cmdline() if word.startswith("-X")]
    assert options[0] == "-Xmx512m"
    assert [word for word in options if "GC" in word or "Tiered" in word] == ["-XX:+UseParallelGC"]
    assert "log.message.timestamp.type=LogAppendTime" in (where / "server.properties").read_text()
    assert "Kafka Server started" in kept.log.read_text()


def test_a_path_that_is_no_text_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match="is no path in the encoding of this locale"):
        EmbeddedKafka(tmp_path / "\udcfc").start()


def test_a_disk_that_is_full_is_reported_before_the_broker_ends_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = shutil.disk_usage(tmp_path)._replace(free=3 << 20)
    monkeypatch.setattr("lapse.embedded.kafka.shutil.disk_usage", lambda _: usage)
    with pytest.raises(BrokerFailed, match="has only 3 MiB free"):
        EmbeddedKafka(tmp_path).start()


def test_a_wrong_property_is_named(tmp_path: Path) -> None:
    with pytest.raises(BrokerFailed, match=r"Invalid value soon for configuration log\.retention\.ms"):
        EmbeddedKafka(tmp_path, properties={"log.retention.ms": "soon"}).start()


def test_a_second_start_and_a_call_without_start_are_refused(running: EmbeddedKafka) -> None:
    with pytest.raises(BrokerFailed, match="runs already, at 127.0.0.1"):
        running.start()
    with pytest.raises(BrokerFailed, match=r"before its first start\(\)"):
        _ = EmbeddedKafka().bootstrap_servers


def test_a_taken_port_that_was_asked_for_is_named(
    running: EmbeddedKafka, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(embedded_kafka, "_BIND_ATTEMPTS", 2)  # each is a JVM
    with pytest.raises(BrokerFailed, match=r"(?s)ended while starting.*kafka\.log.*Address already in use"):
        EmbeddedKafka(tmp_path, ports=running.ports).start()


OWNER = """
import sys, time
from lapse.embedded import EmbeddedKafka
kafka = EmbeddedKafka()
kafka.start()
print(kafka.jvm.pid, kafka.data, flush=True)
{then}
"""


def owner(then: str) -> tuple[subprocess.Popen[str], psutil.Process, Path]:
    """Start a process that owns a broker; return it, the JVM and the broker's data directory."""
    process = subprocess.Popen([sys.executable, "-c", OWNER.format(then=then)], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    with process.stdout as output:
        pid, data = output.readline().split()
    return process, psutil.Process(int(pid)), Path(data)


@pytest.mark.parametrize(
    "number", cases([signal.SIGKILL], long=[signal.SIGTERM, signal.SIGINT]), ids=lambda number: number.name
)
def test_no_jvm_survives_its_owner(number: signal.Signals) -> None:
    process, jvm, data = owner("time.sleep(600)")
    assert jvm.is_running()
    process.send_signal(number)
    process.wait(30)
    assert wait_until(lambda: gone(jvm)), "the JVM outlived its owner"
    assert wait_until(lambda: not data.exists()), "its temporary data was left behind"


def test_no_paused_jvm_survives_its_owner() -> None:
    process, jvm, _ = owner("kafka.pause(); time.sleep(600)")
    wait_until(lambda: jvm.status() == psutil.STATUS_STOPPED)
    process.kill()
    process.wait(30)
    assert wait_until(lambda: gone(jvm))


def test_no_jvm_survives_an_owner_that_forgets_it() -> None:
    process, jvm, data = owner("sys.exit(3)")
    assert process.wait(30) == 3
    assert wait_until(lambda: gone(jvm))
    assert not data.exists()


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is Linux")
def test_no_jvm_survives_its_supervisor() -> None:
    process, jvm, data = owner("time.sleep(600)")
    os.kill(jvm.ppid(), signal.SIGKILL)
    assert wait_until(lambda: gone(jvm))
    process.kill()
    process.wait(30)
    shutil.rmtree(data)
