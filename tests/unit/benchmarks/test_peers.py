"""Peers take part where their servers are, and say in a sentence why they do not."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
from benchmarks.comparison.contestant import BROKER_PID, Figures, Skipped
from benchmarks.peers import jetstream, rabbitmq, redis_streams
from benchmarks.peers.elsewhere import go_program, is_here
from benchmarks.peers.peer_server import peer_server

from support.suite.at_length import AT_LENGTH

MESSAGES = 2_500
"""More than two batches, and no multiple of one."""


def figures_of(run: Callable[[int], Figures], messages: int) -> Figures:
    """Run a peer. Without its server the test is skipped: a peer is the benchmark's, and no promise of lapse's."""
    try:
        return run(messages)
    except Skipped as reason:
        pytest.skip(str(reason))


def test_a_peers_server_counts_as_the_broker_while_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(BROKER_PID, "1")

    def command(port: int, directory: Path) -> list[str]:
        return [sys.executable, "-m", "http.server", str(port), "--bind", "127.0.0.1", "-d", str(directory)]

    with peer_server(command) as port:
        server = psutil.Process(int(os.environ[BROKER_PID]))
        assert str(port) in server.cmdline()
        directory = Path(server.cwd())
    assert os.environ[BROKER_PID] == "1"
    assert not server.is_running()
    assert not directory.exists()


def test_a_server_that_ends_at_once_is_skipped() -> None:
    def command(port: int, directory: Path) -> list[str]:
        return [sys.executable, "-c", ""]

    with pytest.raises(Skipped, match="does not start here"), peer_server(command):
        pass


def test_a_go_program_is_skipped_without_go(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("LAPSE_CACHE_DIR", str(tmp_path))
    with pytest.raises(Skipped, match="nats-server is not installed, and there is no Go to build it with"):
        go_program("nats-server", "example.invalid/nats-server@v1")


def test_a_go_program_is_skipped_that_go_cannot_build(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    if shutil.which("go") is None:
        pytest.skip("no Go on the path")
    monkeypatch.setenv("LAPSE_CACHE_DIR", str(tmp_path))
    monkeypatch.setenv("GOPROXY", "off")
    with pytest.raises(Skipped, match="no-such-program is not installed, and Go cannot build it: "):
        go_program("no-such-program", "example.invalid/no-such-program@v1.0.0")


def test_redis_streams_is_skipped_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(Skipped, match="no redis-server on the path"):
        redis_streams.run(1)


@pytest.mark.slow
def test_redis_streams_delivers_all() -> None:
    figures = figures_of(redis_streams.run, MESSAGES)
    assert figures["messages"] == MESSAGES


@pytest.mark.slow
def test_jetstream_delivers_all() -> None:
    """Where its server is: to build it takes a minute of two cores, and `make bench` does so before it measures."""
    # To build it takes a minute of CPU on a fresh machine; the peer is a benchmark's, and no promise of lapse's.
    if not (AT_LENGTH or is_here("nats-server", jetstream.MODULE)):
        pytest.skip("nats-server is not here yet: `make bench` and `make chaos` build it")
    figures = figures_of(jetstream.run, MESSAGES)
    assert figures["messages"] == MESSAGES


def test_rabbitmq_is_skipped_without_a_server(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rabbitmq, "_DEBIAN_SERVER", tmp_path / "not there")
    with pytest.raises(Skipped, match="no rabbitmq-server on the path"):
        rabbitmq.run(1)


def test_the_program_behind_debians_wrapper_is_started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """The wrapper changes to another user if it is started as root, and that one may not write into our directory."""
    behind, wrapper = tmp_path / "behind", tmp_path / "rabbitmq-server"
    for program in (behind, wrapper):
        program.write_text("#!/bin/sh\n")
        program.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(rabbitmq, "_DEBIAN_SERVER", behind)
    assert rabbitmq.server() == str(behind)
    behind.unlink()
    assert rabbitmq.server() == str(wrapper)


@pytest.mark.slow
def test_rabbitmq_delivers_all() -> None:
    """As whoever runs the tests, root included."""
    figures = figures_of(rabbitmq.run, 500)
    assert figures["messages"] == 500
