"""Shards are spread over all workers, and those of a dead one over the others (C90), as the simulation has it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from benchmarks.scale import Fleet

from lapse_client import Connection, Publisher, QueueSubscriber
from support.kafka.log import until
from support.processes.worker import Worker


def served(worker: Worker, queues: Sequence[str]) -> set[tuple[str, int]]:
    """The shards of these queues that a worker has taken over."""
    found = re.findall(r"(\S+), partition (\d+): restored", worker.text())
    return {(name, int(shard)) for name, shard in found if name in queues}


@pytest.mark.feature("C90", "S9")
def test_each_worker_serves_its_share_and_takes_over_what_another_leaves(
    kafka: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    shards = {unique(f"orders-{number}"): 1 for number in range(6)} | {unique("wide"): 4}
    fleet = Fleet(shards)
    queues, app = list(shards), unique("app")
    entities = "".join(f'[queue."{name}"]\npartitions = {count}\n' for name, count in shards.items())
    workers = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        workers.append(Worker(tmp_path / str(number), kafka, app, entities))
    first, second = workers
    connection = Connection(kafka)
    fleet.rebalance(["first"])
    with first, second:
        simulated = fleet.rebalance(["first", "second"])
        share = fleet.shares()["second"]
        assert simulated.moved in (0, len(share))
        until(lambda: len(served(first, queues) | served(second, queues)) == 10, "all shards", 40)
        until(lambda: len(served(second, queues)) >= len(share), "the second worker's share", 40)
        mine = served(second, queues)
        for name in queues[-1:]:
            assert len({one for one in mine if one[0] == name}) == len({one for one in share if one[0] == name})
        assert len(mine) == len(share)
        second.kill()
        assert fleet.rebalance(["first"]).orphans == len(mine)
        with Publisher(connection) as publisher:
            for name in queues:
                publisher.publish(name, name.encode())
        for name in queues:
            with QueueSubscriber(name, connection=connection, timeout_s=40) as subscriber:
                delivery = subscriber.receive(30)
                assert delivery is not None
                assert delivery.value == name.encode()
                delivery.acknowledge()
        until(lambda: served(first, queues) == fleet.shares()["first"], "what the simulation gives the first", 40)
        assert mine <= served(first, queues)
