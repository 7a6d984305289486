"""A queue consumed, and a SOW topic asked, without lapse's client: as docs/protocol.md and examples show (X2)."""

import contextlib
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from lapse.embedded.class_archive import QUICK
from lapse.embedded.jars import KAFKA, jar_files
from support.consumers import kcat_stand_in
from support.kafka.log import until
from support.pages.page_run import commands, fits
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.suite.at_length import cases

ROOT = Path(__file__).parents[3]


def blocks(deployment: Deployment) -> list[str]:
    """The page's shell scripts, for the topics of a deployment."""
    page = (ROOT / "docs/protocol.md").read_text("utf-8").split("\n## With nothing but kcat and a shell\n")[1]
    text = page.split("\n## ")[0].replace("localhost:9092", deployment.servers)
    for stem in ("orders", "prices"):
        text = re.sub(rf"\b{stem}\b", deployment.name(stem), text)
    return re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


def python_worker(directory: Path) -> Path:
    """The page's worker, saved as it stands there."""
    page = (ROOT / "docs/protocol.md").read_text("utf-8")
    text = page.split("\n## With a few lines of Python\n")[1].split("\n## ")[0]
    (script,) = re.findall(r"^```python\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)
    file = directory / "worker.py"
    file.write_text(script)
    return file


HANDLER = """
import os, sys, time
value = sys.stdin.buffer.read()
with open(sys.argv[1], "a") as out:
    out.write(value.hex() + "\\n")
if value == b"slow":
    time.sleep(30)
while value == b"wait" and not os.path.exists(sys.argv[1] + ".go"):
    time.sleep(0.05)
sys.exit(value == b"bad")
"""


def programs(directory: Path) -> dict[str, Callable[[], list[str | Path]]]:
    """How the worker of each language begins: the page's, and the examples in Java and Go."""
    return {
        "python": lambda: [sys.executable, python_worker(directory)],
        "java": java_worker,
        "go": lambda: [go_worker(directory)],
    }


def java_worker() -> list[str | Path]:
    """The example as it stands there, with the jars of a Kafka distribution."""
    home = os.environ.get("JAVA_HOME")
    java = shutil.which("java", path=f"{home}/bin" if home else None) or shutil.which("java")
    compiles = (
        java and "jdk.compiler" in subprocess.run([java, "--list-modules"], capture_output=True, text=True).stdout
    )
    if not compiles:
        pytest.skip("no JDK: a JRE runs the broker, and compiles no example")  # lapse itself needs no compiler
    return [str(java), "-cp", os.pathsep.join(map(str, jar_files(KAFKA))), ROOT / "examples/java/Worker.java"]


def go_worker(directory: Path) -> Path:
    """The example, built."""
    go = shutil.which("go")
    if go is None:
        pytest.skip("Go is not installed")  # nothing of lapse is written in it
    program = directory / "worker"
    done = subprocess.run([go, "build", "-o", program, "."], cwd=ROOT / "examples/go", capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture
def consumers() -> Iterator[Callable[..., "subprocess.Popen[bytes]"]]:
    """Runs a worker of some language on a queue."""
    begun: list[subprocess.Popen[bytes]] = []

    def begin(one: Deployment, directory: Path, language: str = "python") -> "subprocess.Popen[bytes]":
        handler = directory / "handle.py"
        handler.write_text(HANDLER)
        handling = [sys.executable, handler, directory / "said"]
        quick = {"JDK_JAVA_OPTIONS": " ".join(QUICK)}  # to compile the example optimized takes half of its CPU
        environment = {**os.environ, **quick, "KAFKA_BOOTSTRAP_SERVERS": one.servers}
        command = [*programs(directory)[language](), one.name("orders"), *handling]
        begun.append(subprocess.Popen(command, env=environment, start_new_session=True))
        return begun[-1]

    yield begin
    for process in begun:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(20)


def said(directory: Path) -> list[bytes]:
    """What the handler was given, in order."""
    file = directory / "said"
    return [bytes.fromhex(line) for line in file.read_text().splitlines()] if file.exists() else []


@pytest.fixture
def environment(tmp_path: Path) -> dict[str, str]:
    """Where there is no kcat, a program of the tests does what the page asks of it."""
    environment = dict(os.environ)
    if shutil.which("kcat") is None:
        kcat = tmp_path / "kcat"
        kcat.write_text(f'#!/bin/sh\nexec "{sys.executable}" "{kcat_stand_in.__file__}" "$@"\n')
        kcat.chmod(0o755)
        environment["PATH"] = f"{tmp_path}:{environment['PATH']}"
    return environment


@pytest.mark.feature("X2", "L2")
def test_a_message_is_published_with_a_lifetime(deploy: Deploy, environment: dict[str, str]) -> None:
    one = deploy({"orders": {"expiration": "enabled", "dead_letter": "dlq.orders{}"}}).apply()
    one.worker().wait_for_shards(1)
    publish, _ = blocks(one)
    done = subprocess.run(["sh", "-c", publish.splitlines()[0]], env=environment, timeout=60, check=False)
    assert done.returncode == 0
    with one.subscriber("orders") as subscriber:
        assert subscriber.receive(20).value == b'{"id": 1}'


@pytest.mark.feature("X2", "X7", "L2", "Q3", "Q8")
def test_the_example_of_the_page_prints_what_it_shows(deploy: Deploy, environment: dict[str, str]) -> None:
    one = deploy({"orders": {"expiration": "enabled", "dead_letter": "dlq.orders{}"}}).apply()
    one.worker().wait_for_shards(1)
    page = (ROOT / "docs/protocol.md").read_text("utf-8").split("\n## One message, from beginning to end\n")[1]
    text = page.split("\n## ")[0].replace("localhost:9092", one.servers)
    text = re.sub(r"\borders\b", one.name("orders"), text)
    shown = [
        pair
        for block in re.findall(r"^```console\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
        for pair in commands(block)
    ]
    assert len(shown) == 7
    for command, output in shown:
        done = subprocess.run(["sh", "-c", command], env=environment, timeout=60, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr
        assert fits(output, done.stdout), f"$ {command}\n{done.stdout}"


def write_hostile(one: Deployment) -> list[bytes]:
    """Line feeds, bars, no UTF-8, a deadline long past, and headers like lapse's own in name, value and order.

    The queues ignore lifetimes, so the deadline has no effect (L6).
    """
    one.write("orders", "for another", partition=1, headers=[("lapse-enqueue-at-ms", b"99999999999999")])
    forged = f"x,lapse-bookmark={one.name('orders')}:1:0,lapse-delivery-count=1,lapse-subscription=me".encode()
    values = [b"two\nlines", b"a|b\x00c", b"\xff\xfe no text", b"$(touch hostile) `id` ; '", b"", b"-n"]
    for at, value in enumerate(values):
        headers = [
            ("trace", forged),
            ("a|b", b"c|d\ne"),
            ("lapse-bookmark", f"{one.name('orders')}:1:0".encode()),
            ("lapse-lease-until-ms", b"soon"),
            ("lapse-epoch", b"99"),
            ("lapse-subscription", b"nobody"),
            ("lapse-kind", b"answer"),
            ("lapse-kind", b""),
            ("\n\u2028", None),
        ]
        one.write("orders", value, partition=at % 2, headers=headers)
    one.write("orders", "long past", headers=[("lapse-expires-at-ms", b"1"), ("lapse-lifetimes", b"")])
    one.write("orders", None, headers=[("lapse-kind", b"")])
    return [*values, b"long past", b""]


@pytest.mark.feature("X2", "L6", "Q3", "Q5", "Q8")
def test_hostile_records_reach_the_handler_as_they_are_and_settle_nothing_else(
    deploy: Deploy, consumers: Callable[..., object], tmp_path: Path
) -> None:
    one = deploy({"orders": {"partitions": 2, "dead_letter": "dlq.orders{}"}}).apply()
    one.worker().wait_for_shards(2)
    values = write_hostile(one)
    consumers(one, tmp_path)
    until(lambda: len(said(tmp_path)) == len(values), "each is worked on", 60)
    until(lambda: one.depth("orders")["depth"] == 0, "each is acknowledged")
    assert sorted(said(tmp_path)) == sorted(values)
    assert one.depth("orders")["scheduled"] == 1, "what a header names is untouched"
    assert not (Path.cwd() / "hostile").exists()


@pytest.mark.feature("X2", "L6", "Q3", "Q5", "Q8")
@pytest.mark.timeout(600)  # Go compiles its own library as well, where nothing was ever built
@pytest.mark.parametrize("language", cases(["java"], long=["go"]))
def test_the_examples_in_other_languages_keep_the_rules(
    deploy: Deploy, consumers: Callable[..., object], tmp_path: Path, language: str
) -> None:
    """As the page's worker does: hostile records, failures, leases that end, and a shard that is taken over."""
    queue = {"partitions": 2, "lease_period": "3s", "max_deliveries": 2, "dead_letter": "dlq.orders{}"}
    one = deploy({"orders": queue}).apply()
    worker = one.worker().wait_for_shards(2)
    values = write_hostile(one)
    consumers(one, tmp_path, language)
    until(lambda: len(said(tmp_path)) == len(values), "each is worked on", 90)
    until(lambda: one.depth("orders")["depth"] == 0, "each is acknowledged")
    assert sorted(said(tmp_path)) == sorted(values)
    assert one.depth("orders")["scheduled"] == 1, "what a header names is untouched"
    one.write("orders", "bad", "slow", "good")
    assert {letter.value() for letter in one.letters("orders", 2, 60)} == {b"bad", b"slow"}
    worker.kill()
    worker.start()
    one.write("orders", "after")
    until(lambda: {b"good", b"after"} <= set(said(tmp_path)), "it goes on with the shard's next owner", 60)
    until(lambda: one.depth("orders")["depth"] == 0, "all is settled", 30)


@pytest.mark.feature("X2", "Q5", "Q8")
def test_what_fails_or_outlasts_its_lease_comes_again_and_a_crash_of_the_shard_loses_nothing(
    deploy: Deploy, consumers: Callable[..., object], tmp_path: Path
) -> None:
    one = deploy({"orders": {"lease_period": "3s", "max_deliveries": 2, "dead_letter": "dlq.orders{}"}}).apply()
    worker = one.worker().wait_for_shards(1)
    consumers(one, tmp_path)
    one.write("orders", "bad", "slow", "good")
    letters = {letter.value() for letter in one.letters("orders", 2, 60)}
    assert letters == {b"bad", b"slow"}
    until(lambda: b"good" in said(tmp_path), "the good one is worked on", 30)
    worker.kill()
    worker.start()
    one.write("orders", "after")
    until(lambda: b"after" in said(tmp_path), "it goes on with the shard's next owner", 60)
    until(lambda: one.depth("orders")["depth"] == 0, "all is settled", 30)


@pytest.mark.feature("X2", "L10")
@pytest.mark.parametrize("language", cases(["python"], long=["java", "go"]))
def test_what_has_expired_before_its_turn_is_not_begun(
    deploy: Deploy, consumers: Callable[..., object], tmp_path: Path, language: str
) -> None:
    one = deploy({"orders": {"partitions": 2, "expiration": "enabled", "lease_period": "1m"}}).apply()
    one.worker().wait_for_shards(2)
    consumers(one, tmp_path, language)
    one.write("orders", "wait")
    until(lambda: said(tmp_path) == [b"wait"], "the first is worked on", 90)
    one.write("orders", "late", partition=1, headers=[("lapse-ttl-ms", b"8000")])
    until(lambda: one.depth("orders")["leased"] == 2, "the second has been delivered", 8)
    with one.queue("orders") as queue:
        (deadline_ms,) = (row.expires_at_ms for row in queue.peek() if row.expires_at_ms is not None)
    until(lambda: broker_now_ms() > deadline_ms, "the second is past its deadline")
    (tmp_path / "said.go").touch()
    assert [letter.value() for letter in one.letters("orders", 1, 30)] == [b"late"]
    one.write("orders", "good", partition=1)
    until(lambda: one.depth("orders")["depth"] == 0, "all is settled", 30)
    assert said(tmp_path) == [b"wait", b"good"]


@pytest.mark.feature("X2", "S5", "S8")
def test_a_sow_topic_is_asked_and_its_state_read(deploy: Deploy, environment: dict[str, str]) -> None:
    one = deploy({})
    one.configure({}, {"prices": {}})
    one.apply().worker().wait_for_shards(1)
    for key, price in (("A", 4), ("B", 6), ("A", 9), ("C", 5)):
        one.write("prices", f'{{"price": {price}}}', key=key.encode())
    _, ask = blocks(one)
    command, *reading = ask.splitlines()

    def printed(script: str) -> str:
        done = subprocess.run(["sh", "-c", script], env=environment, timeout=60, capture_output=True, text=True)
        return done.stdout

    state = {"A": 9, "B": 6, "C": 5}
    until(
        lambda: all(f'{key} {{"price": {price}}}' in printed(reading[1]) for key, price in state.items()), "the state"
    )
    printed(command)
    until(lambda: "group-end" in printed(reading[0]), "the answer")
    answer = printed(reading[0])
    assert re.findall(r'^  (\w) (\{"price": \d\})$', answer, re.MULTILINE) == [
        ("A", '{"price": 9}'),
        ("B", '{"price": 6}'),
    ]
