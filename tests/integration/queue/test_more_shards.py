"""What a queue has promised about messages of a partition holds when another shard reads that partition (C81).

Several queues get shards at once: each shows one feature that is at work while that happens.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest
from confluent_kafka.admin import AdminClient, NewPartitions

from lapse.protocol import header
from lapse.topic_creation import NewTopic
from lapse_client import Queue, QueueSubscriber
from lapse_client.session.conversation import Conversation
from support.kafka.created_topic import create
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, broker_now_ms

QUEUES = {
    "flow": {"partitions": 2},
    "sink": {"partitions": 2},
    "deep": {"target_queue_depth": 1},
    "once": {"dedup_window": "10m"},
    "halted": {},
    "atomic": {},
    "ranked": {"priority": "/p"},
}
LATER = 3_600_000


def add_partitions(here: Deployment, stem: str, count: int) -> None:
    admin = AdminClient({"bootstrap.servers": here.servers})
    admin.create_partitions([NewPartitions(here.name(stem), count)])[here.name(stem)].result(15)

    def known() -> bool:
        return len(admin.list_topics(here.name(stem), timeout=15).topics[here.name(stem)].partitions) == count

    until(known, "the partitions are known")


def bookmark(here: Deployment, stem: str, partition: int, offset: int) -> str:
    return f"{here.name(stem)}:{partition}:{offset}"


def settled(queue: Queue, how: str, *bookmarks: str) -> list[str]:
    return [one.result for one in queue.settle(how, bookmarks)]


def received(here: Deployment, stem: str, wait_s: float = 30.0) -> str | None:
    """What a consumer gets next, and acknowledges."""
    with here.subscriber(stem, 1) as subscriber:
        delivery = subscriber.receive(wait_s)
        if delivery is None:
            return None
        subscriber.settle("acknowledge", [delivery], wait=True)
        return (delivery.value or b"").decode()


def replace_atomically(subscriber: QueueSubscriber, to: str) -> None:
    """Put a message's value on another topic in one transaction with its acknowledgment (X9)."""
    delivery = subscriber.receive(60)
    assert delivery is not None
    with delivery.transaction() as work:
        work.produce(to, delivery.value)


def moved(here: Deployment, *arguments: str) -> int:
    to = ("--to", here.servers, "--to-queue", here.name("sink"))
    done = here.lapse("transfer", here.name("flow"), *to, "--json", *arguments)
    assert done.returncode == 0, done.stdout + done.stderr
    return int(json.loads(done.stdout.splitlines()[-1])["transferred"])


def more_shards(here: Deployment, stems: Sequence[str]) -> None:
    for stem in stems:
        done = here.lapse("queue", "partitions", here.name(stem), "--json")
        assert done.returncode == 0, done.stdout + done.stderr


def check_that_bookmarks_find_their_shard(here: Deployment) -> None:
    later = [(header.ENQUEUE_AT_MS, b"%d" % (broker_now_ms() + LATER))]
    # Two shards read four partitions: commands by bookmark find the shard.
    here.write("flow", "withdrawn", "later", headers=later, partition=3)
    here.write("flow", "moved", partition=2)
    with here.queue("flow") as queue:
        until(lambda: (queue.depth()["scheduled"], queue.depth()["depth"]) == (2, 1), "it reads all partitions", 40)
        assert settled(queue, "cancel", bookmark(here, "flow", 3, 0)) == ["settled"]
        found = queue.look_at(bookmark(here, "flow", 3, 1))
        assert found is not None
        assert found.state == "scheduled"
    assert moved(here, "--bookmark", bookmark(here, "flow", 2, 0)) == 1
    assert received(here, "sink") == "moved"


@pytest.mark.feature("C81", "Q8", "Q13", "Q17", "C21", "C43", "L5", "X6", "X9")
def test_what_was_promised_of_a_partition_holds_when_another_shard_reads_it(deploy: Deploy) -> None:
    here = deploy(QUEUES).apply()
    worker = here.worker().wait_for_shards(9)
    grown = ("deep", "once", "halted", "atomic")
    for stem, count in (("flow", 4), ("sink", 4), ("ranked", 4), *((stem, 2) for stem in grown)):
        add_partitions(here, stem, count)
    until(lambda: all(f"{here.name(stem)}" in worker.text for stem in grown), "it is told", 40)

    check_that_bookmarks_find_their_shard(here)

    # What only the older shard knows of messages that it has not handed out.
    here.write("deep", "first", "acknowledged", "third", partition=1)
    with here.queue("deep") as queue:
        until(lambda: queue.depth()["depth"] == 1, "the depth is reached", 40)
        assert settled(queue, "acknowledge", bookmark(here, "deep", 1, 1)) == ["settled"]
    here.write("once", "told", partition=1, headers=[(header.MESSAGE_ID, b"a")])
    assert received(here, "once") == "told"
    with here.queue("halted") as queue:
        queue.pause()

    here.write("atomic", "before")
    atomic = here.subscriber("atomic", 2).start()
    replace_atomically(atomic, here.name("sink"))

    with Conversation(here.connection, here.name("once"), 1) as conversation:
        more_shards(here, ("flow", *grown))
        expected = [
            f"{here.name(stem)}: has {count} shards from now on"
            for stem, count in (("flow", 4), *((s, 2) for s in grown))
        ]
        until(lambda: all(one in worker.text for one in expected), "they have their shards", 60)
        until(lambda: len(conversation.partitions) == 2, "commands go to the new shards, too", 30)
    refused = here.lapse("queue", "partitions", here.name("ranked"))
    assert refused.returncode == 1
    assert 'priority over 4 shards requires ordering = "total"' in refused.stderr

    with here.queue("flow") as queue:
        assert settled(queue, "cancel", bookmark(here, "flow", 3, 1)) == ["settled"], "the older shard has it still"
        assert queue.depth()["scheduled"] == 0
        assert settled(queue, "acknowledge", bookmark(here, "flow", 3, 1)) == ["already_settled"]
        with pytest.raises(ValueError, match=f"topic {here.name('flow')} has partitions 0 to 3"):
            settled(queue, "acknowledge", bookmark(here, "flow", 4, 0))
    assert received(here, "deep") == "first"
    assert received(here, "deep", 60) == "third"
    here.write("once", "repeated", partition=1, headers=[(header.MESSAGE_ID, b"a")])
    here.write("once", "new", partition=1)
    assert received(here, "once", 60) == "new"
    here.write("halted", "held", partition=1)
    with here.queue("halted") as queue:
        until(lambda: queue.depth()["available"] == 1, "the new shard reads", 60)
        assert received(here, "halted", 3) is None, "all shards are paused"
        queue.resume()
        assert received(here, "halted") == "held"
    here.write("atomic", "after", partition=1)
    with atomic:
        replace_atomically(atomic, here.name("sink"))
    assert {received(here, "sink"), received(here, "sink")} == {"before", "after"}


@pytest.mark.feature("Q8", "X7", "Q17")
def test_a_bookmark_of_a_partition_that_its_topic_does_not_have_is_refused(deploy: Deploy) -> None:
    """Whatever the queue's number of shards is, and nothing is settled then."""
    total = {"topics": ["wide{}", "narrow{}"], "ordering": "total", "default_publish_target": "wide{}"}
    here = deploy({"plain": {"partitions": 2}, "total": total, "sink": {}})
    admin = AdminClient({"bootstrap.servers": here.servers})
    create(admin, *(NewTopic(here.name(stem), count, 1) for stem, count in (("wide", 3), ("narrow", 1))))
    here.apply().worker().wait_for_shards(4)
    for stem, topic in (("plain", "plain"), ("total", "wide")):
        here.write(topic, "kept", partition=1)
        until(lambda stem=stem: here.depth(stem)["depth"] == 1, "the message is there")
    wrong = {"plain": ("plain", 2, "s 0 to 1"), "total": ("wide", 3, "s 0 to 2")}
    for stem, (topic, number, has) in wrong.items():
        there, missing = (bookmark(here, topic, at, 0) for at in (1, number))
        line = f"{missing}: topic {here.name(topic)} has partition{has}"
        with here.queue(stem) as queue, pytest.raises(ValueError, match=line):
            settled(queue, "expire", there, missing)
        named = ("queue", "cancel", here.name(stem), missing)
        to = ("--to", here.servers, "--to-queue", here.name("sink"), "--bookmark", there, "--bookmark", missing)
        moving = ("transfer", here.name(stem), *to)
        for command in (named, moving, (*moving, "--dry-run")):
            done = here.lapse(*command)
            assert (done.returncode, line in " ".join(done.stderr.split())) == (1, True), done.stderr
        assert here.depth(stem)["depth"] == here.depth(stem)["available"] == 1
    with here.queue("total") as queue:
        with pytest.raises(ValueError, match=f"{here.name('narrow')} has partition 0 only"):
            settled(queue, "acknowledge", bookmark(here, "narrow", 1, 0))
        assert settled(queue, "acknowledge", bookmark(here, "wide", 1, 0), "elsewhere:7:0") == ["settled", "unknown"]
