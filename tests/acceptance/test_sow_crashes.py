"""No expired record returns to life, whatever is killed, compacted and rebalanced (S9, L11).

`LAPSE_SOW_SECONDS=600 pytest tests/acceptance/test_sow_crashes.py` goes on for so long, on memory and on RocksDB;
`make chaos` does. `LAPSE_SEED` repeats what another run did.
"""

import os
import random
import shutil
import signal
import threading
import time
from collections.abc import Iterator

import pytest

from lapse_client import SowClient
from support.flow.sow_load import SowLoad
from support.kafka.compaction import BROKER, compact_eagerly
from support.kafka.log import until
from support.kafka.prepared import PreparedKafka
from support.processes.deployment import Deploy, Deployment

SECONDS = float(os.environ.get("LAPSE_SOW_SECONDS", "12"))
STORES = ["memory", "rocksdb"] if "LAPSE_SOW_SECONDS" in os.environ else ["rocksdb"]
SEED = int(os.environ.get("LAPSE_SEED", random.randrange(1 << 30)))
LONGEST_MS = 4_000


@pytest.fixture(scope="module")
def kafka() -> Iterator[str]:
    """A broker of this module alone, which compacts as eagerly as a broker can."""
    with PreparedKafka(properties=BROKER) as own:
        yield own.bootstrap_servers


def accidents(here: Deployment, chance: random.Random, over: threading.Event) -> None:
    """Kill or stop one worker or both, again and again; some come back without what they had on disk."""
    while not over.wait(chance.uniform(1.0, 3.0)):
        victims = chance.sample(here.workers, chance.choice([1, 1, 1, 2]))
        for victim in victims:
            if chance.random() < 0.7:
                victim.kill()
            else:
                victim.signal(signal.SIGTERM)
        time.sleep(chance.choice([0.0, 0.5, 3.0]))  # longer than the session: the other one takes over
        for victim in victims:
            victim.kill()
            if chance.random() < 0.3:
                number = here.workers.index(victim)
                shutil.rmtree(here.directory / f"data-{number}", ignore_errors=True)
            victim.start()


@pytest.mark.slow
@pytest.mark.timeout(7200)
@pytest.mark.parametrize("store", STORES)
@pytest.mark.feature("S9", "S8", "S5", "S3", "S2", "L9", "L10", "L11", "C1", "C44", "C45", "Q16")
def test_no_expired_record_returns_to_life(deploy: Deploy, store: str) -> None:
    """Updates of every kind, queries all along, and each is held against every deadline that there ever was.

    A record that is shown has not expired before it was asked for, and is the latest update that was safe by then;
    what lives is shown. In the end only what never expires is left: in the state, in the compacted topic, and at
    workers that begin with nothing but the compacted changelog.
    """
    print(f"LAPSE_SEED={SEED} LAPSE_SOW_SECONDS={SECONDS:g}")
    settings = {"expiration": "enabled", "partitions": 3}
    here = deploy({}, sow={"flow": settings}, store=store, session_timeout="2s").apply()
    name = here.name("flow")
    compacted = f"{here.app_id}-{name}-changelog", f"lapse.sow.{name}"
    # As with Kafka's own settings, tombstones outlast the time for which a copy on disk is trusted.
    compact_eagerly(here.servers, *compacted, tombstones_ms=60_000)
    for _ in range(2):
        here.worker()
    until(lambda: sum(worker.shards for worker in here.workers) >= 3, "three shards", 60)
    over = threading.Event()
    trouble = threading.Thread(target=accidents, args=(here, random.Random(SEED), over))
    with SowClient(name, connection=here.connection, timeout_s=30) as client:
        with SowLoad(here, "flow", keys=400, rate=400, longest_ms=LONGEST_MS, seed=SEED) as load:
            trouble.start()
            ends_at = time.monotonic() + SECONDS
            while time.monotonic() < ends_at:
                load.check_query(client)
            over.set()
            trouble.join()
        # Whoever was killed last has read what its copies lacked: without their tombstones it would trust them wrongly.
        until(lambda: all(worker.shards for worker in here.workers), "both workers have shards again", 90)
        compact_eagerly(here.servers, *compacted, tombstones_ms=0)
        until(lambda: load.check_query(client), "an answer after the last accident", 90)
        time.sleep(LONGEST_MS / 1000)
        assert load.check_query(client)
        left = load.remaining()
        until(lambda: load.compacted() == left, "the compacted topic as it should be")

        # Two workers that begin with nothing but the changelog, whose tombstones are long forgotten.
        for number, worker in enumerate(here.workers):
            worker.kill()
            shutil.rmtree(here.directory / f"data-{number}", ignore_errors=True)
        for worker in here.workers:
            worker.start()
        until(lambda: load.check_query(client), "an answer of new workers", 90)
        assert {record.key: record.expires_at_ms for record in client.query()} == dict.fromkeys(left)
    assert load.expired > 100
    assert load.judged > 100
