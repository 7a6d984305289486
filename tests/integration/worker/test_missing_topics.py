"""A topic that is missing, or not of the right shape, concerns the entity that names it, and no other (C52, C81)."""

import functools
import json
import time
import urllib.request
from typing import Any

import pytest
from confluent_kafka.admin import (
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    NewPartitions,
    NewTopic,
    ResourceType,
)

from lapse_client import SowClient
from support.kafka import created_topic
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, WorkerProcess
from support.processes.figures import free_port, scraped

REFUSED = 1


@functools.cache
def admin(here: Deployment) -> AdminClient:
    return AdminClient({"bootstrap.servers": here.servers})


def topics(here: Deployment) -> set[str]:
    return set(admin(here).list_topics(timeout=15).topics)


def delete(here: Deployment, *names: str) -> None:
    for future in admin(here).delete_topics(list(names)).values():
        future.result(15)
    until(lambda: not set(names) & topics(here), "the topics gone")


def create(here: Deployment, name: str, partitions: int = 1) -> None:
    new = NewTopic(name, partitions, 1, config={"message.timestamp.type": "LogAppendTime"})
    created_topic.create(admin(here), new)


def receives(here: Deployment, stem: str, *values: bytes, timeout_s: float = 30.0) -> None:
    """Check that a queue hands out these messages, and acknowledge them."""
    with here.subscriber(stem, 10, timeout_s=60) as subscriber:
        got = set()
        deadline = time.monotonic() + timeout_s
        while got != set(values) and time.monotonic() < deadline:
            if (one := subscriber.receive(1)) is not None:
                got.add(one.value)
                subscriber.settle("acknowledge", [one], wait=True)
        assert got == set(values)


def logged(worker: WorkerProcess, *words: str) -> list[str]:
    """The warnings of a worker that have all of these words."""
    return [line for line in worker.text.splitlines() if all(word in line for word in words)]


def ready(port: int) -> dict[str, Any]:
    """What a worker says of itself."""
    with urllib.request.urlopen(f"http://127.0.0.1:{port}/ready", timeout=10) as answer:
        facts: dict[str, Any] = json.loads(answer.read())
    return facts


def check_fails_for(here: Deployment, topic: str) -> None:
    found = here.lapse("check", "--json")
    assert found.returncode == REFUSED
    assert topic in {one["topic"] for one in json.loads(found.stdout)["differences"]}


@pytest.mark.feature("C52")
def test_a_missing_dead_letter_topic_holds_up_its_letters_only(deploy: Deploy) -> None:
    here = deploy({"sick": {"expiration": "1s"}, "well": {}}).apply()
    worker = here.worker().wait_for_shards(2)
    letters = f"dlq.{here.name('sick')}"
    delete(here, letters)
    here.write("sick", "dies before the worker")
    until(lambda: here.depth("sick").get("dying") == 1, "a message whose letters have lost their topic")
    assert "never retrieved" not in worker.text
    worker.kill()
    worker.start().wait_for_shards(2)
    assert len(logged(worker, f"queue {here.name('sick')}", letters, "missing", "lapse apply")) == 1
    check_fails_for(here, letters)
    here.write("well", "a")
    receives(here, "well", b"a")
    here.write("sick", "dies")
    until(lambda: here.depth("sick").get("dying") == 2, "a message that waits for its letter")
    here.write("sick", "lives")
    receives(here, "sick", b"lives")
    here.apply()
    here.letters("sick", 2, timeout_s=40)
    until(lambda: here.depth("sick").get("dying") == 0, "its letter is safe")
    assert worker.running
    assert worker.shards == 2


@pytest.mark.feature("C52")
@pytest.mark.parametrize(
    "kind",
    [
        {},
        {"ordering": "total", "topics": ["sick{}", "there{}"]},
        {"topic_pattern": "sick-more-.*", "topics": ["sick{}"]},
    ],
)
def test_a_missing_underlying_topic_is_taken_up_once_it_exists(deploy: Deploy, kind: dict[str, object]) -> None:
    beside = {"topics": ["well{}", "sick{}"]} if not kind else {}  # another queue reads the topic as well
    here = deploy({"sick": {"partitions": 1, **kind}, "well": beside}).apply()
    worker = here.worker().wait_for_shards(2)
    here.write("sick", "first")
    receives(here, "sick", b"first")
    here.write("sick", "never read")
    until(lambda: here.depth("sick")["depth"] == 1, "the message")
    if beside:
        receives(here, "well", b"first", b"never read")
    delete(here, here.name("sick"))
    worker.kill()
    worker.start().wait_for_shards(2)
    assert len(logged(worker, f"queue {here.name('sick')}", "underlying", "missing", "lapse apply")) == 1
    check_fails_for(here, here.name("sick"))
    here.write("well", "a")
    receives(here, "well", b"a")
    assert here.depth("sick") is not None
    if "ordering" in kind:
        here.write("there", "goes on", "before")
        with here.subscriber("sick") as subscriber:
            one = subscriber.receive(20)
            assert one is not None
            assert one.value == b"goes on"
            subscriber.settle("acknowledge", [one], wait=True)
    here.apply()
    here.write("sick", "second", "third")
    if "ordering" in kind:
        with here.queue("sick") as queue:
            until(lambda: queue.depth()["depth"] == 3, "all messages", 60)
            places = [one.bookmark.partition(":")[0] for one in queue.peek()]
        assert places == [here.name(stem) for stem in ("there", "sick", "sick")]
        receives(here, "sick", b"before", b"second", b"third")
        return
    receives(here, "sick", b"second", b"third", timeout_s=60)
    here.write("well", "b")
    receives(here, "well", b"b", *((b"second", b"third") if beside else ()))
    assert worker.running
    assert len(logged(worker, "ERROR")) < 20


@pytest.mark.feature("C52", "C42", "S10")
def test_a_topic_that_goes_and_comes_while_the_worker_runs_stops_nobody(deploy: Deploy) -> None:
    port = free_port()
    here = deploy({})
    here.configure({"sick": {}, "well": {}}, {"prices": {}, "gone": {}}, metrics_port=port)

    def counted_as_missing() -> set[str]:
        return {labels[0] for name, *labels in scraped(port) if name == "lapse_missing_topics"}

    worker = here.apply().worker().wait_for_shards(4)
    here.write("sick", "lost")
    until(lambda: here.depth("sick")["depth"] == 1, "the message")
    delete(here, here.name("sick"), here.name("gone"))
    until(lambda: logged(worker, here.name("sick"), "underlying", "missing"), "it is told", 40)
    until(lambda: counted_as_missing() == {here.name("gone"), here.name("sick")}, "the figures tell of both")
    here.write("well", "a")
    receives(here, "well", b"a")
    here.write("prices", "7", key=b"A")
    with SowClient(here.name("prices"), connection=here.connection) as prices:
        until(lambda: [one.value for one in prices.query()] == [b"7"], "the record of another SOW topic")
    create(here, here.name("sick"))
    create(here, here.name("gone"))
    with SowClient(here.name("gone"), connection=here.connection) as gone:
        here.write("gone", "8", key=b"B")
        until(lambda: [one.value for one in gone.query()] == [b"8"], "the record of the SOW topic that came back", 60)
        for value, stamp_ms in (("later", 2), ("earlier", 1)):
            origin = [("lapse-origin", b"there"), ("lapse-origin-timestamp-ms", b"%d" % stamp_ms)]
            here.write("gone", value, key=b"C", headers=origin)
        here.write("gone", "9", key=b"D")
        until(lambda: {one.value for one in gone.query(keys=["C", "D"])} == {b"later", b"9"}, "what was brought to it")
    here.write("sick", "found")
    until(lambda: logged(worker, here.name("sick"), "taken over anew"), "the shard knows", 40)
    receives(here, "sick", b"found", timeout_s=60)
    here.letters("sick", 1, timeout_s=40)
    assert worker.running
    assert not counted_as_missing()
    assert len(logged(worker, "ERROR")) < 50
    assert len(logged(worker, here.name("sick"), "underlying", "missing")) == 1


FORWARDING = {
    "counted": {"max_deliveries": 1},
    "once": {"semantics": "at-most-once"},
    "marked": {"ordering": "total", "barrier": "/type = 'EOD'"},
}
"""Where a delivery that the target does not take must cost nothing."""

MARKER = b'{"type": "EOD"}'


@pytest.mark.feature("C81", "Q21", "Q6", "Q9", "Q12", "C35", "X7")
def test_a_missing_forward_target_keeps_the_messages_in_their_queue(deploy: Deploy) -> None:
    kinds = {stem: {**kind, "forward_to": f"{stem}-target{{}}"} for stem, kind in FORWARDING.items()}
    here = deploy({"sick": {"forward_to": "target{}"}, "well": {}, **kinds}).apply()
    target, targets = here.name("target"), {stem: here.name(f"{stem}-target") for stem in kinds}
    assert target in topics(here)
    worker = here.worker().wait_for_shards(5)
    here.write("sick", "one")
    tail = here.tail(target)
    assert [one.value() for one in tail.wait(1, 20)] == [b"one"]
    tail.close()
    delete(here, target, *targets.values())
    here.write("sick", "two")  # while it runs, and before anybody has looked
    for stem in kinds:
        here.write(stem, MARKER, "behind")
    until(lambda: here.depth("sick")["depth"] == 1, "the message stays")
    for stem in kinds:
        until(lambda stem=stem: here.depth(stem)["available"] == 2, "they stay")
    worker.kill()
    worker.start().wait_for_shards(5)
    assert len(logged(worker, f"queue {here.name('sick')}", target, "missing", "lapse apply")) == 1
    check_fails_for(here, target)
    here.write("well", "a")
    receives(here, "well", b"a")
    here.write("sick", "three")
    until(lambda: here.depth("sick")["depth"] == 2, "the messages stay")
    here.apply()
    tail = here.tail(target)
    assert {one.value() for one in tail.wait(2, 40)} == {b"two", b"three"}
    until(lambda: here.depth("sick")["depth"] == 0, "they were handed on")
    for stem, topic in targets.items():
        tail = here.tail(topic)
        assert [one.value() for one in tail.wait(2, 40)] == [MARKER, b"behind"]
        until(lambda stem=stem: not here.depth(stem)["available"], "they have left")
        events = {one.event for one in here.events(stem) if one.messages}
        assert events == {"acknowledged"}, "and nothing came between, at most once as well"
    limit = ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, targets["marked"], incremental_configs=[limit])
    admin(here).incremental_alter_configs([resource])[resource].result(15)
    here.write("marked", MARKER[:-1] + b', "pad": "%b"}' % (b"x" * 5_000))
    (letter,) = here.letters("marked", 1, 40)
    assert b"cannot be forwarded" in dict(letter.headers() or ())["__dlq.errors.message"]
    delete(here, target, targets["marked"])  # and once more, without a restart
    here.write("sick", "four")
    until(lambda: here.depth("sick")["depth"] == 1, "the message stays")
    with here.subscriber("marked") as subscriber:  # a forwarder without its target is no subscription
        here.write("marked", MARKER)
        delivery = subscriber.receive(20)
        assert delivery is not None
        assert (delivery.is_barrier, delivery.value) == (True, MARKER)
    here.write("marked", "later")
    create(here, target, 2)
    create(here, targets["marked"], 1)
    for topic, value in ((target, b"four"), (targets["marked"], b"later")):
        assert [one.value() for one in here.tail(topic).wait(1, 40)] == [value]
    assert worker.running


@pytest.mark.feature("C81")
@pytest.mark.parametrize("restart", [False, True])
def test_partitions_that_are_added_to_an_underlying_topic_stop_nobody(deploy: Deploy, restart: bool) -> None:
    here = deploy({"sick": {"partitions": 2}, "well": {}}).apply()
    port = free_port()
    here.configure({"sick": {"partitions": 2}, "well": {}}, {"state": {"partitions": 2}}, metrics_port=port)
    here.apply()
    worker = here.worker().wait_for_shards(5)
    here.write("sick", "before", partition=1)
    receives(here, "sick", b"before")
    for stem, count in (("sick", 3), ("state", 3)):
        topic = here.name(stem)
        admin(here).create_partitions([NewPartitions(topic, count)])[topic].result(15)
    if restart:
        worker.kill()
        worker.start().wait_for_shards(5)
    until(lambda: logged(worker, here.name("sick"), "3 partitions"), "it is told", 40)
    check_fails_for(here, here.name("sick"))
    here.write("well", "a")
    receives(here, "well", b"a")
    for partition in range(3):
        here.write("sick", f"after {partition}", partition=partition)
    receives(here, "sick", b"after 0", b"after 1", b"after 2", timeout_s=60)
    for number in range(3):
        here.write("state", str(number), partition=2, key=b"k")
    until(lambda: logged(worker, here.name("state"), "3 records", "read by nobody"), "the unread records are told", 40)
    beyond = {here.name("sick"): {here.name("sick"): 1}, here.name("state"): {here.name("state"): 1}}
    assert ready(port)["added_partitions"] == beyond
    for stem, unread in (("sick", 0), ("state", 3)):
        figures = scraped(port, here.name(stem))
        assert figures["lapse_added_partitions", here.name(stem)] == 1
        assert figures["lapse_unread_records", here.name(stem)] == unread
    found = here.lapse("doctor", "--json").stdout.splitlines()
    wrong = [one["text"] for one in map(json.loads, found) if one["verdict"] == "wrong"]
    assert any(here.name("state") in one and "3 partitions" in one for one in wrong)
    assert len(logged(worker, here.name("state"), "3 partitions")) == 1
    assert len(logged(worker, "read by nobody")) == 1
    assert worker.running


@pytest.mark.feature("C52", "C90")
def test_an_entity_whose_own_topics_are_missing_is_served_once_they_are_there(deploy: Deploy) -> None:
    """Without a restart, by both workers, and the other queue goes on meanwhile."""
    here = deploy({"well": {}}).apply()
    here.configure({"sick": {}, "well": {}}, {"state": {}})
    workers = [here.worker().wait_for_shards(1), here.worker()]
    for worker in workers:
        until(lambda worker=worker: logged(worker, here.name("sick"), "cannot be served", "lapse apply"), "it is told")
    here.write("well", "a")
    receives(here, "well", b"a")
    with here.subscriber("well", 10) as subscriber:
        here.apply()
        served = False
        deadline = time.monotonic() + 60
        while not served and time.monotonic() < deadline:
            here.write("well", "b")
            delivery = subscriber.receive(20)
            assert delivery is not None
            subscriber.settle("acknowledge", [delivery], wait=True)
            served = all(logged(worker, here.name("sick"), "is served") for worker in workers)
        assert served
    here.write("sick", "c")
    receives(here, "sick", b"c")
    here.write("state", b'{"n": 1}', key=b"k")
    with SowClient(here.name("state"), connection=here.connection) as state:
        until(lambda: [record.key for record in state.query()] == [b"k"], "the record")
    workers[0].kill()
    here.write("sick", "d")
    receives(here, "sick", b"d", timeout_s=60)
    assert workers[1].running
