"""Topics that are deleted and created again, or lose their beginning, under and beside workers (C40, C42)."""

import re
import time

import pytest
from confluent_kafka import TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.topic_creation import NewTopic
from lapse_client import DeadLetterReader, SowClient, TransactionFailed
from support.kafka.created_topic import create
from support.kafka.log import texts, until, write
from support.processes.deployment import Deploy, Deployment


@pytest.mark.feature("C42", "C13", "D2", "D3", "L14", "X9")
def test_a_topic_created_again_while_no_worker_runs_is_another_one(deploy: Deploy) -> None:
    """Old messages leave with letters of headers only, new ones are read from offset 0, old settlements are stale."""
    here = deploy({"orders": {"lease_period": "5m"}}, session_timeout="2s").apply()
    worker = here.worker().wait_for_shards(1)
    here.write("orders", *(f"old {number}" for number in range(5)), headers=[("mine", b"1")])
    with here.subscriber("orders", 3, timeout_s=60) as subscriber:
        old = [one for one in (subscriber.receive(20) for _ in range(3)) if one is not None]
        subscriber.settle("acknowledge", old[:1], wait=True)
        worker.kill()
        here.recreate(here.name("orders"))
        here.write("orders", *(f"new {number}" for number in range(8)))
        worker.start().wait_for_shards(1)
        until(lambda: "was deleted and created again" in worker.text, "the worker to say so")
        got = []
        while len(got) < 2:
            delivery = subscriber.receive(20)
            assert delivery is not None
            if (delivery.value or b"").startswith(b"new"):
                got.append(delivery)
        assert [one.bookmark.offset for one in got] == [0, 1]
        # Offset 1 was delivered once then and once now: the epoch tells the two apart.
        (late,) = subscriber.settle("acknowledge", old[1:2], wait=True)
        assert late.result == "stale"
        with pytest.raises(TransactionFailed, match="its lease was lost"), old[2].transaction() as tx:
            tx.produce(here.name("orders"), b"never")
        (right,) = subscriber.settle("acknowledge", got[1:2], wait=True)
        assert right.settled
    with here.queue("orders") as queue:
        name = here.name("orders")
        assert [one.result for one in queue.acknowledge([f"{name}:0:4#1"])] == ["stale"]
        assert [one.result for one in queue.acknowledge([f"{name}:0:20#1"])] == ["unknown"]
    letters = here.letters("orders", 4)
    assert [letter.value() for letter in letters] == [None] * 4
    assert {texts(letter)["lapse-reasons"] for letter in letters} == {"log_truncated"}
    assert [int(texts(letter)["__dlq.errors.offset"]) for letter in letters] == [1, 2, 3, 4]
    with here.queue("orders") as queue:
        assert queue.expire([f"{name}:0:2"])[0].settled
    worker.kill()
    worker.start().wait_for_shards(1)
    assert here.depth("orders")["depth"] == 6, "closed once only"
    assert "was deleted and created again" not in worker.text
    # The new messages have the offsets of the old ones. Their letters are no copies, which readers would leave out.
    with here.queue("orders") as queue:
        assert [one.settled for one in queue.expire([f"{name}:0:3-4"])] == [True]
    ids = [texts(letter)["lapse-id"] for letter in here.letters("orders", 7)]
    old_ids, new_ids = ([one.partition("/") for one in some] for some in (ids[:4], ids[4:]))
    assert [one[2] for one in new_ids] == [one[2] for one in old_ids[1:]]
    assert {one[0] for one in old_ids} == {here.name("orders")}
    assert re.fullmatch(re.escape(here.name("orders")) + "@[1-9][0-9]*", *{one[0] for one in new_ids})
    assert len(list(DeadLetterReader(here.name("orders"), connection=here.connection))) == 7


@pytest.mark.feature("C42", "C1", "S8")
def test_a_topic_created_again_under_a_running_worker_is_noticed(deploy: Deploy) -> None:
    """The worker takes their shards over anew, without a restart; a SOW topic keeps its records."""
    here = deploy({})
    here.configure(
        {"orders": {"topic_pattern": "orders{}-.*", "default_publish_target": "orders{}-a"}, "plain": {}},
        {"prices": {}},
        session_timeout="2s",
    )
    here.apply()
    worker = here.worker(supervised=True).wait_for_shards(3)
    names = {stem: here.name(stem) for stem in ("orders", "plain", "prices")}
    pattern = f"{names['orders']}-a"
    for stem in ("plain", "prices"):
        here.write(stem, '{"n": 1}', '{"n": 2}', key=b"old")
    producer_write(here, pattern, 3)
    until(lambda: here.depth("orders")["depth"] == 3, "the messages of the pattern")
    until(lambda: here.depth("plain")["depth"] == 2, "the messages of the plain topic")
    for name in (names["plain"], names["prices"], pattern):
        here.recreate(name)
    producer_write(here, pattern, 1)
    here.write("plain", '{"n": 3}')
    here.write("prices", '{"n": 4}', key=b"new")
    until(lambda: here.depth("plain")["depth"] == 1, "the new message alone", 60)
    until(lambda: here.depth("orders")["depth"] == 1, "the new message of the pattern alone", 60)
    assert "deleted and created again" in worker.log.read_text()
    assert worker.log.read_text().count("No users are configured") == 1, "it is the same process"
    assert len(here.letters("plain", 2)) == 2
    assert len(here.letters("orders", 3)) == 3
    with here.subscriber("plain", 5, timeout_s=60) as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        assert (delivery.value, delivery.bookmark.offset) == (b'{"n": 3}', 0)
        subscriber.settle("acknowledge", [delivery], wait=True)
    with SowClient(names["prices"], connection=here.connection) as client:
        until(lambda: {one.key for one in client.query()} == {b"old", b"new"}, "old and new records")


@pytest.mark.feature("C40", "L14")
def test_records_that_kafka_removed_leave_though_nobody_reads(deploy: Deploy) -> None:
    here = deploy({"orders": {}}).apply()
    here.worker().wait_for_shards(1)
    here.write("orders", *(str(number) for number in range(10)))
    later = str(time.time_ns() // 1_000_000 + 3_600_000).encode()
    here.write("orders", "scheduled", headers=[("lapse-enqueue-at-ms", later)])
    here.write("orders", "last")
    until(lambda: here.depth("orders")["depth"] == 11, "the messages")
    admin = AdminClient({"bootstrap.servers": here.servers})
    place = TopicPartition(here.name("orders"), 0, 11)
    admin.delete_records([place])[place].result(15)
    letters = here.letters("orders", 11, 30)
    assert {texts(letter)["lapse-reasons"] for letter in letters} == {"log_truncated"}
    assert {letter.value() for letter in letters} == {None}
    left = here.depth("orders")
    assert (left["depth"], left["scheduled"]) == (1, 0)


@pytest.mark.feature("C40", "Q2")
def test_messages_of_a_topic_that_was_deleted_leave_and_the_queue_goes_on(deploy: Deploy) -> None:
    """Read or not: a topic of a pattern that is gone, payloads and all, holds nothing up."""
    here = deploy(
        {
            "read": {"topic_pattern": "data{}-.*", "default_publish_target": "data{}-a"},
            "unread": {"topic_pattern": "data{}-.*", "default_publish_target": "data{}-a"},
        },
        session_timeout="2s",
    ).apply()
    worker = here.worker(supervised=True).wait_for_shards(2)
    admin = AdminClient({"bootstrap.servers": here.servers})
    gone, stays = here.name("data") + "-b", here.name("data") + "-a"
    create(admin, NewTopic(gone, 1, 1))
    write(here.servers, gone, [b"%d" % number for number in range(3)])
    for queue in ("read", "unread"):
        until(lambda queue=queue: here.depth(queue)["depth"] == 3, f"the messages in {queue}")
    worker.kill()
    admin.delete_topics([gone])[gone].result(15)
    write(here.servers, stays, [b"after"])
    worker.start().wait_for_shards(2)
    with here.subscriber("read", 10, timeout_s=60) as subscriber:
        values = set()
        while b"after" not in values:
            delivery = subscriber.receive(60)
            assert delivery is not None
            values.add(delivery.value)
            delivery.acknowledge()
    until(lambda: here.depth("unread")["depth"] == 1, "what is left", 90)
    assert len(here.letters("unread", 3)) == 3
    assert worker.running


def producer_write(here: Deployment, topic: str, count: int) -> None:
    write(here.servers, topic, [b"%d" % number for number in range(count)])
