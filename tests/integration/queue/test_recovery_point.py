"""Queues that begin at a bookmark (Q16)."""

import time

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment


def bookmarks(here: Deployment, queue: str) -> list[str]:
    with here.queue(queue) as client:
        return sorted(one.bookmark.partition(":")[2] for one in client.peek())


def holds(here: Deployment, queue: str, expected: list[str]) -> None:
    seen: list[str] = []

    def as_expected() -> bool:
        seen[:] = bookmarks(here, queue)
        return seen == expected

    try:
        until(as_expected, queue)
    except AssertionError:
        assert seen == expected  # it shows what differs
        raise


@pytest.mark.feature("Q16")
def test_a_queue_begins_at_a_bookmark_and_other_partitions_at_its_instant(deploy: Deploy) -> None:
    """A bookmark, one for each partition, one that Kafka has removed, one beyond the end, a partition that is none."""
    here = deploy({"t": {"partitions": 2}}).apply()
    for offset in range(6):
        for partition in (0, 1):
            here.write("t", f"{partition}:{offset}", partition=partition)
            time.sleep(0.003)  # an instant of its own: other partitions begin at the bookmark's
    admin = AdminClient({"bootstrap.servers": here.servers})
    place = TopicPartition(here.name("t"), 1, 2)
    admin.delete_records([place])[place].result(15)
    common = {"topics": ["t{}"], "partitions": 2}
    queues = {
        "single": {**common, "recovery_point": "t{}:0:3"},
        "each": {**common, "recovery_point": ["t{}:0:2", "t{}:1:5"]},
        "removed": {**common, "recovery_point": "t{}:1:0"},
        "beyond": {**common, "recovery_point": ["t{}:0:99", "t{}:1:4"]},
        "total": {**common, "ordering": "total", "recovery_point": "t{}:0:4"},
    }
    here.configure(queues)
    here.apply()
    worker = here.worker().wait_for_shards(9)
    holds(here, "single", ["0:3", "0:4", "0:5", "1:3", "1:4", "1:5"])
    holds(here, "each", ["0:2", "0:3", "0:4", "0:5", "1:5"])
    holds(here, "removed", ["0:3", "0:4", "0:5", "1:2", "1:3", "1:4", "1:5"])
    holds(here, "beyond", ["1:4", "1:5"])
    holds(here, "total", ["0:4", "0:5", "1:4", "1:5"])
    assert "Kafka has removed the records before offset 2" in worker.text
    assert "the log ends at 6" in worker.text
    worker.kill()
    here.configure({"single": {**common, "recovery_point": "t{}:7:0"}})
    done = here.lapse("worker", "--no-supervise")
    assert "has 2 partitions" in done.stderr
    assert "Traceback" not in done.stderr
    # A queue that exists goes on where it was; and says so where the log no longer reaches back.
    here.configure({"single": {**common, "recovery_point": "end"}})
    here.write("t", "0:6", partition=0)
    here.write("t", "0:7", partition=0)
    place = TopicPartition(here.name("t"), 0, 7)
    admin.delete_records([place])[place].result(15)
    worker.start().wait_for_shards(2)
    holds(here, "single", ["0:7", "1:3", "1:4", "1:5"])
    assert "up to offset 6, which was read up to 5 only" in worker.text
