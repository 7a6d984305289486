"""How commands find their cluster, and what they say when it is not there (X3, X7)."""

import socket
import subprocess
import time
from pathlib import Path

import orjson
import pytest

from support.consumers.kcat import Kcat
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.suite import command

QUEUES = {"found": {"default_publish_target": "found{}"}, "aged": {}}

COMMANDS = [
    ("publish", "orders", "x"),
    ("queue", "subscribe", "orders"),
    ("queue", "depth", "orders"),
    ("sow", "query", "prices"),
    ("dlq", "ls"),
    ("explain", "orders:0:0"),
    ("top", "--json"),
    ("transfer", "orders", "--all", "--to", "127.0.0.1:9"),
    ("replicate", "--to", "127.0.0.1:9", "--topic", "prices"),
]


def lapse(*arguments: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = dict.fromkeys(("KAFKA_BOOTSTRAP_SERVERS", "LAPSE_KAFKA_CONFIG", "LAPSE_USER"))
    return command.run(*arguments, directory=directory, environment=unset | environment)


@pytest.mark.feature("X3", "X7")
@pytest.mark.parametrize("command", COMMANDS, ids=lambda command: "-".join(command[:2]))
def test_a_wrong_address_is_one_sentence_within_seconds(tmp_path: Path, command: tuple[str, ...]) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    began = time.monotonic()
    done = lapse(*command, directory=tmp_path, KAFKA_BOOTSTRAP_SERVERS=f"127.0.0.1:{port}")
    assert time.monotonic() - began < 15, "5 s are promised; the rest is the start of Python on a busy machine"
    assert done.returncode == 1
    lines = done.stderr.strip().splitlines()
    assert len(lines) == 1, done.stderr
    text = orjson.loads(lines[0])["error"]["text"] if "--json" in command else lines[0].removeprefix("Error: ")
    assert text.startswith(f"no connection to Kafka at 127.0.0.1:{port}: ")
    assert not done.stdout


@pytest.mark.feature("X3", "X7")
def test_the_connection_is_read_from_lapse_toml(served: Deployment, tmp_path: Path) -> None:
    name, config = served.name("found"), str(served.config)
    for words in (
        ("publish", name, "x"),
        ("queue", "depth", name),
        ("dlq", "ls"),
        ("top", name, "--json"),
    ):
        done = lapse(*words, "--config", config, directory=tmp_path)
        assert done.returncode == 0, done.stderr
        done = lapse(*words, directory=served.directory)
        assert done.returncode == 0, done.stderr
    missing = lapse("queue", "depth", name, "--config", "nowhere.toml", directory=tmp_path)
    assert missing.returncode == 1
    assert "nowhere.toml" in missing.stderr
    (tmp_path / "lapse.toml").write_text("[lapse]\nbootstrap_server = 'x'\n")
    wrong = lapse("queue", "depth", name, directory=tmp_path)
    assert wrong.returncode == 1
    assert "bootstrap_server" in wrong.stderr


@pytest.mark.feature("X3", "X7", "Q17", "S10")
@pytest.mark.parametrize("command", [("transfer", "aged", "--all"), ("replicate", "--topic", "prices")])
def test_the_other_side_is_asked_for_as_well(served: Deployment, tmp_path: Path, command: tuple[str, ...]) -> None:
    """This side is read from lapse.toml, named or in the directory; the address of the other one is wrong."""
    named = [served.name(word) if word == "aged" else word for word in command]
    for file, directory in (["--config", str(served.config)], tmp_path), ([], served.directory):
        done = lapse(*named, "--to", "127.0.0.1:9", *file, directory=directory)
        assert done.returncode == 1
        assert len(done.stderr.strip().splitlines()) == 1, done.stderr
        assert done.stderr.startswith("Error: no connection to Kafka at 127.0.0.1:9: "), done.stderr


@pytest.mark.feature("Q15")
def test_depth_is_quick_without_a_worker_and_an_empty_queue_has_no_age(served: Deployment, deploy: Deploy) -> None:
    with served.queue("aged") as queue:
        queue.purge()
    empty = served.lapse("queue", "depth", served.name("aged"), "--json")
    assert orjson.loads(empty.stdout)["oldest_age_ms"] is None
    assert Kcat(served, "aged").ask("depth")["counts"]["oldest_age_ms"] is None, "in JSON on the wire, too"
    with served.queue("aged") as queue:
        assert queue.depth()["oldest_age_ms"] is None
    top = served.lapse("top", served.name("aged"), "--json")
    assert orjson.loads(top.stdout)["oldest_age_ms"] is None
    table = served.lapse("queue", "depth", served.name("aged"))
    assert table.returncode == 0, table.stderr
    served.write("aged", "x")
    until(lambda: served.depth("aged")["available"] == 1, "a message is there")
    aged = served.lapse("queue", "depth", served.name("aged"), "--json")
    assert orjson.loads(aged.stdout)["oldest_age_ms"] >= 0
    for change, paused in (("pause", True), ("resume", False)):
        told = served.lapse("queue", change, served.name("aged"), "--json")
        assert orjson.loads(told.stdout) == {"queue": served.name("aged"), "paused": paused}
        assert bool(served.depth("aged").get("paused")) is paused
    unserved = deploy({"alone": {}}).apply()
    began = time.monotonic()
    done = unserved.lapse("queue", "depth", unserved.name("alone"))
    assert time.monotonic() - began < 15, "5 s are promised; the rest is the start of Python on a busy machine"
    assert done.returncode == 1
    assert "Check that a worker runs" in done.stderr
