"""`lapse dev`: broker, topics, worker and console in one process tree, which ends as a whole."""

import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, wait
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import psutil
import pytest
from confluent_kafka import Producer
from confluent_kafka.admin import AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from lapse.cli.ending import KILLED
from lapse.cli.sample import SAMPLE
from lapse.config import load
from lapse.doctor import Verdict
from lapse.doctor.lag import check_lag
from lapse.doctor.transactions import check_transactions
from lapse.embedded.process import freeze
from lapse.replication.progress import CONFIG, Progress
from lapse.replication.progress import TOPIC as PROGRESS
from lapse_client import Publisher, QueueSubscriber
from lapse_client.kafka.connection import Connection
from lapse_client.letters.dead_letter import DeadLetter
from lapse_client.letters.redriven import TOPIC as REDRIVEN
from lapse_client.letters.redriven import Redriven
from support.kafka.log import until

LAPSE = [sys.executable, "-m", "lapse"]
SERVERS = "KAFKA_BOOTSTRAP_SERVERS"


class Stand:
    """A running `lapse dev`."""

    def __init__(self, place: Path) -> None:
        environment = {name: value for name, value in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"}
        self.config = place / "lapse.toml"
        self.log = place / "log"
        with self.log.open("wb") as log:
            self.process = subprocess.Popen(
                [*LAPSE, "dev", "--port", "0", "--console-port", "0", "--data", str(place / "kafka"), "--json"],
                cwd=place,
                env=environment,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
            )
        assert self.process.stdout is not None
        self.printed = json.loads(self.process.stdout.readline() or "{}")
        assert self.printed, self.log.read_text("utf-8")
        self.connection = Connection(bootstrap_servers=self.printed["bootstrap_servers"])

    def tree(self) -> list[psutil.Process]:
        return [*psutil.Process(self.process.pid).children(recursive=True)]


@pytest.fixture(scope="module")
def stand(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Stand]:
    stand = Stand(tmp_path_factory.mktemp("dev"))
    yield stand
    stand.process.kill()
    stand.process.wait()


def test_the_sample_is_written_and_everything_runs(stand: Stand) -> None:
    assert stand.config.read_text("utf-8") == SAMPLE
    assert (stand.printed["queues"], stand.printed["sow"]) == (["orders"], ["prices"])
    with Publisher(connection=stand.connection) as publisher:
        publisher.publish("orders", b"1")
    with QueueSubscriber("orders", connection=stand.connection) as orders:
        delivery = orders.receive(timeout=20)
        assert delivery is not None
        with delivery:
            assert delivery.value == b"1"
    with urllib.request.urlopen(stand.printed["console"], timeout=10) as page:
        assert b"orders" in page.read()


def test_a_changed_file_is_applied(stand: Stand) -> None:
    stand.config.write_text(f"{SAMPLE}\n[queue.returns]\n", "utf-8")
    with Publisher(connection=stand.connection) as publisher:
        until(lambda: "returns" in stand.connection.queues(), "the new queue's topics", 30)
        publisher.publish("returns", b"2")
    with QueueSubscriber("returns", connection=stand.connection) as returns:
        delivery = returns.receive(timeout=30)
        assert delivery is not None
        assert delivery.value == b"2"


def test_a_wrong_file_changes_nothing(stand: Stand) -> None:
    processes = {one.pid for one in stand.tree()}
    stand.config.write_text("[queue.orders]\nlease_period = 'soon'\n", "utf-8")
    until(lambda: "what runs goes on as before" in stand.log.read_text("utf-8"), "the refusal", 20)
    assert "lease_period" in stand.log.read_text("utf-8")
    assert {one.pid for one in stand.tree()} == processes
    stand.config.write_text(SAMPLE, "utf-8")


@pytest.mark.long
def test_a_file_that_becomes_wrong_while_a_worker_starts_ends_nothing(stand: Stand) -> None:
    """The worker reads the file itself, and later than who starts it."""
    stand.config.write_text(f"{SAMPLE}\n[queue.later]\n", "utf-8")
    until(lambda: "later" in stand.connection.queues(), "its topics, just before the worker is started", 30)
    stand.config.write_text("[queue.orders]\nlease_period = 'never'\n", "utf-8")
    until(lambda: "not 'never'" in stand.log.read_text("utf-8"), "the refusal", 30)
    stand.config.write_text(f"{SAMPLE}\n[queue.last]\n", "utf-8")
    until(lambda: "last" in stand.connection.queues(), "the file is right again, and applied", 60)
    with Publisher(connection=stand.connection) as publisher:
        publisher.publish("last", b"3")
    with QueueSubscriber("last", connection=stand.connection) as last:
        delivery = last.receive(timeout=40)
        assert delivery is not None
        delivery.acknowledge()
    stand.config.write_text(SAMPLE, "utf-8")
    assert stand.process.poll() is None


def doctor(stand: Stand, *arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": stand.printed["bootstrap_servers"]}
    command = [*LAPSE, "doctor", *arguments]
    return subprocess.run(
        command, cwd=stand.config.parent, env=environment, capture_output=True, text=True, timeout=60, check=False
    )


def test_doctor_finds_nothing_wrong_and_then_what_somebody_changed(stand: Stand) -> None:
    healthy: subprocess.CompletedProcess[str]

    def finds_nothing_wrong() -> bool:
        nonlocal healthy
        healthy = doctor(stand)
        return healthy.returncode == 0

    with contextlib.suppress(AssertionError):  # the test before has changed the file, so the worker may start just now
        until(finds_nothing_wrong, "an answer of the worker", 60)
    assert healthy.returncode == 0, healthy.stdout + healthy.stderr
    for part in ("queue orders: answers after", "SOW topic prices: answers after", "clock: ", "0 wrong"):
        assert part in healthy.stdout

    changelog = ConfigResource(ResourceType.TOPIC, "lapse-orders-changelog")
    changelog.add_incremental_config(
        ConfigEntry("delete.retention.ms", "1000", incremental_operation=AlterConfigOpType.SET)
    )
    admin = stand.connection.admin()
    admin.incremental_alter_configs([changelog])[changelog].result(10)
    with Publisher(connection=stand.connection) as publisher:
        publisher.publish("orders", b"nobody takes it")
    until(lambda: "nobody subscribes" in doctor(stand).stdout, "the message that waits", 20)
    expected = [("settings", "wrong"), ("queue orders", "warning")]
    findings: list[dict[str, str]] = []

    def worth_telling() -> list[tuple[str, str]]:
        ill = doctor(stand, "--json")
        assert ill.returncode == 1
        findings[:] = [json.loads(line) for line in ill.stdout.splitlines()]
        return [(one["about"], one["verdict"]) for one in findings if one["verdict"] != "fine"]

    with contextlib.suppress(AssertionError):  # a worker that answers slowly, as on a busy machine, is told of as well
        until(lambda: worth_telling() == expected, "what somebody changed, and nothing else")
    assert worth_telling() == expected, findings
    (wrong,) = [one for one in findings if one["verdict"] == "wrong"]
    assert "delete.retention.ms = 1000, and lapse needs 86400000" in wrong["text"]
    assert "--add-config delete.retention.ms=86400000" in wrong["remedy"]


@pytest.mark.feature("Q15")
def test_doctor_tells_that_a_worker_lags(stand: Stand) -> None:
    config = load(stand.config)
    until(lambda: [one.verdict for one in check_lag(config, stand.connection)] == [Verdict.FINE], "it keeps up", 20)
    (worker,) = [one for one in stand.tree() if "--no-supervise" in one.cmdline()]
    freeze(worker)
    try:
        with Publisher(connection=stand.connection) as publisher:
            for number in range(20):
                publisher.publish("orders", b"%d" % number)
        (lag,) = check_lag(config, stand.connection)
    finally:
        worker.resume()
    assert (lag.about, lag.verdict) == ("lag", Verdict.WARNING)
    assert "20 records of topic orders" in lag.text
    assert "See its log" in lag.remedy
    until(
        lambda: [one.verdict for one in check_lag(config, stand.connection)] == [Verdict.FINE], "it has caught up", 20
    )


@pytest.mark.feature("Q15", "Q23", "S10", "C58")
def test_a_transaction_that_stays_open_is_reported_and_readers_that_need_all_wait_for_its_end(stand: Stand) -> None:
    servers, progress = (
        {"bootstrap.servers": stand.connection.bootstrap_servers},
        ("A", "B", {"lapse.sow.prices": "1>2"}),
    )
    for name, settings in ((PROGRESS, CONFIG), (REDRIVEN, {})):
        admin = stand.connection.admin()
        admin.create_topics([NewTopic(name, 1, 1, config=settings)])[name].result(15)
    open_one = Producer({**servers, "transactional.id": "of somebody else"})
    open_one.init_transactions(30)
    open_one.begin_transaction()
    for name in (PROGRESS, REDRIVEN):
        open_one.produce(name, b"{}", b"key", partition=0)
    open_one.flush(30)
    key, value = Progress(*progress).record("lapse.sow.prices", 0, 7)
    behind = Producer(servers)
    behind.produce(PROGRESS, value, key)
    behind.produce(REDRIVEN, b'{"first": "a", "times": 1}', b"a")
    behind.flush(30)

    (*found,) = check_transactions(load(stand.config), stand.connection)
    assert [(one.about, one.verdict) for one in found] == [("transactions", Verdict.WARNING)] * 2
    assert found[0].text.startswith(f"{REDRIVEN}, partition 0: 2 records from offset 0 on are behind a transaction")
    assert f"abort --topic {PROGRESS} --partition 0 --start-offset 0" in found[1].remedy

    ours, notes = Progress(*progress), Redriven(stand.connection)
    letter = cast("DeadLetter", SimpleNamespace(lapse_id="a"))
    assert not notes.read().sent(letter), "a plan may be made without them"
    with ThreadPoolExecutor(2) as beside:
        reads = [beside.submit(ours.read, servers, 2), beside.submit(notes.read, whole=True)]
        wait(reads, 1.0)
        open_one.abort_transaction(30)
        for one in reads:
            one.result(30)
    assert ours.next_offset("lapse.sow.prices", 0) == 7, "though another link was in a transaction"
    assert notes.sent(letter) == 1
    assert not [*check_transactions(load(stand.config), stand.connection)]


def test_doctor_without_a_broker_says_what_it_can(stand: Stand) -> None:
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}
    command = [*LAPSE, "doctor"]
    done = subprocess.run(
        command, cwd=stand.config.parent, env=environment, capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 1
    assert "✗ Kafka: no answer from Kafka at 127.0.0.1:1" in done.stdout
    assert "✓ versions: lapse " in done.stdout


def test_ctrl_c_ends_all_of_it(stand: Stand) -> None:
    processes = stand.tree()
    assert len(processes) >= 4, "a broker and its guard, a worker and its guard, a console"
    stand.process.send_signal(signal.SIGINT)
    assert stand.process.wait(40) == 0, "in order"
    assert not [one for one in processes if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


def test_a_second_ctrl_c_ends_even_what_hangs(kafka: str, tmp_path: Path) -> None:
    command = [*LAPSE, "dev", "--console-port", "0"]
    dev = subprocess.Popen(command, cwd=tmp_path, stderr=subprocess.DEVNULL, env={**os.environ, SERVERS: kafka})
    children = psutil.Process(dev.pid).children
    until(lambda: [one for one in children() if "gateway" in one.cmdline()], "it has started its console", 60)
    hanging = [one for one in children() if "gateway" in one.cmdline()]
    for one in hanging:
        freeze(one)

    def ended() -> bool:
        dev.send_signal(signal.SIGINT)
        return dev.poll() is not None

    until(ended, "somebody who is in a hurry", 60)
    assert dev.returncode == KILLED
    psutil.wait_procs(hanging, 10)
    assert not [one for one in hanging if one.is_running() and one.status() != psutil.STATUS_ZOMBIE]


@pytest.mark.feature("X7")
@pytest.mark.parametrize("option", ["--console-port", "--port"])
def test_a_port_in_use_is_reported_in_one_sentence(option: str, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        ports = {"--console-port": "0", option: port}
        given = [word for one in ports.items() for word in one]
        done = subprocess.run(
            [*LAPSE, "dev", *given, "--data", str(tmp_path / "kafka")],
            cwd=tmp_path,
            env={name: value for name, value in os.environ.items() if name != SERVERS},
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
    assert (done.returncode, done.stdout) == (1, "")
    (printed,) = done.stderr.splitlines()
    assert f"ort {port}" in printed
    assert "in use. Give another one with" in printed
    assert f"{option} 0" in printed
    assert not (tmp_path / "lapse.toml").exists(), "nothing began"
