"""How commands find their cluster, and what they say when it is not there (X3, X7)."""

import contextlib
import os
import socket
import subprocess
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import orjson
import pytest

from support.consumers.kcat import Kcat
from support.kafka.log import until
from support.processes import fork_server
from support.processes.deployment import Deploy, Deployment
from support.suite import command
from support.suite.at_length import cases
from unit.cli.test_wrong_address import EVERY_COMMAND, NOBODY

QUEUES = {"found": {"default_publish_target": "found{}"}, "aged": {}, "counted": {"max_deliveries": 1}}


def lapse(*arguments: str, directory: Path, **environment: str) -> subprocess.CompletedProcess[str]:
    unset = dict.fromkeys(("KAFKA_BOOTSTRAP_SERVERS", "LAPSE_KAFKA_CONFIG", "LAPSE_USER"))
    return command.run(*arguments, directory=directory, environment=unset | environment)


@pytest.fixture
def nobody() -> Iterator[str]:
    """An address where nobody listens."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{free.getsockname()[1]}"


@pytest.fixture
def silent() -> Iterator[str]:
    """An address where every connection is accepted, and nothing ever answered."""
    with socket.create_server(("127.0.0.1", 0), backlog=1_000) as listener:
        yield f"127.0.0.1:{listener.getsockname()[1]}"  # the kernel accepts


@pytest.mark.feature("X3", "X7")
@pytest.mark.parametrize(("where", "each"), cases([("nobody", 5), ("silent", 4)], long=[("silent", 1)]))
def test_each_command_ends_with_one_sentence_where_no_broker_answers(
    request: pytest.FixtureRequest, tmp_path: Path, where: str, each: int
) -> None:
    """As processes, all at once. Each waits 2.5 s at most; what is beyond that is the start of so many.

    The unit test runs all of them without processes, as nothing listens on its port either.
    """
    address = request.getfixturevalue(where)
    (tmp_path / "lapse.toml").write_text('[lapse]\ndefinitions = "topic"\n[queue.orders]\n[sow.prices]\n', "utf-8")
    environment = {**os.environ, "KAFKA_BOOTSTRAP_SERVERS": address}
    for name in ("LAPSE_KAFKA_CONFIG", "LAPSE_USER"):
        environment.pop(name, None)
    commands = [[address if word == NOBODY else word for word in one.values[0]] for one in EVERY_COMMAND]
    assert len(commands) > 40
    commands = commands[::each]
    as_json = ["top", "--json"]

    def run(words: list[str]) -> subprocess.CompletedProcess[str]:
        return fork_server.run(["-m", "lapse", *words], environment, 60)

    with contextlib.chdir(tmp_path), ThreadPoolExecutor(len(commands)) as threads:
        error = threads.submit(run, as_json)
        done = list(threads.map(run, commands))
    assert address in orjson.loads(error.result().stderr)["error"]["text"]
    for one, words in zip(done, commands, strict=True):
        assert one.returncode == 1, (words, one)
        printed = (one.stdout if words[0] == "doctor" else one.stderr).splitlines()
        (line,) = [text for text in printed if address in text]
        assert line.startswith(("Error: no connection to Kafka", "Error: no answer from Kafka", "✗ Kafka: ")), words
        assert ("there was no answer in 2.5 s" in line) is (where == "silent"), (words, line)
        assert words[0] == "doctor" or (printed, one.stdout) == ([line], ""), (words, one)


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
        printed = served.lapse("queue", change, served.name("aged"), "--json")
        assert orjson.loads(printed.stdout) == {"queue": served.name("aged"), "paused": paused}
        assert bool(served.depth("aged").get("paused")) is paused
    unserved = deploy({"alone": {}}).apply()
    done = unserved.lapse("queue", "depth", unserved.name("alone"))
    assert done.returncode == 1
    assert "within 3.5 s" in done.stderr
    assert "Start a worker" in done.stderr


@pytest.mark.feature("Q3", "Q9", "C24")
def test_a_count_of_messages_takes_no_further_one(served: Deployment) -> None:
    """Its delivery would count, and here it would be the last: the message would die, and nobody saw it."""
    served.write("counted", *"abcd")
    for count, printed in ((1, "a\n"), (2, "b\nc\n")):
        done = served.lapse("queue", "subscribe", served.name("counted"), "--count", str(count))
        assert (done.returncode, done.stdout) == (0, printed), done.stderr
    with served.queue("counted") as queue:
        assert [(one.state, one.delivery_count) for one in queue.peek()] == [("available", 0)]
