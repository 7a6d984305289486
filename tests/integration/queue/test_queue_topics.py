"""Queues as views: several over one topic, one over several topics, each independent of the others."""

import pytest
from confluent_kafka import Producer

from lapse_client import Publisher, Queue
from support.kafka.log import texts, until, write
from support.processes.deployment import Deploy, Deployment, broker_now_ms

QUEUES = {
    "same": {},
    "first": {"topics": ["shared{}"]},
    "second": {"topics": ["shared{}"], "expiration": "2s"},
    "third": {"topics": ["shared{}"], "semantics": "at-most-once"},
    "analytics": {
        "topics": ["orders{}", "analytics-direct{}"],
        "default_publish_target": "analytics-direct{}",
    },
    "risk": {"topics": ["orders{}", "risk-direct{}"], "default_publish_target": "risk-direct{}"},
    "packed": {"topics": ["packed-topic{}"]},
    "committed": {"topics": ["committed-topic{}"]},
}


def received(served: Deployment, queue: str, count: int) -> list[bytes | None]:
    """Receive and acknowledge so many messages."""
    got = []
    with served.subscriber(queue, 100) as subscriber:
        for delivery in subscriber.messages(timeout=15):
            got.append(delivery.value)
            delivery.acknowledge()
            if len(got) == count:
                break
    return got


@pytest.mark.feature("Q1")
def test_a_queue_may_bear_its_topics_own_name(served: Deployment) -> None:
    """The same record is a queue's message and, to any consumer, a record of an ordinary topic, before and after."""
    served.write("same", "x")
    assert received(served, "same", 1) == [b"x"]
    assert [message.value() for message in served.tail(served.name("same")).wait(1)] == [b"x"]


@pytest.mark.feature("Q1", "L8")
def test_queues_over_one_topic_do_not_touch_one_another(served: Deployment) -> None:
    """One acknowledges, one lets expire, one delivers at most once: each has every message, and its own end for it."""
    served.write("shared", "a", "b", "c")
    assert received(served, "first", 2) == [b"a", b"b"]
    assert [letter.value() for letter in served.letters("second", 3)] == [b"a", b"b", b"c"]
    assert received(served, "third", 3) == [b"a", b"b", b"c"]
    assert received(served, "first", 1) == [b"c"]
    for queue in ("first", "second", "third"):
        until(lambda queue=queue: served.depth(queue)["depth"] == 0, f"{queue} is empty")
    assert {texts(letter)["__dlq.errors.group"] for letter in served.letters("second", 3)} == {served.name("second")}


@pytest.mark.feature("Q2")
@pytest.mark.parametrize(
    ("to", "receivers"),
    [
        ("orders", {"analytics", "risk"}),
        ("analytics", {"analytics"}),
        ("risk", {"risk"}),
        ("analytics-direct", {"analytics"}),
        ("risk-direct", {"risk"}),
    ],
)
def test_the_table_of_the_orders_queues_holds_line_by_line(served: Deployment, to: str, receivers: set[str]) -> None:
    """A publish to a queue's name goes to its default publish target; a topic feeds every queue that lists it."""
    before = {name: served.depth(name)["depth"] for name in ("analytics", "risk")}
    with Publisher(served.connection) as publisher:
        place = publisher.submit(served.name(to), f"to {to}")
        publisher.flush()
    expected_topic = to if to in ("orders", "analytics-direct", "risk-direct") else f"{to}-direct"
    assert place.result(5).topic == served.name(expected_topic)
    for name in receivers:
        until(lambda name=name: served.depth(name)["depth"] == before[name] + 1, f"the message in {name}")
    for name in {"analytics", "risk"} - receivers:
        assert served.depth(name)["depth"] == before[name]
    for name in receivers:
        assert f"to {to}".encode() in received(served, name, before[name] + 1)


@pytest.mark.feature("Q1", "Q16", "Q2")
def test_a_queue_that_comes_later_gets_the_whole_topic_while_another_goes_on_at_its_place(deploy: Deploy) -> None:
    """The topic is at its end for one queue and at its beginning for the other: neither misses nor repeats anything.

    So too for a topic that a queue gets later, and for a queue that begins at the end, or at an instant.
    """
    here = deploy({"old": {"topics": ["t{}"]}}).apply()
    worker = here.worker().wait_for_shards(1)
    write(here.servers, here.name("t"), [str(number).encode() for number in range(1000)])
    assert len(received(here, "old", 1000)) == 1000
    until(lambda: here.depth("old")["depth"] == 0, "an empty queue")
    worker.stop()
    middle_ms = broker_now_ms() + 1
    here.write("t", "while down")
    late = {"topics": ["t{}", "extra{}"]}
    here.configure(
        {
            "a-new": late,
            "old": late,
            "z-new": {"topics": ["t{}"]},
            "end": {"topics": ["t{}"], "recovery_point": "end"},
            "since": {"topics": ["t{}"], "recovery_point": middle_ms},
        }
    )
    here.apply()
    here.write("extra", "extra")
    worker.start().wait_for_shards(5)
    assert set(received(here, "old", 2)) == {b"while down", b"extra"}
    assert len(set(received(here, "a-new", 1002))) == 1002
    assert len(set(received(here, "z-new", 1001))) == 1001
    here.write("t", "after")
    assert received(here, "end", 1) == [b"after"]
    assert received(here, "since", 2) == [b"while down", b"after"]
    for queue in ("old", "a-new", "z-new"):
        assert received(here, queue, 1) == [b"after"]


@pytest.mark.feature("Q1", "D2")
@pytest.mark.parametrize("compression", ["none", "gzip", "snappy", "lz4", "zstd"])
def test_messages_of_every_compression_pass_untouched(served: Deployment, compression: str) -> None:
    value = bytes(range(256)) * 40
    served.write("packed-topic", value, b"", None, key=b"\x00\xff", **{"compression.type": compression})
    with served.subscriber("packed", 5) as subscriber:
        got = [subscriber.receive(10) for _ in range(3)]
        assert [one.value for one in got if one] == [value, b"", None]
        assert {one.key for one in got if one} == {b"\x00\xff"}
        subscriber.settle("acknowledge", [one for one in got if one], wait=True)


@pytest.mark.feature("C41", "Q17", "C16")
def test_only_committed_records_are_messages_and_the_gaps_between_do_not_matter(served: Deployment) -> None:
    """Aborted records never arrive; commit and abort markers are holes in the offsets that settle like any other."""
    producer = Producer({"bootstrap.servers": served.servers, "transactional.id": served.name("tx")})
    producer.init_transactions(15)
    topic = served.name("committed-topic")
    for number in range(12):
        producer.begin_transaction()
        for part in ("a", "b"):
            producer.produce(topic, f"{number}{part}".encode(), partition=0)
        producer.flush(15)
        if number % 3 == 2:
            producer.abort_transaction(15)
        else:
            producer.commit_transaction(15)
    expected = [f"{number}{part}".encode() for number in range(12) if number % 3 != 2 for part in ("a", "b")]
    with served.subscriber("committed", 100) as subscriber:
        got = [subscriber.receive(10) for _ in expected]
        assert [one.value for one in got if one] == expected
        assert subscriber.receive(0.3) is None
        last = got[-1].bookmark.offset if got[-1] else 0
        with Queue(served.name("committed"), connection=served.connection) as queue:
            results = queue.acknowledge([f"{topic}:0:0-{last}"])
            assert sum(len(one.messages) for one in results if one.settled) == len(expected)
            assert queue.depth()["depth"] == 0
    # An open transaction holds back what is behind it; its abort lets that pass.
    producer.begin_transaction()
    producer.produce(topic, b"never", partition=0)
    producer.flush(15)
    served.write("committed-topic", "behind")
    with served.subscriber("committed") as subscriber:
        assert subscriber.receive(1) is None
        producer.abort_transaction(15)
        delivery = subscriber.receive(10)
        assert delivery is not None
        assert delivery.value == b"behind"
