"""`lapse kafka start`, `status` and `stop`, as a user calls them."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from lapse.topic_creation import NewTopic
from support.processes import fork_server
from support.suite import command

LAPSE = [sys.executable, "-c", "from lapse.cli import main; main(prog_name='lapse')"]


def lapse(*arguments: str) -> subprocess.CompletedProcess[str]:
    return command.run("kafka", *arguments)


def started(*arguments: str) -> subprocess.CompletedProcess[str]:
    """Start a broker by a process of its own, which the broker has to outlive."""
    return fork_server.run([*LAPSE[1:], "kafka", "start", *arguments], os.environ)


@pytest.fixture
def data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A data directory on which nothing runs before and after the test."""
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setenv("LAPSE_KAFKA_DATA", str(tmp_path / "kafka"))
    # Brokers that last have the optimizing compiler. For one that lives for seconds it takes a third of the CPU.
    monkeypatch.setenv("JDK_JAVA_OPTIONS", "-XX:TieredStopAtLevel=1")
    yield tmp_path / "kafka"
    if (tmp_path / "kafka" / "broker.json").exists():
        lapse("stop")


def test_daemon_lives_until_it_is_stopped_and_keeps_its_data(data: Path) -> None:
    first = started("--port", "0", "--json")
    assert first.returncode == 0, first.stderr
    printed = json.loads(first.stdout)
    broker = psutil.Process(printed["pid"])
    assert broker.is_running(), "it outlives its command"
    admin = AdminClient({"bootstrap.servers": printed["bootstrap_servers"]})
    admin.create_topics([NewTopic("orders", 1, 1)])["orders"].result(10)

    status = lapse("status", "--json")
    assert status.returncode == 0
    assert json.loads(status.stdout)["bootstrap_servers"] == printed["bootstrap_servers"]
    assert json.loads(status.stdout)["resident_bytes"] > 50_000_000

    again = lapse("start", "--port", "0")
    assert again.returncode == 1
    assert f"A broker runs on {data} already, at {printed['bootstrap_servers']}" in again.stderr
    assert "lapse kafka stop" in again.stderr

    stopped = lapse("stop")
    assert stopped.returncode == 0
    assert f"Its data stays in {data}" in stopped.stdout
    assert not broker.is_running()

    port = printed["bootstrap_servers"].rpartition(":")[2]
    assert started("--port", port).returncode == 0
    assert "orders" in AdminClient({"bootstrap.servers": f"127.0.0.1:{port}"}).list_topics(timeout=10).topics


def test_nothing_to_show_or_stop(data: Path) -> None:
    status = lapse("status")
    assert status.returncode == 1
    assert "lapse kafka start" in status.stdout
    unknown = dict.fromkeys(("bootstrap_servers", "pid", "started_s", "resident_bytes", "log"))
    assert json.loads(lapse("status", "--json").stdout) == {"running": False, "data": str(data)} | unknown
    assert lapse("stop").returncode == 0
    assert not data.exists(), "asking leaves nothing behind"


def test_state_of_a_crashed_broker_is_not_believed(data: Path) -> None:
    printed = json.loads(started("--port", "0", "--json").stdout)
    os.kill(printed["pid"], signal.SIGKILL)
    psutil.wait_procs([psutil.Process(printed["pid"])] if psutil.pid_exists(printed["pid"]) else [], timeout=10)
    assert lapse("status").returncode == 1
    assert started("--port", "0").returncode == 0, "and it starts again on the same data"


def test_foreground_ends_with_its_command(data: Path) -> None:
    process = subprocess.Popen(
        [*LAPSE, "kafka", "start", "--foreground", "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    with process.stdout as output:
        broker = psutil.Process(json.loads(output.readline())["pid"])
    assert lapse("status").returncode == 0
    process.send_signal(signal.SIGINT)
    assert process.wait(30) == 0
    assert not broker.is_running() or broker.status() == psutil.STATUS_ZOMBIE
    assert lapse("status").returncode == 1


def test_interrupted_start_leaves_no_broker(data: Path) -> None:
    process = subprocess.Popen([*LAPSE, "kafka", "start", "--port", "0"], stderr=subprocess.PIPE)
    deadline = time.monotonic() + 60
    while not (data / "broker.json").exists() and time.monotonic() < deadline:
        time.sleep(0.01)
    pid = json.loads((data / "broker.json").read_text())["pid"]
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=30)
    assert process.returncode == 1
    assert not psutil.pid_exists(pid)


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (["start", "--property", "no-equals-sign"], 2, "'no-equals-sign' is not of the form NAME=VALUE"),
        (["start", "--port", "70000"], 2, "70000 is not in the range"),
        (["start", "--port", "0", "--property", "log.retention.ms=soon"], 1, "Invalid value soon"),
        (["restart"], 2, "No such command 'restart'"),
    ],
)
def test_wrong_usage_is_named(data: Path, arguments: list[str], code: int, says: str) -> None:
    answer = lapse(*arguments)
    assert answer.returncode == code
    assert says in answer.stderr
    assert "Traceback" not in answer.stderr


def test_taken_port_is_named(data: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        answer = lapse("start", "--port", port)
    assert answer.returncode == 1
    assert f"Port {port} is in use" in answer.stderr


def test_no_daemon_beside_a_given_broker(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "broker.example:9092")
    answer = lapse("start", "--json")
    assert answer.returncode == 1
    assert "KAFKA_BOOTSTRAP_SERVERS is set to broker.example:9092" in json.loads(answer.stdout)["error"]
