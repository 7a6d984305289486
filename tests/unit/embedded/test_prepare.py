"""What is fetched before a broker is started: with a progress bar of its own, and only if the start can succeed."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import rich.status
from click.testing import CliRunner

from lapse.cli import main
from lapse.embedded import EmbeddedKafka, daemon, kafka
from lapse.embedded.errors import BrokerFailed, JarUnavailable


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    names: list[str] = []
    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr(daemon.jars, "jar_files", names.append)
    return names


def test_jars_are_fetched_for_a_free_port_only(fetched: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        daemon.prepare(taken.getsockname()[1])
    assert fetched == []
    daemon.prepare(0)
    assert fetched == [daemon.jars.KAFKA]
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", "127.0.0.1:1")
    daemon.prepare(0)
    assert len(fetched) == 1


@pytest.mark.parametrize("command", [["dev", "--console-port", "0"], ["kafka", "start"]])
def test_no_other_display_runs_beside_the_bar_of_the_download(
    command: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """Two of them would overwrite each other's line."""
    shown: list[str] = []

    def fetch(_: str) -> None:
        assert not shown
        raise JarUnavailable("no network here")

    monkeypatch.delenv("KAFKA_BOOTSTRAP_SERVERS", raising=False)
    monkeypatch.setattr(daemon.jars, "jar_files", fetch)
    monkeypatch.setattr(rich.status.Status, "start", lambda self: shown.append(str(self.status)))
    monkeypatch.chdir(tmp_path_factory.mktemp("empty"))
    done = CliRunner().invoke(main, [*command, "--port", "0", "--data", "data"])
    assert done.exit_code == 1
    assert "no network here" in done.stderr


@pytest.mark.feature("X7")
def test_a_machine_that_is_too_busy_to_prepare_a_directory_is_reported_in_one_sentence(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kafka, "_FORMAT_S", 0.1)
    with pytest.raises(BrokerFailed, match=r"has not prepared .* within 0.1 s. Try again when"):
        EmbeddedKafka(tmp_path)._format(
            [sys.executable, "-c", "import time; time.sleep(60)"], tmp_path / "server.properties"
        )
