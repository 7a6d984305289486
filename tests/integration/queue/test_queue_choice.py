"""Which message goes to whom: filters, priority, barriers, groups, total order, depth, forwarding; on a real broker."""

import json
import time
from collections import Counter

import pytest
from confluent_kafka.admin import AdminClient, NewTopic

from lapse.protocol.command import Command
from lapse_client import Publisher
from lapse_client.delivery.delivery import Delivery
from support.kafka.created_topic import create
from support.kafka.log import until
from support.processes.deployment import Deploy, Deployment, broker_now_ms

QUEUES = {
    "filtered": {},
    "ranked": {"priority": "/price * /qty"},
    "days": {"ordering": "total", "barrier": "/type = 'EOD'"},
    "accounts": {"group_by": "/account"},
    "tenants": {"group_by": "/tenant", "group_limit": 2},
    "weighted": {"group_by": "/tenant", "group_limit": 50, "group_weight": {"heavy": 3, "7": 2}},
    "shallow": {"target_queue_depth": 3},
    "brimful": {"target_queue_depth": 2},
    "swept": {"lease_period": "60s"},
    "all": {"topics": ["left{}", "right{}"], "ordering": "total", "topic_expirations": {}},
    "wide": {
        "topic_pattern": "wide-.*{}",
        "default_publish_target": "wide-direct{}",
    },
    "inbox": {"forward_to": "work{}", "expiration": "enabled"},
    "work": {"expiration": "enabled"},
    "parts": {"forward_to": "whole{}", "expiration": "enabled", "partitions": 2},
    "whole": {"expiration": "1h", "expiration_model": "ceiling"},
    "in-groups": {"group_by": "/type", "forward_to": "out-of-groups{}"},
    "in-days": {"ordering": "total", "barrier": "/type = 'EOD'", "forward_to": "out-of-days{}"},
    "plain": {},
    "guarded": {"ordering": "total", "barrier": "/type = 'EOD'"},
    "spread": {"ordering": "total", "partitions": 3},
}


def published(served: Deployment, queue: str, *payloads: object) -> None:
    """Publish JSON payloads, one after the other."""
    served.write(queue, *(json.dumps(payload) for payload in payloads))


def taken(served: Deployment, queue: str, count: int, **options: object) -> list[object]:
    """Receive so many messages one at a time, acknowledging each, and give their payloads."""
    got: list[object] = []
    with served.subscriber(queue, 1, **options) as subscriber:
        for delivery in subscriber.messages(timeout=15):
            got.append(json.loads(delivery.value or b"null"))
            delivery.acknowledge()
            if len(got) == count:
                break
    return got


@pytest.mark.feature("Q14", "X1")
def test_each_subscription_gets_what_matches_its_filter(served: Deployment) -> None:
    """The oldest message that matches goes to a subscription; the others stay for those that want them."""
    published(served, "filtered", {"side": "buy", "n": 1}, {"side": "sell", "n": 2}, {"side": "buy", "n": 3}, "text")
    assert taken(served, "filtered", 1, filter="/side = 'sell'") == [{"side": "sell", "n": 2}]
    assert taken(served, "filtered", 2, filter="/side = 'buy'") == [{"side": "buy", "n": 1}, {"side": "buy", "n": 3}]
    assert taken(served, "filtered", 1) == ["text"]


@pytest.mark.feature("Q8", "C14", "C37", "Q15")
def test_settlement_purge_and_peek_by_filter_cover_what_matches(served: Deployment) -> None:
    """A filter names messages that nobody has leased, too."""
    published(served, "plain", *({"n": number} for number in range(6)))
    until(lambda: served.depth("plain")["depth"] == 6, "six messages")
    with served.queue("plain") as queue:
        assert len(queue.peek(filter="/n < 2")) == 2
        assert [one.result for one in queue.acknowledge(filter="/n < 2")] == ["settled"]
        queue.purge(filter="/n > 3")
    assert served.depth("plain")["depth"] == 2
    assert taken(served, "plain", 2) == [{"n": 2}, {"n": 3}]


@pytest.mark.feature("C86", "C48", "Q8", "Q12")
def test_neither_a_filter_nor_a_range_takes_a_barrier_that_waits(served: Deployment) -> None:
    """It is released when what stood before it is gone; its own bookmark takes it."""
    written = served.write("guarded", *(json.dumps(one) for one in ({"n": 1}, {"type": "EOD"}, {"n": 2})))
    until(lambda: served.depth("guarded")["depth"] == 3, "three messages")
    first, marker, last = (served.bookmark("guarded", one) for one in written)
    with served.queue("guarded") as queue:
        assert [one.waits_for for one in queue.peek()] == ["", "1 message before it", ""]
        results = queue.acknowledge([f"{marker}-{last.rpartition(':')[2]}"])
        assert [(str(one.messages), one.result) for one in results] == [(marker, "not_leased"), (last, "settled")]
        (answer,) = queue._ask(Command(command="acknowledge", filter="/type = 'EOD'"))
        assert (answer.counts, answer.settlements) == ({"settled": 0, "skipped": 1}, ())
        assert served.depth("guarded")["depth"] == 2
        queue.acknowledge([first])
        with served.subscriber("guarded", 0) as subscriber:
            delivery = subscriber.receive(15)
            assert delivery is not None
            assert delivery.is_barrier
        served.write("guarded", json.dumps({"n": 3}), json.dumps({"type": "EOD"}))
        until(lambda: served.depth("guarded")["depth"] == 2, "one more barrier")
        (named,) = queue.acknowledge([queue.peek()[1].bookmark])
        assert named.result == "settled"


@pytest.mark.feature("Q11", "C31")
def test_the_highest_product_of_price_and_quantity_comes_first(served: Deployment) -> None:
    """NULL and text come last; among equals the oldest is first."""
    orders = [
        {"id": "null", "price": None, "qty": 5},
        {"id": "small", "price": 1, "qty": 2},
        {"id": "text", "price": "many", "qty": 2},
        {"id": "large", "price": 100, "qty": 90},
        {"id": "equal", "price": 2, "qty": 1},
    ]
    published(served, "ranked", *orders)
    until(lambda: served.depth("ranked")["depth"] == 5, "all five")
    got = [order["id"] for order in taken(served, "ranked", 5)]  # type: ignore[index, call-overload]
    assert got == ["large", "small", "equal", "null", "text"]


@pytest.mark.feature("Q12", "C34", "Q17")
def test_a_barrier_waits_for_all_before_it_and_goes_to_every_subscription(served: Deployment) -> None:
    """A full and a zero backlog get it, a filter that excludes it does not; nothing behind comes before."""
    published(served, "days", {"n": 1}, {"type": "EOD"}, {"n": 2})
    with (
        served.subscriber("days", 1) as full,
        served.subscriber("days", 0) as none,
        served.subscriber("days", 0, filter="/n > 0") as other,
    ):
        first = full.receive(15)
        assert isinstance(first, Delivery)
        assert json.loads(first.value or b"") == {"n": 1}
        assert none.receive(0.5) is None
        first.acknowledge()
        barrier = full.receive(15)
        assert isinstance(barrier, Delivery)
        assert json.loads(barrier.value or b"") == {"type": "EOD"}
        same = none.receive(15)
        assert isinstance(same, Delivery)
        assert same.bookmark == barrier.bookmark
        behind = full.receive(15)
        assert isinstance(behind, Delivery)
        assert json.loads(behind.value or b"") == {"n": 2}
        behind.acknowledge()
        assert other.receive(0.2) is None
    assert served.depth("days")["depth"] == 0


@pytest.mark.feature("Q20", "C32")
def test_of_a_group_one_message_is_leased_at_a_time_in_order(served: Deployment) -> None:
    """Other groups go on meanwhile; a message without the field is a group of its own."""
    published(served, "accounts", {"account": 1, "n": 1}, {"account": 1, "n": 2}, {"account": 2, "n": 3}, {"n": 4})
    with served.subscriber("accounts", 10) as subscriber:
        got = {json.loads(one.value or b"")["n"]: one for one in (subscriber.receive(15) for _ in range(3)) if one}
        assert set(got) == {1, 3, 4}
        assert subscriber.receive(0.5) is None
        got[1].acknowledge()
        second = subscriber.receive(15)
        assert second is not None
        assert json.loads(second.value or b"")["n"] == 2
        for one in (second, got[3], got[4]):
            one.acknowledge()


@pytest.mark.feature("Q25", "C70", "C71")
def test_a_tenant_has_no_more_leased_than_its_limit_whatever_its_backlog(served: Deployment) -> None:
    published(served, "tenants", *({"tenant": "great", "n": n} for n in range(50)), {"tenant": "small"}, {"n": 1})
    with served.subscriber("tenants", 20) as subscriber:
        first = [subscriber.receive(15) for _ in range(4)]
        assert None not in first
        assert [json.loads(one.value).get("tenant") for one in first] == ["great", "small", None, "great"]
        assert subscriber.receive(0.5) is None
        first[0].cancel(delay_ms=60_000)  # delayed is not leased
        following = subscriber.receive(15)
        assert json.loads(following.value) == {"tenant": "great", "n": 2}
        assert subscriber.receive(0.5) is None
        subscriber.acknowledge([first[3], following])
        assert [json.loads(subscriber.receive(15).value)["n"] for _ in range(2)] == [3, 4]


@pytest.mark.feature("Q25", "C71")
def test_groups_get_messages_by_their_weights_whatever_their_backlogs(served: Deployment) -> None:
    """Weights are 3, 2 and 1. A key that is a number means the number in JSON as well."""
    tenants = [*["light"] * 40, *[7] * 20, *["heavy"] * 10]
    published(served, "weighted", *({"tenant": tenant} for tenant in tenants))
    until(lambda: served.depth("weighted")["available"] == len(tenants), "all wait")
    for most in (12, 6):  # the turn goes on from one subscription to the next
        with served.subscriber("weighted", most) as subscriber:
            got = [one for one in (subscriber.receive(15) for _ in range(most)) if one is not None]
            counts = Counter(json.loads(one.value or b"")["tenant"] for one in got)
            assert counts == {"heavy": most // 2, 7: most // 3, "light": most // 6}
            subscriber.settle("acknowledge", got, wait=True)


@pytest.mark.feature("Q13", "C16")
def test_beyond_the_target_depth_nothing_is_active_and_early_acknowledgments_are_remembered(served: Deployment) -> None:
    """What is acknowledged before it becomes active never does."""
    written = served.write("shallow", *(json.dumps(number) for number in range(8)))
    until(lambda: served.depth("shallow")["depth"] == 3, "three are active")
    with served.queue("shallow") as queue:
        assert len(queue.peek()) == 3
        early = [served.bookmark("shallow", written[number]) for number in (4, 7)]
        assert {one.result for one in queue.acknowledge(early)} == {"settled"}
        beyond = f"{served.name('shallow')}:0:{written[-1].offset + 1}"
        assert [one.result for one in queue.acknowledge([beyond])] == ["unknown"]
    assert taken(served, "shallow", 6) == [0, 1, 2, 3, 5, 6]
    assert served.depth("shallow")["depth"] == 0


@pytest.mark.feature("Q13", "C16")
def test_messages_of_a_partition_that_was_never_read_for_want_of_room_can_be_acknowledged(deploy: Deploy) -> None:
    """Before and after a take-over that reads nothing of it either."""
    here = deploy({"full": {"topics": ["first{}", "other{}"], "target_queue_depth": 1}}).apply()
    worker = here.worker().wait_for_shards(1)
    (first,) = here.write("first", "active")
    until(lambda: here.depth("full")["depth"] == 1, "the depth is reached")
    others = here.write("other", "0", "1", "2", "3")
    early = [here.bookmark("other", one) for one in others]
    with here.queue("full") as queue:
        until(lambda: [one.result for one in queue.acknowledge(early[:1])] == ["settled"], "it is remembered")
        worker.kill()
        worker.start().wait_for_shards(1)
        results = [one.result for one in queue.acknowledge([*early[1:3], f"{here.name('other')}:0:{len(others)}"])]
        assert results == ["settled", "settled", "unknown"], "no message has the last bookmark"
        assert [one.result for one in queue.acknowledge([here.bookmark("first", first)])] == ["settled"]
        until(lambda: [one.bookmark for one in queue.peek()] == early[3:], "what was acknowledged never became active")


@pytest.mark.feature("C51")
def test_what_comes_due_beyond_the_target_depth_waits_outside_it_in_its_place(served: Deployment) -> None:
    """The depth is never exceeded, and what arrives after their instants comes behind them."""
    at_ms = broker_now_ms() + 5_000  # on a busy machine it takes long until they are seen
    for number in range(30):
        served.write("brimful", json.dumps(number), headers=[("lapse-enqueue-at-ms", b"%d" % (at_ms + number))])
    until(lambda: served.depth("brimful")["scheduled"] == 30, "they are scheduled")
    until(lambda: served.depth("brimful")["held"] == 28, "they are due")
    served.write("brimful", json.dumps(30))
    counts = served.depth("brimful")
    assert {name: counts[name] for name in ("depth", "scheduled", "held")} == {"depth": 2, "scheduled": 0, "held": 28}
    with served.queue("brimful") as queue:
        assert [one.state for one in queue.peek()] == ["available"] * 2 + ["held"] * 28
    assert taken(served, "brimful", 31) == list(range(31))
    assert served.depth("brimful")["held"] == 0


@pytest.mark.feature("Q17", "C33")
def test_in_total_order_all_partitions_and_topics_are_one_sequence(served: Deployment) -> None:
    """By the broker's timestamps, whatever topic and partition a message was written to."""
    for number in range(12):
        served.write(("left", "right")[number % 2], json.dumps(number))
        time.sleep(0.003)
    until(lambda: served.depth("all")["depth"] == 12, "all twelve")
    assert taken(served, "all", 12) == list(range(12))


@pytest.mark.feature("Q8", "Q17")
def test_in_total_order_one_shard_settles_messages_of_every_partition(served: Deployment) -> None:
    """By bookmark, without a subscription, on any partition of a topic."""
    for partition in range(3):
        served.write("spread", f"of {partition}", partition=partition)
    with served.queue("spread") as queue:
        until(lambda: queue.depth()["available"] == 3, "three messages")
        bookmarks = [message.bookmark for message in queue.peek()]
        assert [result.result for result in queue.acknowledge(bookmarks)] == ["settled"] * 3
        assert queue.depth()["depth"] == 0


@pytest.mark.feature("Q2", "C28")
def test_topics_that_match_the_pattern_join_later_too(served: Deployment) -> None:
    """A publish to the queue's name goes to its default target; a topic created later belongs to it as well."""
    with Publisher(connection=served.connection) as publisher:
        publisher.publish(served.name("wide"), b'"direct"')
    admin = AdminClient({"bootstrap.servers": served.servers})
    create(admin, NewTopic(served.name("wide-late"), 1, 1))
    served.write("wide-late", '"late"')
    assert sorted(str(one) for one in taken(served, "wide", 2)) == ["direct", "late"]


@pytest.mark.feature("Q21", "C38")
def test_a_forwarded_message_keeps_its_deadline_to_the_millisecond(served: Deployment) -> None:
    """Key and value are untouched, counts begin anew, and the first queue is empty."""
    expires_at_ms = broker_now_ms() + 60_000
    served.write("inbox", '"go on"', key=b"k", headers=[("lapse-expires-at-ms", str(expires_at_ms).encode())])
    with served.subscriber("work", 1) as subscriber:
        delivery = subscriber.receive(15)
        assert delivery is not None
        assert (delivery.key, delivery.value) == (b"k", b'"go on"')
        assert (delivery.expires_at_ms, delivery.delivery_count) == (expires_at_ms, 1)
        delivery.acknowledge()
    assert served.depth("inbox")["depth"] == 0


@pytest.mark.feature("C78", "X6", "C29")
def test_forwarded_messages_are_distinguished_though_producers_gave_them_the_same_id(served: Deployment) -> None:
    """Ids are unique per partition; what comes from two of them is no repeat. A redriven message goes on as well."""
    for partition in (0, 1):
        for value, name in (("a", b"1"), ("b", b"2"), ("again", b"1")):
            headers = [("lapse-message-id", name), ("lapse-enqueue-at-ms", b"1")]
            served.write("parts", json.dumps(f"{value}{partition}"), headers=headers, partition=partition)
    redriven = [("lapse-redrive-queue", served.name("parts").encode()), ("lapse-message-id", b"redrive/x")]
    served.write("parts", json.dumps("redriven"), headers=redriven)
    assert sorted(map(str, taken(served, "whole", 5))) == ["a0", "a1", "b0", "b1", "redriven"]
    records = served.tail(served.name("whole")).wait(5)
    facts = {json.loads(record.value() or b""): dict(record.headers() or []) for record in records}
    ids = {value: one["lapse-message-id"] or b"" for value, one in facts.items()}
    assert len(set(ids.values())) == 5
    assert ids["a1"].startswith(f"forward/{served.name('parts')}/{served.name('parts')}:1:0/".encode())
    originals = {value: one.get("lapse-original-message-id") for value, one in facts.items()}
    assert originals == {"a0": b"1", "a1": b"1", "b0": b"2", "b1": b"2", "redriven": None}


@pytest.mark.feature("C38", "Q21", "Q20", "Q12")
def test_a_group_and_barriers_are_forwarded_one_after_the_other_in_order(served: Deployment) -> None:
    """At once: each waited for the next tick, of which there is one a second."""
    values = [json.dumps({"type": "EOD" if number % 3 else "x", "n": number}) for number in range(60)]
    for source, target in (("in-groups", "out-of-groups"), ("in-days", "out-of-days")):
        served.write(source, *values)
        records = served.tail(served.name(target)).wait(60)
        got = [json.loads(record.value() or b"") for record in records]
        for kind in ("EOD", "x"):
            some = [one["n"] for one in got if one["type"] == kind]
            assert some == sorted(some)
        if source == "in-days":
            assert [one["n"] for one in got] == list(range(60))


@pytest.mark.feature("C89", "L7")
def test_a_ceiling_lowers_the_deadline_of_what_is_forwarded_into_it(served: Deployment) -> None:
    """A longer one, and none, become the ceiling's; a shorter one stays. Under `override` none stays none."""
    soon_ms = broker_now_ms() + 600_000
    served.write("parts", '"none"')
    served.write("parts", '"long"', headers=[("lapse-ttl-ms", b"7200000")])
    served.write("parts", '"short"', headers=[("lapse-expires-at-ms", b"%d" % soon_ms)])
    deadlines = {}
    with served.subscriber("whole", 1) as subscriber:
        for _ in range(3):
            delivery = subscriber.receive(15)
            assert delivery is not None
            assert delivery.expires_at_ms is not None
            deadlines[delivery.value] = delivery.expires_at_ms - delivery.timestamp_ms, delivery.expires_at_ms
            delivery.acknowledge()
    assert deadlines[b'"none"'][0] == deadlines[b'"long"'][0] == 3_600_000
    assert deadlines[b'"short"'][1] == soon_ms
    served.write("inbox", '"none"')
    with served.subscriber("work", 1) as subscriber:
        delivery = subscriber.receive(15)
        assert delivery is not None
        assert delivery.expires_at_ms is None
        delivery.acknowledge()


@pytest.mark.feature("L5", "L14")
def test_a_scheduled_message_is_withdrawn_by_its_bookmark(served: Deployment) -> None:
    """It leaves with the reason `withdrawn`, without a dead letter."""
    later = str(broker_now_ms() + 3_600_000).encode()
    (written,) = served.write("plain", "later", headers=[("lapse-enqueue-at-ms", later)])
    until(lambda: served.depth("plain")["scheduled"] == 1, "it is scheduled")
    with served.queue("plain") as queue:
        assert [one.result for one in queue.cancel([served.bookmark("plain", written)])] == ["settled"]
    assert served.depth("plain")["scheduled"] == 0
    gone = [event for event in served.events("plain") if "withdrawn" in event.reasons]
    assert [event.event for event in gone] == ["expired"]


@pytest.mark.feature("C83", "C82")
def test_a_purge_takes_scheduled_messages_with_a_filter_and_without_one(served: Deployment) -> None:
    later = [("lapse-enqueue-at-ms", b"%d" % (broker_now_ms() + 600_000))]
    for kind in ("a", "b"):
        published(served, "swept", {"kind": kind}, {"kind": kind})
        served.write("swept", json.dumps({"kind": kind}), headers=later)
    until(lambda: served.depth("swept")["scheduled"] == 2, "all are read")
    with served.queue("swept") as queue:
        assert [one.state for one in queue.peek(filter="/kind = 'a'")] == ["available", "available", "scheduled"]
        counts = queue.purge(filter="/kind = 'a'")
        assert (counts["removed"], counts["available"], counts["scheduled"]) == (3, 2, 1)
        counts = queue.purge()
        assert (counts["removed"], counts["available"], counts["scheduled"]) == (3, 2, 1)
        for arguments in ({"filter": "/kind = 'a'"}, {}):
            with served.subscriber("swept", 2) as subscriber:
                published(served, "swept", {"kind": "a"}, {"kind": "a"}, {"kind": "a"})
                first, second = (subscriber.receive(15) for _ in range(2))
                assert first is not None
                assert second is not None
                subscriber.settle("cancel", [first], delay_ms=600_000, wait=True)
                assert subscriber.receive(15) is not None
                served.write("swept", json.dumps({"kind": "a"}), headers=later)
                until(lambda: served.depth("swept")["scheduled"] == 1, "the scheduled one")
                counts = queue.purge(**arguments)
                states = {name: count for name, count in counts.items() if count}
                assert states == {"removed": 2, "delayed": 1, "scheduled": 1, "skipped": 2, "skipped_leased": 2}
                counts = queue.purge(leased=True, **arguments)
                assert {name: count for name, count in counts.items() if count} == {"removed": 2, "leased": 2}
