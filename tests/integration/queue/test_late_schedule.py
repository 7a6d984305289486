"""Workers that are away while a scheduled message comes due (C76)."""

import signal
import time

import pytest

from support.kafka.created_topic import stamp_by_producers
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, broker_now_ms
from support.suite.at_length import cases


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


def in_order(one: Deployment, stem: str, skip: int, top_n: int) -> list[int]:
    """Offsets of a queue's messages in their order."""
    with one.queue(stem) as queue:
        return [int(message.bookmark.rpartition(":")[2]) for message in queue.peek(skip=skip, top_n=top_n)]


OLDER = 25_000
"""More than a shard takes in before its timers have their turn."""


@pytest.mark.feature("C76", "C11", "Q12")
@pytest.mark.parametrize("away", cases(["killed"], ["frozen"]))
def test_a_scheduled_marker_stands_behind_a_backlog_that_arrived_before_its_instant(deploy: Deploy, away: str) -> None:
    one = deploy({"late": {"barrier": "/type = 'EOD'", "ordering": "total"}}).apply()
    worker = one.worker().wait_for_shards(1)
    at_ms = broker_now_ms() + 3_000
    one.write("late", '{"type": "EOD"}', headers=[("lapse-enqueue-at-ms", b"%d" % at_ms)])
    until(lambda: one.depth("late")["scheduled"] == 1, "it is scheduled")
    if away == "killed":
        worker.kill()
    else:
        until(lambda: broker_now_ms() >= at_ms - 2_000, "its instant is near", 30)
        worker.signal(signal.SIGSTOP)  # for less than a session timeout, after which it would end
    one.write("late", *[b"{}"] * OLDER)
    assert broker_now_ms() < at_ms, "the machine was too slow for this test"
    until(lambda: broker_now_ms() >= at_ms + 50, "its instant is over", 30)
    one.write("late", b"{}", b"{}")
    if away == "killed":
        one.worker().wait_for_shards(1)
    else:
        worker.signal(signal.SIGCONT)
    until(lambda: one.depth("late")["available"] == OLDER + 3, "all are there", 60)
    assert in_order(one, "late", OLDER - 1, 4) == [OLDER - 1 + 1, 0, OLDER + 1, OLDER + 2]


@pytest.mark.feature("C76", "C6", "L1")
def test_producers_stamps_decide_the_place_after_a_freeze(deploy: Deploy) -> None:
    one = deploy({"late": {}}).apply()
    stamp_by_producers(one.servers, one.name("late"))
    worker = one.worker().wait_for_shards(1)
    at_ms = broker_now_ms() + 2_500
    one.write("late", "first", headers=[("lapse-enqueue-at-ms", b"%d" % at_ms)], timestamp_ms=broker_now_ms())
    until(lambda: one.depth("late")["scheduled"] == 1, "it is scheduled")
    worker.signal(signal.SIGSTOP)
    one.write("late", "older", timestamp_ms=at_ms - 100)
    until(lambda: broker_now_ms() >= at_ms + 200, "its instant is over", 30)
    one.write("late", "second", timestamp_ms=at_ms + 100)
    worker.signal(signal.SIGCONT)
    until(lambda: one.depth("late")["available"] == 3, "all are there")
    assert in_order(one, "late", 0, 3) == [1, 0, 2]


@pytest.mark.feature("C76", "C11", "C1")
def test_a_rebalance_across_the_instant_does_not_move_a_scheduled_message(deploy: Deploy) -> None:
    one = deploy({"late": {}}).apply()
    first = one.worker().wait_for_shards(1)
    second = one.worker()
    at_ms = broker_now_ms() + 4_000
    one.write("late", "scheduled", headers=[("lapse-enqueue-at-ms", b"%d" % at_ms)])
    until(lambda: one.depth("late")["scheduled"] == 1, "it is scheduled")
    owner = second if second.shards else first
    owner.kill()  # the other one takes over when its session times out
    one.write("late", "older")
    assert broker_now_ms() < at_ms, "the machine was too slow for this test"
    until(lambda: broker_now_ms() >= at_ms + 200, "its instant is over", 30)
    one.write("late", "later")
    until(lambda: one.depth("late")["available"] == 3, "all are there", 60)
    assert in_order(one, "late", 0, 3) == [1, 0, 2]


@pytest.mark.feature("C76", "C11", "C33")
def test_in_one_order_the_instant_counts_against_the_arrivals_of_other_topics_too(deploy: Deploy) -> None:
    """What is read first after a crash is arbitrary, and one fetch does not bring all of it."""
    one = deploy({"late": {"topics": ["a{}", "b{}"], "ordering": "total"}}).apply()
    worker = one.worker().wait_for_shards(1)
    at_ms = broker_now_ms() + 5_000
    one.write("a", "scheduled", headers=[("lapse-enqueue-at-ms", b"%d" % at_ms)])
    until(lambda: one.depth("late")["scheduled"] == 1, "it is scheduled")
    worker.kill()
    one.write("b", *[b"x" * 4_000] * 1_500)
    one.write("a", *[b"older"] * 5)
    assert broker_now_ms() < at_ms, "the machine was too slow for this test"
    until(lambda: broker_now_ms() >= at_ms + 50, "its instant is over", 30)
    one.write("a", b"later")
    one.write("b", b"later")
    one.worker().wait_for_shards(1)
    until(lambda: one.depth("late")["available"] == 1_508, "all are there", 60)
    with one.queue("late") as queue:
        places = [message.bookmark for message in queue.peek(skip=1_504, top_n=4)]
    a, b = one.name("a"), one.name("b")
    assert places == [f"{a}:0:5", f"{a}:0:0", f"{a}:0:6", f"{b}:0:1500"]


@pytest.mark.feature("C33", "C76")
def test_in_one_order_what_was_published_during_a_freeze_keeps_its_order_over_topics(deploy: Deploy) -> None:
    """Several fetches of one topic may come before the first one of the other."""
    one = deploy({"late": {"topics": ["a{}", "b{}"], "ordering": "total"}}).apply()
    worker = one.worker().wait_for_shards(1)
    a, b, large = one.name("a"), one.name("b"), [b"x" * 4_000] * 1_000
    with one.queue("late") as queue:
        assert queue.depth()["depth"] == 0
        worker.signal(signal.SIGSTOP)  # for less than a session timeout, after which it would end
        for _ in range(3):
            one.write("a", *large)
            time.sleep(0.01)
            one.write("b", b"between")
            time.sleep(0.01)
        time.sleep(1)
        worker.signal(signal.SIGCONT)
        until(lambda: queue.depth()["available"] == 3_003, "all are there", 60)
        places = [queue.peek(skip=1_001 * at, top_n=1)[0].bookmark for at in range(1, 3)]
        between = [queue.peek(skip=1_001 * at - 1, top_n=1)[0].bookmark for at in range(1, 4)]
    assert between == [f"{b}:0:{at}" for at in range(3)]
    assert places == [f"{a}:0:{1_000 * at}" for at in range(1, 3)]
