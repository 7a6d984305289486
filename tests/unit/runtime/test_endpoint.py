"""What a worker answers before it serves anything, and how long it waits for brokers."""

import asyncio
import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Iterator
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from wsgiref.simple_server import WSGIServer

import pytest

from lapse.runtime import health, watchdog
from lapse.runtime.endpoint import Endpoint
from lapse.runtime.health import Readiness
from lapse.runtime.topics.cluster import BrokersAway, awaited
from lapse.runtime.topics.topology import TopologyError
from support.processes.figures import free_port


@pytest.fixture
def port() -> int:
    return free_port()


@pytest.fixture
def endpoint(port: int) -> Iterator[Endpoint]:
    opened = Endpoint()
    opened.open("127.0.0.1", port)
    yield opened
    opened.close()


def answer_of(port: int, path: str) -> tuple[int, str]:
    connection = HTTPConnection("127.0.0.1", port, timeout=10)
    connection.request("GET", path)
    answer = connection.getresponse()
    return answer.status, answer.read().decode()


@pytest.mark.feature("X7")
def test_a_worker_that_starts_is_healthy_and_not_ready(
    endpoint: Endpoint, port: int, caplog: pytest.LogCaptureFixture
) -> None:
    assert answer_of(port, "/health") == (200, '{"healthy":true}')
    status, text = answer_of(port, "/ready")
    assert (status, json.loads(text)["why"]) == (503, "the worker is starting")
    assert "lapse_worker_broker_away_seconds 0.0" in answer_of(port, "/metrics")[1]

    asked = "no answer from Kafka at localhost:9092"
    reasons = (f"{asked}: refused", f"{asked}: no such host", "lapse.definitions.app: no broker leads partition 0")
    for why in reasons:
        endpoint.note_away(why)
        status, text = answer_of(port, "/ready")
        assert (status, json.loads(text)["why"]) == (503, why)
    assert json.loads(text)["brokers_away_s"] > 0
    logged = [record.message for record in caplog.records]
    assert logged == [f"{why}. The worker waits for it" for why in (reasons[0], reasons[2])]
    endpoint.note_back()
    assert json.loads(answer_of(port, "/ready")[1])["why"] == "the worker is starting"


@pytest.mark.feature("C5")
def test_it_is_not_ready_from_the_first_moment_on(port: int, monkeypatch: pytest.MonkeyPatch) -> None:
    given = WSGIServer.set_app

    def set_late(server: WSGIServer, app: Any) -> None:
        time.sleep(0.2)
        given(server, app)

    monkeypatch.setattr(WSGIServer, "set_app", set_late)
    opened = Endpoint()
    opening = threading.Thread(target=opened.open, args=("127.0.0.1", port))
    opening.start()
    while True:
        with contextlib.suppress(ConnectionRefusedError):
            assert answer_of(port, "/ready")[0] == 503
            break
    opening.join()
    opened.close()


def test_it_answers_without_a_gap_when_the_worker_takes_over(endpoint: Endpoint, port: int) -> None:
    def app(_: object, start_response: object) -> list[bytes]:
        start_response("200 OK", [])  # type: ignore[operator]
        return [b"taken over"]

    assert answer_of(port, "/ready")[0] == 503
    endpoint.serve(app)
    endpoint.open("127.0.0.1", port)  # as the worker does; it is open
    assert answer_of(port, "/ready") == (200, "taken over")


def test_a_port_that_is_taken_is_warned_about(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        taken = other.getsockname()[1]
        Endpoint().open("127.0.0.1", taken)
    assert f"no metrics: metrics_port {taken} on 127.0.0.1 cannot be opened" in caplog.text
    assert "set another metrics_port" in caplog.text


@pytest.mark.feature("X7")
def test_brokers_are_waited_for_and_a_refusal_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("lapse.runtime.topics.cluster._AGAIN_S", 0)
    outcomes = iter([BrokersAway("one"), BrokersAway("two"), None, TopologyError("refused")])
    waits: list[float] = []
    said: list[str] = []

    def look(patience_s: float) -> str:
        waits.append(patience_s)
        if (failure := next(outcomes)) is not None:
            raise failure
        return "found"

    assert awaited(look, said.append) == "found"
    assert said == ["one", "two"]
    assert waits[0] < waits[1] == waits[2], "somebody may sit in front of it; later it has time"
    with pytest.raises(TopologyError, match="refused"):
        awaited(look, said.append)
    assert said == ["one", "two"]


class _Systemd:
    """Listens as systemd does."""

    def __init__(self, path: Path) -> None:
        self.socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.socket.bind(str(path))
        self.socket.settimeout(10)
        self.variables = {"NOTIFY_SOCKET": str(path), "WATCHDOG_USEC": "30000", "WATCHDOG_PID": str(os.getpid())}


@pytest.mark.feature("X7")
def test_systemd_is_informed_as_long_as_the_worker_is_healthy(tmp_path: Path) -> None:
    systemd, hidden = _Systemd(tmp_path / "notify"), tmp_path / "hidden"
    health = iter([True, True, True, False, False])
    (tmp_path / "notify").rename(hidden)
    asked: list[int] = []

    def healthy() -> bool:
        asked.append(1)
        if len(asked) == 2:  # the first time systemd took nothing
            hidden.rename(tmp_path / "notify")
        if (now := next(health, None)) is None:
            raise RuntimeError("the event loop is closed")
        return now

    telling = watchdog.begin(healthy, systemd.variables)
    assert telling is not None
    telling.join(20)
    assert not telling.is_alive()
    assert [systemd.socket.recv(100) for _ in range(2)] == [b"WATCHDOG=1"] * 2
    systemd.socket.setblocking(False)
    with pytest.raises(BlockingIOError):
        systemd.socket.recv(100)
    systemd.socket.close()
    for missing in ("NOTIFY_SOCKET", "WATCHDOG_USEC"):
        assert watchdog.begin(healthy, {**systemd.variables, missing: ""}) is None
    assert watchdog.begin(healthy, {**systemd.variables, "WATCHDOG_PID": "1"}) is None


@pytest.mark.feature("X7")
def test_a_worker_that_hangs_is_not_healthy_to_systemd_either(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE_S", 0.05)
    opened, loop = Endpoint(), asyncio.new_event_loop()
    assert opened.healthy(), "it starts"
    opened.serve(health.with_health_paths(lambda *_: (), lambda: Readiness(True, 0, 0, (), {}, None), loop))
    assert not opened.healthy(), "nobody runs its loop"
    running = threading.Thread(target=loop.run_forever)
    running.start()
    monkeypatch.setattr(health, "PATIENCE_S", 10.0)
    assert opened.healthy()
    loop.call_soon_threadsafe(loop.stop)
    running.join(10)
    loop.close()
    with pytest.raises(RuntimeError):
        opened.healthy()
