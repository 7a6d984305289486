"""A consumer that stands still for longer than its leases: what it held is others' work, and it is told so."""

import json
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from lapse.embedded.process import freeze
from lapse_client.delivery.delivery import Delivery
from support.consumers import slow
from support.kafka.log import until
from support.processes.deployment import Deploy


@pytest.mark.feature("Q5", "Q8", "C17", "X3")
def test_a_consumer_that_wakes_after_its_lease_has_no_say_and_hands_out_nothing_stale(deploy: Deploy) -> None:
    one = deploy({"work": {"lease_period": "3s", "heartbeat_timeout": "2s"}}).apply()
    one.worker().wait_for_shards(1)
    one.write("work", "a", "b", "c")
    program = [sys.executable, str(Path(slow.__file__)), one.servers, one.name("work")]
    paused = subprocess.Popen(program, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    try:
        assert paused.stdin is not None
        assert paused.stdout is not None
        assert json.loads(paused.stdout.readline()) == {"got": "a", "count": 1}
        until(lambda: one.depth("work")["leased"] == 3, "two more are prefetched")
        freeze(psutil.Process(paused.pid))
        stopped = time.monotonic()
        with one.subscriber("work", 3) as other:
            taken: dict[bytes | None, Delivery] = {}
            while len(taken) < 3:
                delivery = other.receive(20)
                assert delivery is not None, "its leases return"
                assert delivery.delivery_count == 2
                taken[delivery.value] = delivery
            results = other.settle("acknowledge", [taken[b"a"], taken[b"b"]], wait=True)
            assert all(result.settled for result in results)
        # `close` has returned the third: it is there for the consumer that wakes.
        until(lambda: one.depth("work")["available"] == 1, "one is left")
        # Its leases returned with its heartbeats; on its own clock they have to be over, too.
        time.sleep(max(0.0, stopped + 4 - time.monotonic()))
        paused.send_signal(signal.SIGCONT)
        printed, _ = paused.communicate("go\n", timeout=60)
    finally:
        paused.kill()
    first, *later = [json.loads(line) for line in printed.splitlines()]
    assert first == {"result": "already_settled"}
    assert later == [{"got": "c", "count": 3}], "neither what was prefetched before, nor what others have settled"
    until(lambda: one.depth("work")["depth"] == 0, "all are settled")
