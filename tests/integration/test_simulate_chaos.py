"""`lapse simulate --replay` of a run in which workers were killed at full work: the same events come again (X10)."""

from __future__ import annotations

import time

import orjson
import pytest

from support.deployment import Deploy
from support.turmoil import Turmoil

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

WORKS_S = 1.5


def test_a_run_with_killed_workers_comes_to_the_same_events_again(deploy: Deploy) -> None:
    deployment = deploy(QUEUES).apply()
    worker = deployment.worker().wait_for_shards(4)
    with Turmoil(deployment, QUEUES).at_work():
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
