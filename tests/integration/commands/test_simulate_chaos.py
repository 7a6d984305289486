"""`lapse simulate --replay` of a run in which workers were killed at full work: the same events come again (X10)."""

from __future__ import annotations

from collections import Counter

import orjson
import pytest

from lapse.protocol import topic
from support.flow.turmoil import Turmoil
from support.kafka.log import until
from support.processes.deployment import Deploy

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

EVENTS = 50
"""So many events of each shard come before the next worker is killed, however fast the machine is."""


def test_a_run_with_killed_workers_comes_to_the_same_events_again(deploy: Deploy) -> None:
    deployment = deploy(QUEUES).apply()
    worker = deployment.worker().wait_for_shards(4)
    tails = [deployment.tail(topic.events(deployment.name(stem))) for stem in QUEUES]

    def have_delivered(most: int) -> bool:
        delivered = [Counter(one.partition() for one in tail.drain()) for tail in tails]
        return all(counts[partition] >= most for counts in delivered for partition in (0, 1))

    with Turmoil(deployment, QUEUES).at_work():
        for part in (1, 2):
            until(lambda part=part: have_delivered(part * EVENTS), "events", 60)
            worker.kill()
            worker = deployment.worker().wait_for_shards(4)
        until(lambda: have_delivered(3 * EVENTS), "events", 60)
    worker.stop()
    for stem in QUEUES:
        done = deployment.lapse("simulate", deployment.name(stem), "--replay", "--json")
        sums = [one for one in map(orjson.loads, done.stdout.splitlines()) if "same" in one]
        assert done.returncode == 0, done.stderr[-3_000:]
        assert all(one["same"] and one["epochs"] == 3 and one["recorded"] > 2 * EVENTS for one in sums), sums
