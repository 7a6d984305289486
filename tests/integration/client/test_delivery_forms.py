"""Every way in which a queue hands out works, whether messages come packed, one by one or by reference."""

import json
import logging
import time
from typing import Literal

import pytest
from confluent_kafka import Producer

from lapse.protocol import packed_delivery
from lapse_client import LapseError, QueueSubscriber
from lapse_client.delivery.delivery import Delivery
from support.kafka.log import until
from support.processes.deployment import Deployment
from support.suite.at_length import cases

QUEUES = {
    "plain": {"expiration": "enabled"},
    "ranked": {"priority": "/n"},
    "accounts": {"group_by": "/account"},
    "all": {"topics": ["left{}", "right{}"], "ordering": "total"},
    "days": {"ordering": "total", "barrier": "/type = 'EOD'"},
    "once": {"semantics": "at-most-once"},
    "short": {"lease_period": "2s"},
    "large": {},
    "misread": {},
}

Payload = Literal["packed", "inline", "reference"]
FORMS = pytest.mark.parametrize("payload", cases(["packed"], long=["inline", "reference"]))
EVERY_FORM = pytest.mark.parametrize("payload", ["packed", "inline", "reference"])


def published(served: Deployment, queue: str, *payloads: object) -> None:
    """Publish JSON payloads, and wait until the queue has them, so that they can be handed out together."""
    served.write(queue, *(json.dumps(payload) for payload in payloads))
    until(lambda: served.depth(queue)["depth"] >= len(payloads), "they are in the queue")


def received(subscriber: QueueSubscriber, count: int) -> list[Delivery]:
    """So many deliveries, in their order."""
    got: list[Delivery] = []
    while len(got) < count:
        some = subscriber.receive(20)
        assert some is not None, f"{len(got)} of {count}"
        got.append(some)
    return got


def parsed(some: list[Delivery]) -> list[object]:
    return [json.loads(one.value or b"null") for one in some]


@EVERY_FORM
@pytest.mark.feature("D4", "X3", "L3")
def test_a_message_comes_as_it_was_published(served: Deployment, payload: Payload) -> None:
    foreign = [("b", b"1"), ("a", b"2"), ("b", None), ("ü", b"\xff")]
    until_ms = time.time_ns() // 1_000_000 + 60_000
    with served.queue("plain") as queue:
        queue.pause()
        served.write("plain", "both", key=b"key", headers=[*foreign, ("lapse-expires-at-ms", b"%d" % until_ms)])
        served.write("plain", None, key=b"", headers=[("lapse-ttl-ms", b"0")])
        served.write("plain", "", "x" * 300)
        until(lambda: served.depth("plain")["depth"] == 4, "four messages")
        with served.subscriber("plain", 10, payload=payload) as subscriber:
            deliveries = served.tail(f"lapse.{served.name('plain')}.deliveries", from_end=True)
            queue.resume()
            got = received(subscriber, 4)
            assert [(one.key, one.value) for one in got] == [
                (b"key", b"both"),
                (b"", None),
                (None, b""),
                (None, b"x" * 300),
            ]
            ours = [[item for item in one.headers if not item[0].startswith("lapse-")] for one in got]
            assert ours == [foreign, [], [], []]
            assert [one.expires_at_ms for one in got] == [until_ms, None, None, None]
            assert all(abs(one.timestamp_ms - time.time() * 1000) < 60_000 for one in got)
            assert [one.delivery_count for one in got] == [1] * 4
            assert {one.lease_until_ms for one in got} != {None}
            offsets = [one.bookmark.offset for one in got]
            assert offsets == list(range(offsets[0], offsets[0] + 4))
            assert all(one.settled for one in subscriber.settle("acknowledge", got, wait=True))
            kinds = {dict(one.headers() or ())["lapse-kind"] for one in deliveries.drain()} - {b"answer"}
            assert kinds == {payload.encode() if payload != "inline" else b"delivery"}
    assert served.depth("plain")["depth"] == 0


@FORMS
@pytest.mark.feature("Q11", "Q14", "D4")
def test_priorities_and_filters_decide_what_comes_and_in_which_order(served: Deployment, payload: Payload) -> None:
    published(served, "ranked", *({"n": n, "odd": n % 2} for n in (3, 1, 7, 2, 5, 4)))
    with served.subscriber("ranked", 10, payload=payload, filter="/odd = 1") as subscriber:
        got = received(subscriber, 4)
        assert [one["n"] for one in parsed(got)] == [7, 5, 3, 1]
        subscriber.acknowledge(got)
    with served.subscriber("ranked", 10, payload=payload) as subscriber:
        got = received(subscriber, 2)
        assert [one["n"] for one in parsed(got)] == [4, 2]
        subscriber.acknowledge(got)
    until(lambda: served.depth("ranked")["depth"] == 0, "all are settled")


@FORMS
@pytest.mark.feature("Q20", "D4")
def test_of_a_group_one_message_comes_at_a_time(served: Deployment, payload: Payload) -> None:
    published(served, "accounts", *({"account": account, "n": n} for n in range(2) for account in "ab"))
    with served.subscriber("accounts", 10, payload=payload) as subscriber:
        first = received(subscriber, 2)
        assert [one["n"] for one in parsed(first)] == [0, 0]
        assert subscriber.receive(0.5) is None
        subscriber.acknowledge(first)
        second = received(subscriber, 2)
        assert sorted((one["account"], one["n"]) for one in parsed(second)) == [("a", 1), ("b", 1)]
        subscriber.acknowledge(second)
    until(lambda: served.depth("accounts")["depth"] == 0, "all are settled")


@FORMS
@pytest.mark.feature("Q17", "C33", "D4")
def test_in_total_order_messages_of_several_topics_come_as_they_arrived(served: Deployment, payload: Payload) -> None:
    for number in range(6):
        served.write("left" if number % 2 else "right", str(number))
        # A broker may read the one topic before, and the other one behind, a message for the same fetch.
        until(lambda many=number + 1: served.depth("all")["depth"] == many, "it arrived before the next one")
    with served.subscriber("all", 10, payload=payload) as subscriber:
        got = received(subscriber, 6)
        assert parsed(got) == list(range(6))
        assert {one.bookmark.topic for one in got} == {served.name("left"), served.name("right")}
        assert all(one.settled for one in subscriber.settle("acknowledge", got, wait=True))


@FORMS
@pytest.mark.feature("Q12", "D4")
def test_a_barrier_comes_by_itself_when_all_before_it_is_settled(served: Deployment, payload: Payload) -> None:
    published(served, "days", {"n": 1}, {"n": 2}, {"type": "EOD"}, {"n": 3})
    with served.subscriber("days", 10, payload=payload) as subscriber:
        before = received(subscriber, 2)
        assert subscriber.receive(0.5) is None
        subscriber.acknowledge(before)
        barrier, behind = received(subscriber, 2)
        assert barrier.is_barrier
        assert parsed([barrier, behind]) == [{"type": "EOD"}, {"n": 3}]
        assert not behind.is_barrier
        behind.acknowledge()
    until(lambda: served.depth("days")["depth"] == 0, "all are settled")


@FORMS
@pytest.mark.feature("Q6", "C18", "D4")
def test_at_most_once_has_no_lease_and_nothing_left(served: Deployment, payload: Payload) -> None:
    published(served, "once", *range(4))
    with served.subscriber("once", 3, payload=payload) as subscriber:
        got = received(subscriber, 3)
        assert {one.lease_until_ms for one in got} == {None}
        assert subscriber.receive(0.5) is None, "the backlog is full"
        got[0].cancel()
        subscriber.acknowledge(got[1:])
        assert parsed([*got, *received(subscriber, 1)]) == list(range(4))
    until(lambda: served.depth("once")["depth"] == 0, "nothing is left")


@EVERY_FORM
@pytest.mark.feature("Q5", "Q8", "C13", "D4")
def test_what_comes_again_has_its_own_count_and_is_settled_with_it(served: Deployment, payload: Payload) -> None:
    """After a cancel and a lease that ended, messages with different counts come together."""
    published(served, "short", *range(6))
    with served.subscriber("short", 6, payload=payload) as subscriber:
        first = received(subscriber, 6)
        for one in first[:4]:
            one.cancel(delay_ms=200)
        again = received(subscriber, 4)
        assert [one.delivery_count for one in again] == [2] * 4
        assert first[4].lease_until_ms is not None
        third = received(subscriber, 6)
        assert sorted((one.bookmark.offset - first[0].bookmark.offset, one.delivery_count) for one in third) == [
            *((at, 3) for at in range(4)),
            *((at, 2) for at in range(4, 6)),
        ]
        assert {one.result for one in subscriber.settle("expire", again, wait=True)} == {"stale"}
        assert all(one.settled for one in subscriber.settle("acknowledge", third, wait=True))
    assert served.depth("short")["depth"] == 0


@FORMS
@pytest.mark.feature("D4", "X7")
def test_payloads_up_to_the_limit_of_the_topic_come_in_their_order(served: Deployment, payload: Payload) -> None:
    sizes = [1, 999_000, 10, 500_000, 400_000, 300_000, 0, 999_000]
    for size in sizes:
        served.write("large", b"x" * size)
    until(lambda: served.depth("large")["depth"] == len(sizes), "all are in the queue")
    with served.subscriber("large", 20, payload=payload) as subscriber:
        got = received(subscriber, len(sizes))
        assert [len(one.value or b"") for one in got] == sizes
        subscriber.acknowledge(got)
    until(lambda: served.depth("large")["depth"] == 0, "all are settled")


def forged(served: Deployment, subscription: str, body: bytes) -> None:
    """Write a packed delivery for a subscription that no worker has written."""
    producer = Producer({"bootstrap.servers": served.servers})
    headers = [("lapse-kind", packed_delivery.KIND), ("lapse-subscription", subscription.encode())]
    producer.produce(f"lapse.{served.name('misread')}.deliveries", body, partition=0, headers=headers)
    assert producer.flush(20) == 0


@pytest.mark.feature("D4", "X7")
def test_damage_is_dropped_with_a_warning_and_another_version_ends_the_subscriber(
    served: Deployment, caplog: pytest.LogCaptureFixture
) -> None:
    body = packed_delivery.encode("t", 0, bytes(8), bytes(8), bytes(4), [b"value"])
    with served.subscriber("misread", 5, name="inky") as subscriber, caplog.at_level(logging.WARNING, "lapse_client"):
        forged(served, "inky", body[:-1])
        served.write("misread", "good")
        (got,) = received(subscriber, 1)
        assert got.value == b"good"
        got.acknowledge()
        assert "is dropped, what it hands out comes again when the leases end: packed delivery" in caplog.text
        forged(served, "inky", body[:2] + b"\x09" + body[3:])
        with pytest.raises(LapseError, match="packed delivery of version 9, and this client reads version 1: bring"):
            subscriber.receive(20)
