"""Queues get more shards while something else is at work in them (C81)."""

from __future__ import annotations

import signal
import subprocess
import sys
from collections.abc import Iterable

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from lapse.protocol.command import Command
from lapse_client import Delivery, QueueSubscriber
from lapse_client.session.conversation import Conversation
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment


def add_partitions(here: Deployment, *topics: str, count: int = 2) -> None:
    admin = AdminClient({"bootstrap.servers": here.servers})
    for added in admin.create_partitions([NewPartitions(one, count) for one in topics]).values():
        added.result(15)

    def known() -> bool:
        there = admin.list_topics(timeout=15).topics
        return all(len(there[one].partitions) == count for one in topics)

    until(known, "the partitions are known")


def receive(subscriber: QueueSubscriber) -> Delivery:
    found = subscriber.receive(60)
    assert found is not None
    return found


def acknowledge(subscriber: QueueSubscriber, some: Iterable[Delivery]) -> None:
    results = subscriber.settle("acknowledge", [*some], wait=True)
    assert all(one.settled for one in results), results


def values(subscriber: QueueSubscriber, count: int) -> list[bytes | None]:
    """What comes next, acknowledged."""
    found = [receive(subscriber) for _ in range(count)]
    acknowledge(subscriber, found)
    return [one.value for one in found]


@pytest.mark.feature("C81", "Q17")
def test_partitions_that_are_added_once_more_are_merged_by_time_too(deploy: Deploy) -> None:
    """Its shards have consumers of their own by then, which find new partitions before anybody else does."""
    here = deploy({"flow": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    add_partitions(here, here.name("flow"))
    assert here.lapse("queue", "partitions", here.name("flow")).returncode == 0
    until(lambda: "has 2 shards" in worker.text and worker.shards >= 3, "it has two shards", 60)
    add_partitions(here, here.name("flow"), count=4)
    with here.queue("flow") as queue, here.subscriber("flow", 200, timeout_s=60) as subscriber:
        here.write("flow", "there", partition=2)
        acknowledge(subscriber, [receive(subscriber)])
        for _ in range(4):
            queue.pause()
            worker.signal(signal.SIGSTOP)  # so that it finds messages of both partitions at once
            stamped = [
                (one.timestamp_ms, (partition, one.offset))
                for partition in (2, 0, 2, 0)
                for one in here.write("flow", *["{}"] * 20, partition=partition)
            ]
            worker.signal(signal.SIGCONT)
            until(lambda: queue.depth()["depth"] == 80, "all messages")
            queue.resume()
            got = [receive(subscriber) for _ in range(80)]
            acknowledge(subscriber, got)
            places = [(one.bookmark.partition, one.bookmark.offset) for one in got]
            assert places == [place for _, place in sorted(stamped)]


PAUSES = """
import sys
from lapse_client import Connection, Queue

with Queue(sys.argv[1], connection=Connection(sys.argv[2])) as queue:
    print(queue.depth(), flush=True)
    sys.stdin.readline()
    queue.pause()
"""
"""A program that opens a queue, and pauses it when it is told to."""


@pytest.mark.feature("C81", "C21")
def test_a_client_that_has_not_heard_of_a_new_shard_pauses_that_shard_too(deploy: Deploy) -> None:
    """It stands still while the queue gets the shard, which begins to read before the pause."""
    here = deploy({"flow": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    words = [sys.executable, "-c", PAUSES, here.name("flow"), here.servers]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as client:
        assert client.stdin is not None
        assert client.stdout is not None
        assert "depth" in client.stdout.readline()
        client.send_signal(signal.SIGSTOP)
        add_partitions(here, here.name("flow"))
        assert here.lapse("queue", "partitions", here.name("flow")).returncode == 0
        with here.subscriber("flow", 1, timeout_s=60) as subscriber:
            until(lambda: "has 2 shards" in worker.text, "it has two shards", 60)
            here.write("flow", "read", partition=1)
            assert values(subscriber, 1) == [b"read"]
        client.stdin.write("pause\n")
        client.stdin.flush()
        client.send_signal(signal.SIGCONT)
        assert client.wait(60) == 0
    with Conversation(here.connection, here.name("flow"), 2) as shards:
        answers = shards.ask([0, 1], Command(command="depth"), 30)
    assert [answer.counts.get("paused") for answer in answers] == [1, 1]
