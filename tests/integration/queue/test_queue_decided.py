"""Decided questions of the contract's section C, one by one, on a real broker."""

import json

import pytest
from confluent_kafka import Message

from lapse.protocol import topic
from lapse_client.delivery.delivery import Delivery
from lapse_client.subscriber.subscriber import QueueSubscriber
from support.kafka.log import Headers, texts, until, write
from support.processes.deployment import Deploy, Deployment, broker_now_ms

LARGEST = (1 << 63) - 1
QUEUES = {
    "ceiling": {"expiration": "1500ms", "expiration_model": "ceiling"},
    "override": {"expiration": "1500ms"},
    "off": {"topic_expirations": {"off{}": "500ms"}},
    "deep": {"target_queue_depth": 2, "expiration": "enabled"},
    "full": {"target_queue_depth": 1, "expiration": "enabled"},
    "late": {"expiration": "enabled"},
    "once": {"semantics": "at-most-once", "ordering": "total", "barrier": "/type = 'EOD'"},
    "crowd": {},
    "deepest": {"partitions": 2},
    "tardy": {"expiration": "enabled", "lease_period": "5m"},
}


def ttl(ms: int) -> Headers:
    return [("lapse-ttl-ms", str(ms).encode())]


def is_delivery(record: Message) -> bool:
    return texts(record).get("lapse-kind") == "delivery"


def received(subscriber: QueueSubscriber, timeout_s: float = 15) -> Delivery:
    delivery = subscriber.receive(timeout_s)
    assert delivery is not None
    return delivery


@pytest.mark.feature("C9", "L7", "L12")
def test_the_largest_lifetime_means_the_ceiling_and_overflows_without_one(served: Deployment) -> None:
    """The minimum is taken before the sum under `ceiling`; under `override` the sum is beyond 64 bits."""
    (written,) = served.write("ceiling", "lowered", headers=ttl(LARGEST))
    (lowered,) = served.letters("ceiling", 1)
    assert texts(lowered)["lapse-reasons"] == "time_limit"
    assert texts(lowered)["lapse-expires-at-ms"] == str(written.timestamp_ms + 1_500)
    served.write("override", "overflows", headers=ttl(LARGEST))
    (overflow,) = served.letters("override", 1)
    assert texts(overflow)["lapse-reasons"] == "invalid_lifetime"
    assert "beyond 64 bits" in texts(overflow)["__dlq.errors.message"]


@pytest.mark.feature("C10", "L8", "L9")
def test_a_topics_duration_is_kept_and_not_acted_on_while_the_queue_says_disabled(served: Deployment) -> None:
    """The underlying topic contributes a deadline; whether it counts is the queue's word alone."""
    (written,) = served.write("off", "stays")
    until(lambda: broker_now_ms() > written.timestamp_ms + 1_000, "the deadline")
    with served.queue("off") as queue:
        (message,) = queue.peek()
        assert message.expires_at_ms == written.timestamp_ms + 500
        assert queue.depth()["depth"] == 1
    assert served.letters("off", 0) == []
    with served.subscriber("off") as subscriber:
        received(subscriber).acknowledge()


@pytest.mark.feature("C12", "Q13", "L10")
def test_beyond_the_depth_nothing_expires_before_it_would_enter(served: Deployment) -> None:
    """A dead one is never delivered, and its letter has the deadline that it always had."""
    served.write("deep", "one", "two")
    until(lambda: served.depth("deep")["depth"] == 2, "two messages")
    (written,) = served.write("deep", "dies", headers=ttl(300))
    served.write("deep", "three")
    until(lambda: broker_now_ms() > written.timestamp_ms + 900, "the deadline")
    assert served.letters("deep", 0) == []
    assert served.depth("deep")["depth"] == 2
    with served.subscriber("deep", 1) as subscriber:
        first = received(subscriber)
        found = served.depth("deep")
        assert (found["leased"], found["available"], found["depth"]) == (1, 1, 2)
        first.acknowledge()
        (letter,) = served.letters("deep", 1)
        assert letter.value() == b"dies"
        assert texts(letter)["lapse-expires-at-ms"] == str(written.timestamp_ms + 300)
        assert texts(letter)["__dlq.errors.delivery.count"] == "0"
        rest = []
        for _ in range(2):
            rest.append(received(subscriber))
            rest[-1].acknowledge()
        assert [one.value for one in rest] == [b"two", b"three"]


@pytest.mark.feature("C51", "C12", "L11")
def test_what_is_held_enters_and_expires_by_time_alone(served: Deployment) -> None:
    """The message that fills the depth expires, and nobody sends a command: the held one has room, and its own end."""
    # Seconds lie between the instants: on a busy machine records and timers are late.
    now_ms = broker_now_ms()
    own_ms = now_ms + 9_000
    held = {"lapse-enqueue-at-ms": now_ms + 3_000, "lapse-expires-at-ms": own_ms}
    served.write("full", "held", headers=[(name, b"%d" % at_ms) for name, at_ms in held.items()])
    served.write("full", "fills", headers=[("lapse-expires-at-ms", b"%d" % (now_ms + 6_000))])
    letters = served.letters("full", 2)
    assert [letter.value() for letter in letters] == [b"fills", b"held"]
    assert texts(letters[1])["lapse-expires-at-ms"] == str(own_ms)
    expected = ["scheduled", "held", "dead_lettered", "dead_lettered"]
    until(lambda: [one.event for one in served.events("full")] == expected, "the events, behind the letters (D3)")


@pytest.mark.feature("C15", "C16")
def test_past_its_deadline_and_unleased_expired_wins(served: Deployment) -> None:
    """The settlement is answered with `time_limit`, and the letter is there."""
    (written,) = served.write("late", "dies", headers=ttl(400))
    served.letters("late", 1)
    with served.queue("late") as queue:
        place = served.bookmark("late", written)
        assert [one.result for one in queue.acknowledge([place])] == ["time_limit"]
        assert [one.result for one in queue.expire([place])] == ["time_limit"]
    served.letters("late", 1)


@pytest.mark.feature("C36", "Q6", "Q12")
def test_on_an_at_most_once_queue_a_barrier_waits_for_acknowledgments_or_the_subscribers_end(
    served: Deployment,
) -> None:
    """What was sent is out of the queue; what is behind the barrier waits all the same."""
    served.write("once", *(json.dumps(payload) for payload in ({"n": 1}, {"type": "EOD"}, {"n": 2})))
    with served.subscriber("once", 5) as first:
        one = received(first)
        assert json.loads(one.value or b"") == {"n": 1}
        assert first.receive(0.7) is None
        one.acknowledge()
        assert received(first).is_barrier
        two = received(first)
        assert json.loads(two.value or b"") == {"n": 2}
        # Its subscriber is gone without a word about 2: the next barrier waits for nobody any more.
        served.write("once", json.dumps({"type": "EOD", "n": 3}))
        with served.subscriber("once", 0) as second:
            assert second.receive(0.7) is None
            first.close()
            assert received(second).is_barrier


@pytest.mark.feature("C23", "Q9")
def test_a_lowered_limit_takes_out_what_is_beyond_it_when_it_is_applied(deploy: Deploy) -> None:
    """Delivered twice without a limit; a worker starts with a limit of 1, and the message leaves without a consumer."""
    here = deploy({"orders": {}}).apply()
    worker = here.worker().wait_for_shards(1)
    here.write("orders", "twice", "never")
    with here.subscriber("orders", 1) as subscriber:
        for count in (1, 2):
            delivery = received(subscriber)
            assert (delivery.value, delivery.delivery_count) == (b"twice", count)
            subscriber.settle("cancel", [delivery], wait=True)
            if count == 2:
                subscriber.close()
    until(lambda: here.depth("orders")["available"] == 2, "both back in the queue")
    assert worker.stop() == 0
    here.configure({"orders": {"max_deliveries": 1}})
    worker.start().wait_for_shards(1)
    (letter,) = here.letters("orders", 1)
    assert (letter.value(), texts(letter)["lapse-reasons"]) == (b"twice", "max_deliveries")
    until(lambda: here.depth("orders")["depth"] == 1, "the other one stays")


@pytest.mark.feature("Q12", "C35", "Q5", "Q16")
def test_two_barriers_in_a_row_outlive_a_lease_that_ends_and_a_worker_that_dies(deploy: Deploy) -> None:
    """Each comes at least once, in order, after everything before it is settled and before anything behind it."""
    here = deploy(
        {"days": {"ordering": "total", "barrier": "/type = 'EOD'", "lease_period": "1s"}}, session_timeout="2s"
    ).apply()
    worker = here.worker().wait_for_shards(1)
    payloads = [{"n": 1}, {"type": "EOD", "n": 2}, {"type": "EOD", "n": 3}, {"n": 4}]
    here.write("days", *(json.dumps(payload) for payload in payloads))
    with here.subscriber("days", 1) as subscriber:
        assert json.loads(received(subscriber).value or b"") == {"n": 1}
        again = received(subscriber)  # its lease ran out: it comes a second time, and no barrier meanwhile
        assert (json.loads(again.value or b"")["n"], again.delivery_count) == (1, 2)
        worker.kill()
        worker.start()
        seen: list[int] = []
        while 4 not in seen:
            delivery = received(subscriber, 40)
            seen.append(json.loads(delivery.value or b"")["n"])
            if not delivery.is_barrier:
                delivery.acknowledge()
            if delivery.is_barrier and seen.count(2) == 1 and 3 not in seen and worker.running:
                worker.kill()  # right at a release: it is repeated until it was sent (C35)
                worker.start()
    order = list(dict.fromkeys(seen))
    assert order in ([1, 2, 3, 4], [2, 3, 4])
    assert here.depth("days")["depth"] == 0


@pytest.mark.feature("Q17", "C33", "Q16")
@pytest.mark.slow
def test_total_order_holds_while_workers_join_leave_and_die(deploy: Deploy) -> None:
    """Two topics of three partitions, written one record after the other; what comes for the first time is in order."""
    settings = {"topics": ["left{}", "right{}"], "ordering": "total", "partitions": 3, "lease_period": "2s"}
    here = deploy({"all": settings}, session_timeout="2s").apply()
    first = here.worker().wait_for_shards(1)
    written = 0

    def publish(count: int) -> None:
        nonlocal written
        for _ in range(count):
            here.write(("left", "right")[written % 2], str(written), partition=written % 3)
            written += 1

    seen: dict[int, int] = {}
    with here.subscriber("all", 1) as subscriber:

        def take(count: int) -> None:
            until_seen = len(seen) + count
            while len(seen) < until_seen:
                delivery = received(subscriber, 60)
                number = int(delivery.value or b"-1")
                seen[number] = seen.get(number, 0) + 1
                delivery.acknowledge()

        publish(30)
        take(10)
        second = here.worker()
        publish(10)
        take(10)
        first.kill()
        publish(10)
        take(15)
        first.start()
        take(5)
        second.stop()
        publish(10)
        take(written - len(seen))
    assert list(seen) == list(range(written))


@pytest.mark.feature("Q15", "X3")
def test_a_peek_shows_all_however_many_there_are(served: Deployment) -> None:
    """An answer has a thousand messages at most; the client asks on, shard by shard."""
    for partition in range(2):
        served.write("deepest", *("x" for _ in range(1_200)), partition=partition)
    until(lambda: served.depth("deepest")["depth"] == 2_400, "all messages")
    with served.queue("deepest") as queue:
        assert len({message.bookmark for message in queue.peek()}) == 2_400
        first = [message.bookmark for message in queue.peek(top_n=2_300)]
        assert len(first) == 2_300
        assert [message.bookmark for message in queue.peek(top_n=50, skip=1_190)] == first[1_190:1_240]


@pytest.mark.feature("Q3", "Q7")
def test_hundreds_of_subscriptions_share_one_queue(served: Deployment) -> None:
    """Three hundred with a backlog of one, as many messages: each gets exactly one, and the next round as well."""
    names = [f"s{number}" for number in range(300)]

    def command(**fields: object) -> str:
        return json.dumps({"answer": "none", **fields})

    commands = f"lapse.{served.name('crowd')}.commands"
    patient = {"command": "subscribe", "heartbeat_timeout_ms": 120_000}
    write(served.servers, commands, [command(subscription=name, **patient).encode() for name in names])
    until(lambda: served.depth("crowd")["subscriptions"] == 300, "all subscriptions")
    for round_of in (1, 2):
        served.write("crowd", *(f"{round_of}/{number}" for number in range(300)))
        came: dict[str, list[str]] = {}
        deliveries = served.tail(f"lapse.{served.name('crowd')}.deliveries")
        deliveries.wait_for(
            lambda records, count=300 * round_of: sum(map(is_delivery, records)) >= count,
            "a message for everyone",
        )
        for record in deliveries.records:
            facts = texts(record)
            if is_delivery(record):
                came.setdefault(facts["lapse-subscription"], []).append(facts["lapse-bookmark"])
        assert {name: len(some) for name, some in came.items()} == dict.fromkeys(names, round_of)
        done = [command(command="acknowledge", subscription=name, bookmarks=some[-1:]) for name, some in came.items()]
        write(served.servers, commands, [one.encode() for one in done])
        until(lambda: served.depth("crowd")["depth"] == 0, "everything acknowledged")


@pytest.mark.feature("L10", "L6", "X3", "D4")
def test_a_delivery_that_landed_after_its_deadline_is_cancelled_by_the_client(served: Deployment) -> None:
    """A copy of a delivery is written once more, too late; the same with the word that its queue ignores lifetimes."""
    deliveries = topic.deliveries(served.name("tardy"))
    for payload in ("inline", "packed"):
        with served.subscriber("tardy", 2, payload=payload, name=payload) as subscriber:
            served.write("tardy", payload, headers=ttl(2_000))
            first = received(subscriber)
            deadline_ms = first.expires_at_ms or 0
            until(lambda deadline_ms=deadline_ms: broker_now_ms() > deadline_ms, "the deadline")
            published = [(texts(one), one) for one in served.tail(deliveries).drain()]
            (delivered,) = (
                one
                for text, one in published
                if text.get("lapse-subscription") == payload and text["lapse-kind"] in ("delivery", "packed")
            )
            headers = delivered.headers() or []
            for own in (headers, [("lapse-lifetimes", b"ignored"), *headers]):
                write(served.servers, deliveries, [delivered.value()], headers=own)
            second = received(subscriber)
            assert (second.value, second.headers) == (first.value, first.headers)
            assert subscriber.receive(0.5) is None, "the one whose deadline counts was dropped"
    for letter in served.letters("tardy", 2):
        assert texts(letter)["lapse-reasons"] == "time_limit"
        assert texts(letter)["lapse-cancel-count"] == "1", "the client has cancelled it, so it left at once"
