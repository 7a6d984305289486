"""Every command that speaks to a cluster says in one sentence that nobody answers there, and what to do.

The commands are found by walking the tree, so a new one is tried as well.
"""

from __future__ import annotations

import logging
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
import pytest

import lapse_client.kafka.metadata
from lapse.cli import cluster, definition, main
from lapse.runtime.topics import cluster as topology
from lapse_spark import option
from support.suite.at_length import alike
from support.suite.command import run

NOBODY: Final = "127.0.0.1:1"

ARGUMENTS: Final = {
    "value": "x",
    "bookmark": "orders:0:0",
    "bookmarks": "orders:0:0",
    "path": "out",
    "audit_path": "out",
}
"""Arguments of commands by name; all others name a queue."""

INSTANTS: Final = {"--until", "--at", "--to"}

MORE: Final[dict[str, list[str]]] = {
    "dev": ["--console-port", "0"],
    "gateway": ["--port", "0"],
    "queue alter": ["expiration=2m"],
    "queue create": ["expiration=2m"],
    "replicate": ["--from", NOBODY, "--to", NOBODY, "--topic", "prices"],
    "simulate": ["--replay"],
    "sow alter": ["expiration=2m"],
    "sow create": ["expiration=2m"],
    "spark ledger": ["--queue", "orders", "--topics", "orders"],
    "spark lives": ["--bookmark", "orders:0:0"],
    "transfer": ["--all", "--to", NOBODY],
}
"""What makes a command begin with its work."""

ELSEWHERE: Final = {"worker": "test_broker_later.py"}
"""Commands that wait for the brokers, and the tests of these."""

OPTIONS: Final = {"--config", "--bootstrap-servers", "--bootstrap"}


def leaves(command: click.Command, context: click.Context, path: tuple[str, ...] = ()) -> Iterator[Any]:
    """Every command that says where the cluster is, with the words that run it."""
    if isinstance(command, click.Group):
        for name in command.list_commands(context):
            below = command.get_command(context, name)
            assert below is not None
            yield from leaves(below, click.Context(below, context, name), (*path, name))
    elif path[0] not in ELSEWHERE and OPTIONS & {one for parameter in command.params for one in parameter.opts}:
        yield pytest.param([*path, *given(" ".join(path), command)], id=" ".join(path))


def given(name: str, command: click.Command) -> list[str]:
    """What a command is given so that it begins with its work."""
    words: list[str] = []
    for parameter in command.params:
        option = parameter.opts[-1]
        if isinstance(parameter, click.Argument):
            if parameter.required or parameter.name in ARGUMENTS:
                words.append(ARGUMENTS.get(parameter.name or "", "orders"))
        elif parameter.required:
            words += [option, "2020-01-01T00:00:00Z" if option in INSTANTS else "orders"]
        elif option == "--yes":
            words.append(option)
    return [*words, *MORE.get(name, [])]


EVERY_COMMAND: Final = list(leaves(main, click.Context(main)))


@pytest.fixture(autouse=True)
def _hurry(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Look once, briefly; and leave the logs as they were, which `lapse gateway` sets up."""
    monkeypatch.setattr(cluster, "PATIENCE_S", 0.0)
    monkeypatch.setattr(definition, "FIRST_ANSWER_S", 0.05)
    monkeypatch.setattr(topology, "FIRST_ANSWER_S", 0.05)
    monkeypatch.setattr(option, "_PATIENCE_S", 0.0)
    monkeypatch.setattr(lapse_client.kafka.metadata, "_LOOK_S", 0.05)
    logs = [logging.getLogger(name) for name in (None, "uvicorn", "lapse_client.kafka")]
    levels, handlers = [log.level for log in logs], list(logs[0].handlers)
    endings = {one: signal.getsignal(one) for one in (signal.SIGTERM, signal.SIGINT)}  # which `lapse dev` changes
    yield
    for one, ending in endings.items():
        signal.signal(one, ending)
    for log, level in zip(logs, levels, strict=True):
        log.setLevel(level)
    logs[0].handlers[:] = handlers


@pytest.mark.feature("X7")
@pytest.mark.parametrize("words", alike(*EVERY_COMMAND))
def test_a_wrong_address_is_reported_in_one_sentence(words: list[str], tmp_path: Path) -> None:
    file = tmp_path / "lapse.toml"
    if words[0] != "dev":  # it writes one, if it gets further
        file.write_text('[lapse]\ndefinitions = "topic"\n[queue.orders]\n[sow.prices]\n', "utf-8")
    done = run(*words, environment={"KAFKA_BOOTSTRAP_SERVERS": NOBODY}, directory=tmp_path)
    assert file.exists() == (words[0] != "dev")
    assert done.returncode == 1, done.stderr
    printed = done.stdout.splitlines() if words[0] == "doctor" else done.stderr.splitlines()
    (line,) = [one for one in printed if NOBODY in one]
    assert line.startswith(("Error: ", "✗ Kafka: "))
    assert "KAFKA_BOOTSTRAP_SERVERS names" in line
    assert words[0] == "doctor" or printed == [line]


@pytest.mark.feature("X7")
@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_what_is_no_address_is_reported_in_one_sentence(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "lapse.toml").write_text('[lapse]\ndefinitions = "topic"\n[queue.orders]\n[sow.prices]\n', "utf-8")
    wrong = "127.0.0.1:99999"
    words = [wrong if one == NOBODY else one for one in words]
    done = run(*words, environment={"KAFKA_BOOTSTRAP_SERVERS": wrong}, directory=tmp_path)
    assert done.returncode == 1, done.stderr
    printed = done.stdout.splitlines() if words[0] == "doctor" else done.stderr.splitlines()
    (line,) = [one for one in printed if wrong in one]
    assert f"'{wrong}' is no broker's address: expected host:port" in line
    assert words[0] == "doctor" or printed == [line]


@pytest.mark.feature("X7")
@pytest.mark.parametrize("words", EVERY_COMMAND)
def test_a_wrong_file_is_reported_in_one_sentence(words: list[str], tmp_path: Path) -> None:
    (tmp_path / "lapse.toml").write_text("[lapse]\nbootstrap_server = 'x'\n[queue.orders]\n", "utf-8")
    done = run(*words, environment={"KAFKA_BOOTSTRAP_SERVERS": NOBODY}, directory=tmp_path)
    assert done.returncode == 1, done.stderr
    printed = done.stdout.splitlines()[:1] if words[0] == "doctor" else done.stderr.splitlines()
    assert len(printed) == 1
    assert printed[0].startswith(("Error: ", "✗ configuration: "))
    if words[0] not in ("spark", "replicate"):  # they need no file where an address is given
        assert "lapse.toml:2: lapse.bootstrap_server: " in printed[0]


def test_commands_wait_for_seconds_only() -> None:
    """With the start of a command it is less than 5 s."""
    assert max(cluster.PATIENCE_S, topology.FIRST_ANSWER_S, option._PATIENCE_S) <= 3
