"""A queue whose state does not fit into the memory that it may take: only what is needed is read from disk (Q16)."""

import pytest
from confluent_kafka import Producer

from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment
from support.processes.figures import free_port, scraped
from support.suite.at_length import cases

DEEP = 163_840
SEGMENTS = 40
LOST = 90_000
QUEUES = {"deep": {"expiration": "1h", "lease_period": "5m", "state": "disk", "state_memory": 1}}


def fill(here: Deployment) -> None:
    """Messages that live for an hour, but for one in the middle."""
    producer = Producer({"bootstrap.servers": here.servers, "linger.ms": 20, "queue.buffering.max.messages": DEEP + 1})
    for number in range(DEEP):
        headers = [("lapse-ttl-ms", b"10000")] if number == LOST else None
        producer.produce(here.name("deep"), b"%d" % number, partition=0, headers=headers)
    assert producer.flush(60) == 0


def segments(port: int) -> tuple[int, int]:
    """How many are in memory, and how many on disk."""
    figures = scraped(port)
    return int(figures["lapse_queue_segments", "memory"]), int(figures["lapse_queue_segments", "disk"])


@pytest.mark.feature("Q16", "L11")
@pytest.mark.parametrize("store", cases(["memory"], ["rocksdb"]))
def test_only_needed_segments_are_read_before_and_after_a_crash(deploy: Deploy, store: str) -> None:
    """163,840 messages in 1 MiB: the first are delivered, one expires, some are settled by name; and again after -9."""
    port = free_port()
    here = deploy(QUEUES, store=store, metrics_port=port, session_timeout="2s").apply()
    worker = here.worker().wait_for_shards(1)
    fill(here)
    until(lambda: here.depth("deep")["depth"] >= DEEP - 1, "all messages read", 60)
    in_memory, on_disk = segments(port)
    assert in_memory + on_disk == SEGMENTS
    assert in_memory <= 28
    here.letters("deep", 1, 60)
    with here.subscriber("deep", 100, timeout_s=60) as subscriber:
        some = [subscriber.receive(20) for _ in range(100)]
        assert [one and one.value for one in some] == [b"%d" % number for number in range(100)]
        subscriber.settle("acknowledge", [one for one in some if one is not None], wait=True)
    assert scraped(port)["lapse_queue_segment_loads_total",] <= 5

    worker.kill()
    worker.start().wait_for_shards(1)
    with here.subscriber("deep", 100, timeout_s=60) as subscriber, here.queue("deep") as queue:
        until(lambda: queue.depth()["depth"] == DEEP - 101, "the same depth as before", 20)
        in_memory, on_disk = segments(port)
        assert in_memory + on_disk == SEGMENTS
        assert in_memory <= 28
        some = [subscriber.receive(20) for _ in range(100)]
        assert [one and one.value for one in some] == [b"%d" % number for number in range(100, 200)]
        named = f"{here.name('deep')}:0:80000-80009"
        (answer,) = queue.expire([named])
        assert answer.settled
    assert len(here.letters("deep", 11)) == 11
    assert scraped(port)["lapse_queue_segment_loads_total",] <= 5
    assert segments(port)[0] <= 28
