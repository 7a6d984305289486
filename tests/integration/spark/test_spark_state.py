"""`lapse spark state`: what a SOW topic had at earlier instants, against what queries showed then (D7)."""

import json
import time
from collections.abc import Callable
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from lapse_client import Connection, Publisher, SowClient
from lapse_client.kafka import time_check
from support.kafka.log import until
from support.processes.deployment import Deploy, broker_now_ms
from support.processes.worker import Worker
from support.programs import spark_state

pytestmark = [pytest.mark.slow, pytest.mark.spark, pytest.mark.feature("D7")]

Records = dict[str, tuple[str, int | None]]


def state_of(kafka: str, name: str, at_ms: int) -> Records:
    return {
        one["key"]: (one["value"], one["expires_at_ms"]) for one in spark_state.state_at(kafka, name, at_ms, "records")
    }


def check_refused_instants_and_names(kafka: str, name: str, at_ms: int) -> None:
    future = spark_state.state(kafka, "--entity", name, "--at", str(at_ms + 86_400_000))
    assert (future.exit_code, "is in the future" in future.output) == (1, True)
    unknown = spark_state.state(kafka, "--entity", f"{name}.none", "--at", str(at_ms))
    assert (
        unknown.exit_code,
        f"there is no queue or SOW topic '{name}.none' on this cluster" in unknown.output,
    ) == (1, True)
    unreadable = spark_state.state(kafka, "--entity", name, "--at", "yesterday")
    assert (unreadable.exit_code, "expected 2026-01-31T12:00:00Z" in unreadable.output) == (2, True)


def test_the_state_of_earlier_instants_is_what_queries_showed(
    spark, kafka: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    name = unique("prices")
    entity = f'[sow."{name}"]\npartitions = 2\nexpiration = "enabled"\n[sow."{name}.kept"]\n'
    connection = Connection(kafka)
    shots: list[tuple[int, Records]] = []
    with Worker(tmp_path, kafka, unique("app"), entity), SowClient(name, connection=connection) as client:

        def query() -> Records:
            return {
                (one.key or b"").decode(): ((one.value or b"").decode(), one.expires_at_ms) for one in client.query()
            }

        def shoot(count: int) -> None:
            """Wait for so many records; take down what a query shows, and the broker's time while it was so."""
            until(lambda: len(query()) == count, f"{count} records")
            time.sleep(0.5)  # an update counts from its storing, which a query may be ahead of
            at_ms = time_check.now_ms(connection, name, pytest.fail)
            shown = query()
            assert len(shown) == count
            shots.append((at_ms, shown))

        def publish(*records: tuple[str | None, str, int]) -> None:
            with Publisher(connection) as publisher:
                for value, key, ttl_ms in records:
                    publisher.submit(name, value, key, ttl_ms=ttl_ms)
                publisher.flush()

        with Publisher(connection) as publisher:
            publisher.publish(f"{name}.kept", "{}", "k", ttl_ms=1)
        publish(*((f'{{"n": {number}}}', f"k{number}", 3_600_000 * (number % 2)) for number in range(40)))
        shoot(40)
        publish(*(('{"later": true}', f"k{number}", 7_200_000) for number in range(10)), ('{"a": 1}', "new", 0))
        shoot(41)
        publish(*((None, f"k{number}", 0) for number in range(5)))
        assert client.delete(keys=["k5", "k6"]) == 2
        shoot(34)
        publish(*(('{"short": true}', f"s{number}", 4_000) for number in range(6)))
        shoot(40)
        shoot(34)  # the six have expired
        publish(('{"again": true}', "k0", 0))
        shoot(35)
        for at_ms, shown in shots:
            assert state_of(kafka, name, at_ms) == shown
        assert state_of(kafka, name, shots[0][0] - 3_600_000) == {}
        there = ("--at", str(shots[-1][0]), "--config", str(tmp_path / "lapse.toml"))
        kept = spark_state.state(kafka, "--entity", f"{name}.kept", *there)
        assert '"count": 1' in kept.stdout, "it does not act on lifetimes (L6)"

        at_ms, shown = shots[2]
        done = spark_state.state(kafka, "--entity", name, "--at", str(at_ms), "--output", str(tmp_path / "out"))
        assert done.exit_code == 0, done.output
        assert {key.decode() for key in pq.read_table(tmp_path / "out").column("key").to_pylist()} == set(shown)

        check_refused_instants_and_names(kafka, name, at_ms)


@pytest.mark.feature("C4", "Q23")
def test_what_an_entity_had_before_it_was_deleted_and_created_again_is_said_to_be_gone(spark, deploy: Deploy) -> None:
    """Its journal and its compacted topic begin with the new entity, so nothing else shows that they are not whole."""
    here = deploy({}, definitions="topic")
    here.configure({"work": {}}, {"prices": {}}, definitions="topic")
    here.apply()
    work, prices = here.name("work"), here.name("prices")
    here.worker().wait_for_shards(2)
    here.write("work", "one")
    with Publisher(here.connection) as publisher:
        publisher.publish(prices, "first", "k")
    until(lambda: here.depth("work")["depth"] == 1, "the message")
    with SowClient(prices, connection=here.connection) as client:
        until(lambda: len([*client.query()]) == 1, "the record")
    time.sleep(0.5)
    before_ms = broker_now_ms()
    for words in (("queue", "delete", work), ("sow", "delete-topic", prices)):
        assert here.lapse(*words, "--force", "--yes").returncode == 0
    between_ms = broker_now_ms()
    for words in (("queue", "create", work, f'topics=["{work}"]'), ("sow", "create", prices, f'topic="{prices}"')):
        assert here.lapse(*words).returncode == 0
    for name in (work, prices):
        done = spark_state.state(here.servers, "--entity", name, "--at", str(before_ms))
        answer = json.loads(done.stdout)
        assert (done.exit_code, answer["complete"]) == (1, False)
        assert "it was deleted at" in answer["missing"]
        done = spark_state.state(here.servers, "--entity", name, "--at", str(between_ms))
        assert (done.exit_code, json.loads(done.stdout)["count"]) == (0, 0), "there was nothing then"
