"""The ledger of a real queue is exact before, during and after a rewind whose worker is killed in the middle."""

import pytest

from lapse_spark import Connection, ledger
from support.kafka.log import until
from support.processes.deployment import Deploy

COUNT = 80_000


@pytest.mark.long
@pytest.mark.feature("Q22", "D4", "D8", "C63")
def test_the_account_is_exact_whatever_is_killed_in_the_middle_of_a_rewind(spark, deploy: Deploy) -> None:
    here = deploy({"q": {"partitions": 1}}).apply()
    name = here.name("q")

    def balance(ask: bool = False) -> tuple[bool, int, int, int]:
        """Whether it balances; what was published, came back, and is in the queue, by its events or its own list."""
        found = ledger.run(spark, Connection(here.servers), name, [name], ask=ask)
        return found.balanced, found.published, found.rewound, found.still_queued

    here.write("q", *("x" for _ in range(COUNT)))
    worker = here.worker().wait_for_shards(1)
    until(lambda: here.depth("q")["depth"] == COUNT, "all of them")
    with here.queue("q") as client:
        client.purge()
        assert balance() == (True, COUNT, 0, 0)
        waiting = here.run(["-m", "lapse", "queue", "rewind", name, "--to", "beginning", "--id", "one", "--json"])
        until(lambda: any(one.event == "rewound" for one in here.events("q")), "the first part")
        worker.kill()
        balanced, published, rewound, queued = balance()
        assert (balanced, published) == (True, COUNT)
        assert 0 < rewound == queued < COUNT, "it was not in the middle"
        here.worker().wait_for_shards(1)
        assert waiting.wait(60) == 0
        assert balance(ask=True) == (True, COUNT, COUNT, COUNT)
