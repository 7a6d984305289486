"""`lapse demo`, as a user runs it, made small: real processes, real kills, Spark's ledger."""

import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import psutil
import pytest
from confluent_kafka.admin import AdminClient

from lapse.demo.crew import Crew
from lapse.demo.plan import Plan
from lapse.demo.stage import Stage
from lapse.demo.watch import Watch
from support.suite import command
from support.suite.at_length import cases
from support.suite.class_archives import interpreted

LAPSE = [sys.executable, "-c", "from lapse.cli import main; main(prog_name='lapse')", "demo"]

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]


def environment(tmp_path: Path, servers: str | None) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if name != "KAFKA_BOOTSTRAP_SERVERS"}
    return interpreted(own) | {"TMPDIR": str(tmp_path)} | ({"KAFKA_BOOTSTRAP_SERVERS": servers} if servers else {})


def demo(tmp_path: Path, servers: str | None, *arguments: str) -> tuple[dict[str, Any], str]:
    report = tmp_path / "report.html"
    done = subprocess.run(
        [*LAPSE, "--json", "--report", str(report), *arguments],
        capture_output=True,
        text=True,
        env=environment(tmp_path, servers),
        cwd=tmp_path,
        timeout=580,
    )
    assert done.returncode == 0, done.stderr + done.stdout
    return json.loads(done.stdout), report.read_text("utf-8")


def adds_up(facts: dict[str, Any], flights: int) -> None:
    ledger = facts["ledger"]
    assert facts["balanced"]
    assert ledger["balanced"]
    assert ledger["published"] == facts["flights"] == flights
    assert sum(ledger["fates"].values()) + ledger["still_queued"] == flights
    assert sum(ledger["dead_lettered"].values()) == ledger["fates"]["dead_lettered"]
    assert ledger["still_queued"] == ledger["expected_depth"] == ledger["listed"] == 0
    for group in ("by_carrier", "by_origin", "by_hour"):
        assert sum(counted["published"] for counted in facts[group].values()) == flights
        letters = sum(counted["dead_letters"] for counted in facts[group].values())
        assert letters == ledger["fates"]["dead_lettered"]


@pytest.mark.feature("L3", "L11", "Q5", "Q9", "D1", "D2", "D4")
def test_six_hundred_flights_on_a_broker_of_its_own(tmp_path: Path) -> None:
    facts, page = demo(tmp_path, None, "--flights", "600", "--minutes", "0.2", "--seed", "7", "--subscribers", "2")
    adds_up(facts, 600)
    assert facts["ledger"]["fates"]["acknowledged"] > 0
    assert facts["ledger"]["fates"]["dead_lettered"] > 0, "cancelled flights at least"
    assert len(facts["killed"]) >= 2
    assert all(death["back_ms"] > death["at_ms"] for death in facts["killed"]), "whoever was killed came back"
    assert facts["aircraft_updates"] > 540
    assert facts["aircraft_in_sight_at_end"] == 0, "all lifetimes are over"
    assert facts["aircraft_in_sight_at_most"] > 0
    assert "✓ balanced" in page
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "https://" not in page
    assert list(tmp_path.glob("lapse-demo-*")) == [], "it clears its directory away"


@pytest.mark.feature("X10")
@pytest.mark.timeout(1_800)
@pytest.mark.parametrize(("flights", "duration_s"), cases([], [(336_776, 300)], long=[(400, 6)]))
def test_a_demo_is_gone_through_again_event_by_event_and_leaves_a_given_broker_without_topics(
    tmp_path: Path, kafka: str, monkeypatch: pytest.MonkeyPatch, flights: int, duration_s: int
) -> None:
    """Its workers and subscribers, killed as ever; without Spark, and without waiting for the aircraft."""
    monkeypatch.setenv("KAFKA_BOOTSTRAP_SERVERS", kafka)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    monkeypatch.setattr("lapse.demo.accident._WORKER_FROM_S", 0.0)
    stage = Stage(keep=False)
    queue, sow = stage.names()
    plan = Plan(
        bootstrap_servers=kafka,
        queue=queue,
        sow=sow,
        flights=flights,
        duration_ms=duration_s * 1_000,
        workers=2,
        subscribers=2,
        seed=3,
    )
    with stage.topics(plan):
        crew = Crew(plan, stage)
        try:
            crew.start()
            start_ms = round(time.time() * 1000) + 500
            crew.publisher.send_line(start_ms=start_ms)
            with Watch(plan) as watch:
                while not crew.publisher.reported.get("done"):
                    crew.kill_and_restart((time.time() * 1000 - start_ms) / 1000)
                    time.sleep(0.05)
                crew.end_accidents()
                watch.settle_down(
                    crew.publisher.reported["published"], 60.0 + duration_s, lambda: crew.kill_and_restart(0.0)
                )
            crew.stop(crew.subscribers)  # while there are workers that let them go
        finally:
            crew.stop(crew.all_members)
        done = command.run("simulate", queue, "--config", str(stage.configuration), "--replay", "--json")
    stage.clear()
    own = {queue, sow}
    left = AdminClient({"bootstrap.servers": kafka}).list_topics(timeout=10).topics
    assert [name for name in left if own & set(re.split(r"[./]", name))] == []
    assert done.returncode == 0, done.stdout[-2_000:] + done.stderr[-2_000:]
    sums = [one for one in map(json.loads, done.stdout.splitlines()) if "same" in one]
    assert all(one["same"] and one["in_order"] for one in sums), sums
    assert sum(one["replayed"] for one in sums) > 50, "under load an event tells of more messages, so there are fewer"
    assert max(one["epochs"] for one in sums) > 1, "a worker was killed"


def test_an_interrupted_demo_leaves_nothing_behind(tmp_path: Path) -> None:
    running = subprocess.Popen(
        [*LAPSE, "--flights", "50000", "--minutes", "2", "--workers", "1", "--subscribers", "1"],
        env=environment(tmp_path, None),
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    assert running.stdout is not None
    seen: list[str] = []
    for line in running.stdout:
        seen.append(line)
        if "publisher" in line:
            break
    family = psutil.Process(running.pid).children(recursive=True)
    assert len(family) >= 4, seen  # a broker, a worker, a subscriber and the publisher
    running.send_signal(signal.SIGINT)
    rest = running.communicate(timeout=90)[0]
    assert running.returncode == 1
    assert "Traceback" not in rest
    _, alive = psutil.wait_procs(family, timeout=10)
    assert alive == []
    assert list(tmp_path.glob("lapse-demo-*")) == []
    assert not (tmp_path / "lapse-demo.html").exists()


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--flights", "0"], "expected `all`, or a number from 1 to 336776"),
        (["--minutes", "0"], "0.1"),
    ],
)
def test_wrong_usage_is_reported(arguments: list[str], said: str, tmp_path: Path) -> None:
    done = command.run("demo", *arguments, directory=tmp_path)
    assert done.returncode == 2
    assert said in done.stderr


def test_a_broker_that_does_not_answer_is_named(tmp_path: Path) -> None:
    done = command.run("demo", environment={"KAFKA_BOOTSTRAP_SERVERS": "127.0.0.1:1"}, directory=tmp_path)
    assert done.returncode == 1
    assert "127.0.0.1:1" in done.stderr
    assert "Traceback" not in done.stderr
