"""A queue consumed, and a SOW topic asked, with nothing but kcat and a shell, as docs/protocol.md shows it (X2)."""

import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from support import kcat_stand_in
from support.deployment import Deploy, Deployment
from support.log import until

ROOT = Path(__file__).parents[2]


def blocks(deployment: Deployment) -> list[str]:
    """The page's scripts, for the topics of a deployment."""
    page = (ROOT / "docs/protocol.md").read_text("utf-8").split("\n## With nothing but kcat and a shell\n")[1]
    text = page.split("\n## ")[0].replace("localhost:9092", deployment.servers)
    for stem in ("orders", "prices"):
        text = re.sub(rf"\b{stem}\b", deployment.name(stem), text)
    return re.findall(r"^```sh\n(.*?)^```$", text, flags=re.MULTILINE | re.DOTALL)


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


@pytest.mark.feature("X2", "Q3", "Q5", "Q8")
def test_a_queue_is_consumed(deploy: Deploy, environment: dict[str, str], tmp_path: Path) -> None:
    one = deploy({"orders": {"expiration": "enabled", "dead_letter": "dlq.orders{}"}}).apply()
    one.worker().wait_for_shards(1)
    publish, consume, _ = blocks(one)
    said = tmp_path / "said"
    environment["KAFKA_BOOTSTRAP_SERVERS"] = one.servers
    with said.open("w") as out:
        consumer = subprocess.Popen(["sh", "-c", consume], env=environment, stdout=out, start_new_session=True)
        try:
            # Its own first message, which says how long it lives, and two more.
            done = subprocess.run(["sh", "-c", publish.splitlines()[0]], env=environment, timeout=60, check=False)
            assert done.returncode == 0
            one.write("orders", '{"id": 2}', '{"id": 3}')
            until(lambda: said.read_text().count("working on") == 3, "three messages are worked on", 60)
            until(lambda: one.depth("orders")["depth"] == 0, "all are acknowledged")
        finally:
            os.killpg(consumer.pid, signal.SIGKILL)
    told = [re.sub(r" \(.*:0:(\d+)\)$", r" at \1", line) for line in said.read_text().splitlines()]
    assert told == [f'working on {{"id": {number}}} at {number - 1}' for number in (1, 2, 3)]


@pytest.mark.feature("X2", "S5", "S8")
def test_a_sow_topic_is_asked_and_its_state_read(deploy: Deploy, environment: dict[str, str]) -> None:
    one = deploy({})
    one.configure({}, {"prices": {}})
    one.apply().worker().wait_for_shards(1)
    for key, price in (("A", 4), ("B", 6), ("A", 9), ("C", 5)):
        one.write("prices", f'{{"price": {price}}}', key=key.encode())
    *_, ask = blocks(one)
    command, *reading = ask.splitlines()

    def told(script: str) -> str:
        done = subprocess.run(["sh", "-c", script], env=environment, timeout=60, capture_output=True, text=True)
        return done.stdout

    state = {"A": 9, "B": 6, "C": 5}
    until(lambda: all(f'{key} {{"price": {price}}}' in told(reading[1]) for key, price in state.items()), "the state")
    told(command)
    until(lambda: "group-end" in told(reading[0]), "the answer")
    answer = told(reading[0])
    assert re.findall(r'^  (\w) (\{"price": \d\})$', answer, re.MULTILINE) == [
        ("A", '{"price": 9}'),
        ("B", '{"price": 6}'),
    ]
