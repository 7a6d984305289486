"""Three deployments in a ring of `lapse replicate`, whose processes are killed again and again (S10, C56)."""

import random
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import orjson
import pytest
from confluent_kafka.admin import AdminClient

from integration.clusters.test_replicate import ENABLED, Replica, Side
from lapse.embedded import EmbeddedKafka
from lapse.topic_creation import NewPartitions
from lapse_client import Connection, Publisher
from support.kafka.log import until
from support.processes.worker import Worker
from support.suite import command

pytestmark = [
    pytest.mark.feature("S10", "C56"),
    pytest.mark.at_length,  # three brokers and a minute of kills; test_replicas.py has the rules
    pytest.mark.timeout(900),
]
KILLED_S = 60.0
PATIENCE_S = 120.0


@pytest.fixture
def ring(kafka: str, unique: Callable[[str], str], tmp_path: Path) -> Iterator[list[Side]]:
    """Each deployment's records go to the next one, and the last one's to the first."""
    name = unique("prices")
    with ExitStack() as running:
        servers = [kafka, *(running.enter_context(EmbeddedKafka()).bootstrap_servers for _ in range(2))]
        sides = []
        for number, own in enumerate(servers):
            directory = tmp_path / str(number)
            directory.mkdir()
            worker = running.enter_context(Worker(directory, own, unique("app"), f'[sow."{name}"]\n{ENABLED}\n'))
            replica = Replica(directory, own, servers[(number + 1) % 3], name)
            running.callback(replica.end)
            replica.start()
            sides.append(Side(own, name, worker, replica))
        yield sides


def kill(side: Side) -> None:
    side.out.end(signal.SIGKILL)
    side.out.start()


def are_same(sides: list[Side]) -> bool:
    first, *others = [side.shown() for side in sides]
    return all(one == first for one in others)


def publish_some(publishers: list[Publisher], name: str, chance: random.Random, number: int) -> None:
    key, what = f"k{chance.randrange(12)}", chance.random()
    value = None if what < 0.2 else orjson.dumps({"n": number})
    lifetime = {"ttl_ms": chance.choice([1, 500, 5_000])} if value is not None and what < 0.35 else {}
    chance.choice(publishers).publish(name, value, key, **lifetime)


def test_all_hold_the_same_whatever_is_killed_and_added_and_a_link_whose_source_was_deleted_ends(
    ring: list[Side],
) -> None:
    chance, name, number = random.Random(5), ring[0].name, 0
    with ExitStack() as opened:
        publishers = [opened.enter_context(Publisher(Connection(side.servers))) for side in ring]
        ends = time.monotonic() + KILLED_S
        while time.monotonic() < ends:
            for _ in range(20):
                number += 1
                publish_some(publishers, name, chance, number)
            time.sleep(0.2)
            if chance.random() < 0.15:
                kill(chance.choice(ring))
    for side in ring:
        kill(side)
    ring[0].publish("last", {"n": 1})
    until(lambda: all("last" in side.shown() for side in ring) and are_same(ring), "the same records", PATIENCE_S)

    ring[0].out.end(signal.SIGKILL)
    ring[0].publish("gone", {"n": 1})
    admin = AdminClient({"bootstrap.servers": ring[1].servers})
    count = len(admin.list_topics().topics[name].partitions)
    admin.create_partitions([NewPartitions(name, 2 * count)])[name].result()
    ring[0].out.start()
    for one in range(20):
        ring[0].publish(f"k{one}", {"n": f"after {one}"})
    ring[0].publish("gone", None)
    ring[0].publish("last", {"n": 2})
    until(lambda: all(side.shown().get("last") == {"n": 2} for side in ring) and are_same(ring), "again", PATIENCE_S)
    shown = ring[1].shown()
    assert {f"k{one}": {"n": f"after {one}"} for one in range(20)} == {
        key: value for key, value in shown.items() if key != "last"
    }

    done = command.run("sow", "delete-topic", name, "-b", ring[2].servers, "--force", "--yes")
    assert done.returncode == 0, done.stderr
    assert ring[2].out.process is not None
    assert ring[2].out.process.wait(90) == 1
    assert "there is no SOW topic" in ring[2].out.log.read_text("utf-8")
