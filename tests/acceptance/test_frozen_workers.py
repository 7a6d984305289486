"""Workers that freeze while the group rebalances, and wake as zombies: what they then write must be void.

`LAPSE_FREEZES=20 pytest tests/acceptance/test_frozen_workers.py` freezes that often; `make chaos` does. `LAPSE_SEED`
repeats what another run did.
"""

import os
import random
import signal
import threading
import time

import pytest

from support.flow.load import Load, account
from support.processes.deployment import Deploy, WorkerProcess

FREEZES = int(os.environ.get("LAPSE_FREEZES", "1"))
SEED = int(os.environ.get("LAPSE_SEED", random.randrange(1 << 30)))
FLOWING = {"expiration": "enabled", "lease_period": "2s", "partitions": 4}


def freeze(worker: WorkerProcess, after_s: float, for_s: float) -> None:
    """Stop a worker dead for a while, and wake it; whether it lives on is its own decision."""
    time.sleep(after_s)
    if worker.running:
        worker.signal(signal.SIGSTOP)
        time.sleep(for_s)
        worker.signal(signal.SIGCONT)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.feature("Q16", "Q5", "D3", "C13", "L10")
def test_workers_that_freeze_in_the_middle_of_rebalances_lose_nothing_and_repeat_nothing(deploy: Deploy) -> None:
    """Each round a worker leaves or joins, and one of the others, or two, are frozen for 2 to 9 s around that instant.

    Some freezes are shorter than the session, some longer: then the zombie has lost its shards and does not know it.
    It ends itself, and is started again as its supervisor would. Every message has one end, none is delivered again
    after the answer that it is acknowledged, and no event is told by an epoch that is over.
    """
    chance = random.Random(SEED)
    here = deploy({"flow": FLOWING}, session_timeout="3s").apply()
    workers = [here.worker() for _ in range(3)]
    ended = 0
    print(f"LAPSE_SEED={SEED} LAPSE_FREEZES={FREEZES}")
    with Load(here, "flow", 4, rate=50) as load:
        load.flow(100, 60)
        frozen = 0
        while frozen < FREEZES:
            mover, *others = chance.sample(workers, 3)
            victims = others[: chance.choice([1, 1, 2])]
            frozen += len(victims)
            threads = [
                threading.Thread(target=freeze, args=(victim, chance.uniform(0, 3), chance.uniform(2, 9)))
                for victim in victims
            ]
            for thread in threads:
                thread.start()
            # The group rebalances twice: without the mover once it is missed, and with it again.
            if chance.random() < 0.5:
                mover.kill()
            else:
                mover.signal(signal.SIGTERM)
            time.sleep(chance.uniform(0, 4))
            mover.kill()
            mover.start()
            for thread in threads:
                thread.join()
            for worker in workers:
                if not worker.running:
                    ended += 1
                    assert worker.code in (70, None), worker.text[-2000:]
                    worker.start()
            load.flow(chance.randrange(20, 200), 90)
        load.drain(600)
    found = account(here, "flow", set(load.written))
    print(
        f"{frozen} freezes, {ended} zombies ended themselves, {len(load.written)} messages, {found.void} void records"
    )
    found.assert_balanced()
    assert not found.void_events, found.void_events[:10]
