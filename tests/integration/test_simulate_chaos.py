"""`lapse simulate --replay` of a run in which workers were killed at full work: the same events come again (X10)."""

from __future__ import annotations

import random
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

import orjson
import pytest

from lapse_client.error import LapseError
from support.deployment import Deploy, Deployment, broker_now_ms

QUEUES = {
    "torn": {
        "partitions": 2,
        "expiration": "2s",
        "lease_period": "600ms",
        "max_deliveries": 4,
        "max_cancels": 3,
        "retry": {"delay": "40ms", "jitter": 0.5},
        "dedup_window": "1m",
    },
    "shared": {
        "topics": ["torn{}"],
        "partitions": 2,
        "lease_period": "600ms",
        "expiration": "1s",
        "dead_letter": False,
        "group_by": "/who",
        "group_limit": 3,
        "group_rate": "60/1s",
    },
}

pytestmark = pytest.mark.feature("X10")

PAUSE_S = 0.02
WORKS_S = 1.5


class Turmoil:
    """Publishes and consumes in threads until it is stopped; each thread draws from a seed of its own."""

    def __init__(self, deployment: Deployment) -> None:
        self._deployment = deployment
        self._over = threading.Event()
        self._threads = [threading.Thread(target=self._publish, args=(at,)) for at in (0, 1)]
        for stem in QUEUES:
            self._threads += [threading.Thread(target=self._consume, args=(stem, at)) for at in (0, 1)]
        self._threads.append(threading.Thread(target=self._ask))

    @contextmanager
    def at_work(self) -> Iterator[None]:
        for one in self._threads:
            one.start()
        try:
            yield
        finally:
            self._over.set()
            for one in self._threads:
                one.join(30)

    def _publish(self, partition: int) -> None:
        chance = random.Random(partition)
        number = 0
        while not self._over.wait(PAUSE_S):
            headers = chance.choice(
                [
                    [],
                    [("lapse-ttl-ms", b"%d" % chance.randint(1, 900))],
                    [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + chance.randint(-50, 400)))],
                    [("lapse-message-id", b"%d" % chance.randint(0, number + 1))],
                    [("lapse-ttl-ms", b"never")],
                ]
            )
            values = [
                b'{"rank": %d, "who": "%d"}' % (chance.randint(0, 4), chance.randint(0, 9))
                for _ in range(chance.randint(1, 12))
            ]
            self._deployment.write("torn", *values, headers=headers, partition=partition)
            number += 1

    def _consume(self, stem: str, seed: int) -> None:
        chance = random.Random(f"{stem} {seed}")
        with self._deployment.subscriber(stem, chance.randint(5, 40)) as subscriber:
            while not self._over.is_set():
                delivery = subscriber.receive(0.1)
                what = chance.choices(["acknowledge", "cancel", "expire", ""], [8, 1, 1, 1])[0]
                if delivery is not None and what:
                    subscriber.settle(what, [delivery])

    def _ask(self) -> None:
        with self._deployment.queue("torn") as queue:
            while not self._over.wait(2 * PAUSE_S):
                try:
                    queue.depth()
                except LapseError:
                    continue  # no worker was there to answer


def test_a_run_with_killed_workers_comes_to_the_same_events_again(deploy: Deploy) -> None:
    deployment = deploy(QUEUES).apply()
    worker = deployment.worker().wait_for_shards(4)
    with Turmoil(deployment).at_work():
        for _ in range(2):
            time.sleep(WORKS_S)
            worker.kill()
            worker = deployment.worker().wait_for_shards(4)
        time.sleep(WORKS_S)
    worker.stop()
    for stem in QUEUES:
        done = deployment.lapse("simulate", deployment.name(stem), "--replay", "--json")
        sums = [one for one in map(orjson.loads, done.stdout.splitlines()) if "same" in one]
        assert done.returncode == 0, done.stderr[-3_000:]
        assert all(one["same"] and one["epochs"] == 3 and one["recorded"] > 100 for one in sums), sums
