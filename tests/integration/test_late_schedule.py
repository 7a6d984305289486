"""Workers that are away while a scheduled message comes due (C76)."""

import signal
import time

import pytest

from support.deployment import Deploy, broker_now_ms
from support.log import until


@pytest.mark.feature("C76", "C11")
@pytest.mark.parametrize("away", ["killed", "frozen"])
def test_what_was_published_after_the_instant_comes_behind_it(deploy: Deploy, away: str) -> None:
    one = deploy({"late": {}}).apply()
    worker = one.worker().wait_for_shards(1)
    at_ms = broker_now_ms() + 3_000
    one.write("late", "first", headers=[("lapse-enqueue-at-ms", b"%d" % at_ms)])
    until(lambda: one.depth("late")["scheduled"] == 1, "it is scheduled")
    if away == "killed":
        worker.kill()
    else:
        until(lambda: broker_now_ms() >= at_ms - 500, "its instant is near", 30)
        worker.signal(signal.SIGSTOP)  # for less than a session timeout, after which it would end
    until(lambda: broker_now_ms() >= at_ms + 700, "its instant is over", 30)
    one.write("late", "second")
    if away == "killed":
        one.worker().wait_for_shards(1)
    else:
        worker.signal(signal.SIGCONT)
    with one.subscriber("late", 2) as subscriber:
        got = []
        end = time.monotonic() + 60
        while len(got) < 2 and time.monotonic() < end:
            delivery = subscriber.receive(5)
            if delivery is not None:
                got.append(delivery.value)
                delivery.acknowledge()
    assert got == [b"first", b"second"]
