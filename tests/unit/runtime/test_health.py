"""Whether a worker says rightly that it lives and serves."""

import asyncio
import json
import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from lapse.runtime import health
from lapse.runtime.health import Readiness, readiness

GOOD = Readiness(True, 2, 2, (), {}, None)


def entity(name: str, *served: int) -> Any:
    return SimpleNamespace(name=name, runners=dict.fromkeys(served), added={})


@pytest.fixture
def loop() -> Iterator[asyncio.AbstractEventLoop]:
    running = asyncio.new_event_loop()
    thread = threading.Thread(target=running.run_forever)
    thread.start()
    yield running
    running.call_soon_threadsafe(running.stop)
    thread.join()
    running.close()


def asked(path: str, found: Readiness, loop: asyncio.AbstractEventLoop) -> tuple[int, dict[str, Any]]:
    answers: list[str] = []

    def other(*_: Any) -> list[bytes]:
        return [b'"figures"']

    app = health.with_health_paths(other, lambda: found, loop)
    (body,) = app({"PATH_INFO": path, "REQUEST_METHOD": "GET"}, lambda status, _: answers.append(status))
    return int(answers[0][:3]) if answers else 0, json.loads(body)


@pytest.mark.feature("C5", "C52")
def test_a_shard_counts_as_served_when_it_answers() -> None:
    entities = {"a": entity("a", 0, 1), "b": entity("b")}
    given = [("lapse.a.commands", 0), ("lapse.a.commands", 1), ("a", 0), ("lapse.b.commands", 0), ("b", 0)]
    found = readiness(entities, given, True, {"c": ["topic c: missing"]}, None, {"a": 12})
    assert (found.assigned, found.served, found.awaited) == (3, 2, ("b 0",))
    assert not found.ready
    assert found.why == "1 of 3 shards are not restored yet"
    assert found.as_dict()["barred"] == {"c": ["topic c: missing"]}
    assert found.as_dict()["behind"] == {"a": 12}


@pytest.mark.parametrize(
    ("found", "why"),
    [
        (GOOD, ""),
        (GOOD._replace(assigned=0, served=0), ""),
        (GOOD._replace(barred={"c": ["missing"]}), ""),
        (GOOD._replace(joined=False), "no place in its consumer group"),
        (GOOD._replace(away_s=31.4), "the brokers have not answered for 31 s"),
        (GOOD._replace(served=1, awaited=("a 1",)), "1 of 2 shards"),
    ],
)
def test_it_is_ready_when_nothing_is_awaited(found: Readiness, why: str, loop: asyncio.AbstractEventLoop) -> None:
    status, facts = asked("/ready", found, loop)
    assert status == (503 if why else 200)
    assert facts["ready"] is not bool(why)
    assert why in facts["why"]
    assert asked("/health", found, loop) == (200, {"healthy": True})


def test_all_other_paths_are_the_figures(loop: asyncio.AbstractEventLoop) -> None:
    assert asked("/metrics", GOOD, loop) == (0, "figures")


@pytest.mark.slow
def test_a_worker_that_hangs_is_not_healthy(loop: asyncio.AbstractEventLoop, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(health, "PATIENCE_S", 0.2)
    loop.call_soon_threadsafe(time.sleep, 1)
    status, facts = asked("/health", GOOD, loop)
    assert status == 503
    assert "did not answer" in facts["why"]
    asyncio.run_coroutine_threadsafe(asyncio.sleep(0), loop).result(10)  # it has come to what was asked
