"""The example with PostgreSQL: payments are booked once, however often its workers are killed (X9)."""

import os
import random
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.kafka.log import until
from support.processes.deployment import Deploy
from support.programs import postgres

EXAMPLE = Path(__file__).parents[3] / "examples" / "exactly_once_postgres.py"
PAYMENTS = 2_000
KILLS = 4


@pytest.mark.feature("X9")
# Not every machine has a PostgreSQL; the page's example on SQLite shows the same rule without one.
@pytest.mark.skipif(postgres.binaries() is None, reason="there is no PostgreSQL on this machine")
def test_payments_are_booked_once_however_often_workers_are_killed(deploy: Deploy, tmp_path: Path) -> None:
    import psycopg  # here: all processes collect this file

    here = deploy({"payments": {"heartbeat_timeout": "1s"}}).apply()
    here.worker().wait_for_shards(1)
    queue = here.name("payments")
    program = tmp_path / "example.py"
    program.write_text(EXAMPLE.read_text("utf-8").replace('QUEUE = "payments"', f'QUEUE = "{queue}"'), "utf-8")
    there = postgres.binaries()
    assert there is not None
    with postgres.running(there) as database:
        environment = {**os.environ, **here.environment(), **database}

        def example(*arguments: str) -> subprocess.Popen[bytes]:
            return subprocess.Popen([sys.executable, str(program), *arguments], env=environment)

        assert example("publish", str(PAYMENTS)).wait(60) == 0
        workers = [example("work") for _ in range(2)]
        chance = random.Random(PAYMENTS)
        try:
            for kill in range(KILLS):
                time.sleep(0.7 + 0.6 * chance.random())
                workers[kill % 2].kill()
                workers[kill % 2].wait()
                workers[kill % 2] = example("work")
            until(lambda: here.depth("payments")["depth"] == 0, "all are booked and acknowledged", 60)
        finally:
            for one in workers:
                one.kill()
                one.wait()
        with psycopg.connect(host=database["PGHOST"], user="lapse", dbname="postgres") as connection:
            assert connection.execute("SELECT amount FROM balance").fetchall() == [(PAYMENTS * (PAYMENTS + 1) // 2,)]
            assert connection.execute("SELECT count(*) FROM done").fetchall() == [(PAYMENTS,)]
