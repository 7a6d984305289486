"""Queues of one partition each are spread over all workers, and those of a dead one over the others (C90)."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path

import pytest

from lapse_client import Connection, Publisher, QueueSubscriber
from support.log import until
from support.worker import Worker


def served(worker: Worker, queues: Sequence[str]) -> set[str]:
    """The queues of which a worker has taken a shard over."""
    return {name for name in queues if re.search(rf"{re.escape(name)}, partition 0: restored", worker.text())}


@pytest.mark.feature("C90", "S9")
def test_each_worker_serves_its_share_and_takes_over_what_another_leaves(
    kafka: str, unique: Callable[[str], str], tmp_path: Path
) -> None:
    queues, app = [unique(f"orders-{number}") for number in range(6)], unique("app")
    entities = "".join(f'[queue."{name}"]\npartitions = 1\n' for name in queues)
    workers = []
    for number in range(2):
        (tmp_path / str(number)).mkdir()
        workers.append(Worker(tmp_path / str(number), kafka, app, entities))
    first, second = workers
    connection = Connection(kafka)
    with first, second:
        until(lambda: len(served(first, queues)) + len(served(second, queues)) >= 6, "all queues", 40)
        until(lambda: len(served(second, queues)) == 3, "the second worker's share", 40)
        mine = served(second, queues)
        second.kill()
        with Publisher(connection) as publisher:
            for name in queues:
                publisher.publish(name, name.encode())
        for name in queues:
            with QueueSubscriber(name, connection=connection, timeout_s=40) as subscriber:
                delivery = subscriber.receive(30)
                assert delivery is not None
                assert delivery.value == name.encode()
                delivery.acknowledge()
        assert mine <= served(first, queues)
