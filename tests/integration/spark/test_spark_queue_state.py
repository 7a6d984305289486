"""`lapse spark state`: what a queue had at earlier instants, against what peeks showed then (D7)."""

import time
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import pyarrow.parquet as pq
import pytest

from lapse_client import Connection, Publisher, Queue, QueueSubscriber
from lapse_client.kafka import time_check
from support.kafka.log import until
from support.processes.worker import Worker
from support.programs import spark_state
from support.programs.spark_state import Row, row

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.feature("D7")]

SETTLED_S = 0.4
"""A step counts from its storing, which a peek may be ahead of."""


def state_of(kafka: str, name: str, at_ms: int) -> list[Row]:
    return [row(SimpleNamespace(**one)) for one in spark_state.state_at(kafka, name, at_ms, "messages")]


def peeked(queue: Queue) -> list[Row]:
    """What a peek shows of each message."""
    return [row(one) for one in queue.peek()]


def check_the_output(kafka: str, name: str, tmp_path: Path, at_ms: int, shown: list[Row]) -> None:
    done = spark_state.state(kafka, "--entity", name, "--at", str(at_ms), "--output", str(tmp_path / "out"))
    assert done.exit_code == 0, done.output
    assert set(pq.read_table(tmp_path / "out").column("bookmark").to_pylist()) == {one[0] for one in shown}


def publish_short_lived(connection: Connection, name: str) -> None:
    with Publisher(connection) as publisher:
        for number in range(5):
            publisher.submit(name, b"short", f"q{number}", ttl_ms=3_000)
        publisher.flush()


def publish_all_kinds(connection: Connection, name: str) -> None:
    """With and without a deadline, to a queue that keeps what has expired, and a scheduled one."""
    with Publisher(connection) as publisher:
        for number in range(40):
            publisher.submit(name, b"x", f"k{number}", ttl_ms=3_600_000 if number % 2 else None)
        publisher.submit(f"{name}.kept", b"x", ttl_ms=1)
        publisher.submit(name, b"later", "s", enqueue_at_ms=time.time_ns() // 1_000_000 + 600_000)
        publisher.flush()


def test_the_messages_of_earlier_instants_are_what_peeks_showed(
    spark, kafka: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("jobs")
    settings = (
        f'[queue."{name}"]\npartitions = 2\nexpiration = "enabled"\nlease_period = "60s"\n'
        'heartbeat_timeout = "60s"\nmax_deliveries = 3\n'
        f'[queue."{name}.kept"]\n'
    )
    connection = Connection(kafka)
    shots: list[tuple[int, list[Row]]] = []
    with Worker(tmp_path, kafka, unique("app"), settings) as worker:

        def shoot() -> list[Row]:
            """Take down what a peek shows, and the broker's time while it was so."""
            time.sleep(SETTLED_S)
            at_ms = time_check.now_ms(connection, name, pytest.fail)
            with Queue(name, connection=connection) as queue:
                shown = peeked(queue)
            shots.append((at_ms, shown))
            return shown

        def depth() -> dict[str, int]:
            with Queue(name, connection=connection) as queue:
                return queue.depth()

        publish_all_kinds(connection, name)
        until(lambda: (depth()["available"], depth()["scheduled"]) == (40, 1), "all published")
        assert {one[1] for one in shoot()} == {"available", "scheduled"}

        with QueueSubscriber(name, max_backlog=10, connection=connection, name="holder") as subscriber:
            held = [subscriber.receive(20) for _ in range(10)]
            assert all(held)
            assert sum(one[1] == "leased" for one in shoot()) == 10
            for at, one in enumerate(held[:6]):
                assert one is not None
                one.acknowledge() if at < 3 else one.cancel(delay_ms=300_000)
            until(lambda: depth()["delayed"] == 3, "three delayed")
            leased = [one for one in shoot() if one[1] == "leased"]
            assert {one[4] for one in leased} == {"holder"}
            worker.kill()
            worker.start()
            until(lambda: depth()["delayed"] == 3, "the queue after a crash")
            shoot()
        publish_short_lived(connection, name)
        before = depth()["depth"]
        assert len(shoot()) == before + 1
        until(lambda: depth()["depth"] == before - 5, "five expired")
        shoot()

        for at_ms, shown in shots:
            assert state_of(kafka, name, at_ms) == shown
        assert state_of(kafka, name, shots[0][0] - 3_600_000) == []
        there = ("--at", str(shots[-1][0]), "--config", str(tmp_path / "lapse.toml"))
        kept = spark_state.state(kafka, "--entity", f"{name}.kept", *there)
        assert '"count": 1' in kept.stdout, "it does not act on lifetimes (L6)"

        check_the_output(kafka, name, tmp_path, *shots[2])
