"""Letters that the broker refuses: their messages are dying, others pass, no worker stops, and in the end all leave."""

from collections.abc import Sequence

import pytest
from confluent_kafka import Message
from confluent_kafka.admin import AdminClient, AlterConfigOpType, ConfigEntry, ConfigResource, NewTopic, ResourceType

from lapse_client.reading.history import history
from support.kafka.created_topic import create
from support.kafka.log import Tail, until
from support.processes.deployment import Deploy, Deployment

LARGE = b"x" * 100_000


def limit(deployment: Deployment, topic: str, most_bytes: int) -> None:
    """Set the largest record that a topic takes."""
    entry = ConfigEntry("max.message.bytes", str(most_bytes), incremental_operation=AlterConfigOpType.SET)
    resource = ConfigResource(ResourceType.TOPIC, topic, incremental_configs=[entry])
    admin = AdminClient({"bootstrap.servers": deployment.servers})
    admin.incremental_alter_configs([resource])[resource].result(10)


def sizes(tail: Tail) -> list[int]:
    return [len(letter.value() or b"") for letter in tail.drain()]


def moments_of(deployment: Deployment, stem: str, offset: int) -> Sequence[str]:
    """The events of one message."""
    return [
        one.event for one in deployment.events(stem) if any(some.first <= offset <= some.last for some in one.messages)
    ]


@pytest.mark.feature("C27", "D3", "Q15", "X7")
def test_a_letter_that_is_too_large_waits_over_a_crash_while_others_pass_and_leaves_once(deploy: Deploy) -> None:
    """Many small letters and a large one in one RecordBatch; the topic's limit is below both."""
    deployment = deploy({"orders": {"expiration": "1s"}}).apply()
    letters = f"dlq.{deployment.name('orders')}"
    limit(deployment, letters, 50_000)
    worker = deployment.worker().wait_for_shards(1)
    values = [b"a" * 500] * 300 + [LARGE] + [b"b" * 500] * 300
    written = deployment.write("orders", *values)
    tail = deployment.tail(letters)
    tail.wait(600)
    until(lambda: deployment.depth("orders")["dying"] == 1, "a dying message")
    figures = deployment.depth("orders")
    assert (figures["depth"], figures["available"]) == (0, 0)
    with deployment.queue("orders") as queue:
        (shown,) = queue.peek()
        assert (shown.state, shown.bookmark) == ("dying", deployment.bookmark("orders", written[300]))
        (result,) = queue.expire([shown.bookmark])
        assert result.result == "time_limit"
    assert sizes(tail) == [500] * 600
    assert [letter.value()[:1] for letter in tail.records] == [b"a"] * 300 + [b"b"] * 300
    assert moments_of(deployment, "orders", written[300].offset) == ["dying"]

    worker.kill()
    assert worker.start().wait_for_shards(1)
    assert deployment.depth("orders")["dying"] == 1
    deployment.write("orders", b"c")
    tail.wait(601)
    assert deployment.depth("orders")["dying"] == 1

    limit(deployment, letters, 200_000)
    tail.wait(602)
    until(lambda: deployment.depth("orders")["dying"] == 0, "a message that is gone")
    (letter,) = [one for one in tail.drain() if one.value() == LARGE]
    facts = dict(letter.headers() or [])
    assert facts["lapse-reasons"] == b"time_limit"
    assert int(facts["lapse-expired-at-ms"]) < written[300].timestamp_ms + 20_000
    assert moments_of(deployment, "orders", written[300].offset) == ["dying", "dead_lettered"]
    assert worker.running


@pytest.mark.feature("C48", "C27", "Q12", "Q15", "Q20")
def test_a_barrier_waits_until_the_letter_of_what_was_before_it_is_safe(deploy: Deploy) -> None:
    """What comes behind the barrier waits with it; a crash changes nothing. A group goes on meanwhile."""
    days = {"ordering": "total", "barrier": "/type = 'EOD'", "expiration": "enabled"}
    deployment = deploy({"days": days, "groups": {"group_by": "/g", "expiration": "enabled"}}).apply()
    letters = f"dlq.{deployment.name('days')}"
    limit(deployment, letters, 50_000)
    limit(deployment, f"dlq.{deployment.name('groups')}", 50_000)
    worker = deployment.worker().wait_for_shards(2)
    short = [("lapse-ttl-ms", b"1500")]
    deployment.write("days", LARGE, headers=short)
    stop, _ = deployment.write("days", b'{"type": "EOD"}', b'{"n": 1}')
    deployment.write("groups", b'{"g": 1, "pad": "%b"}' % LARGE, headers=short)
    deployment.write("groups", b'{"g": 1}')
    until(lambda: deployment.depth("days")["dying"] == 1, "a dying message")
    until(lambda: deployment.depth("groups")["dying"] == 1, "one of a group")
    with deployment.subscriber("groups") as subscriber:
        following = subscriber.receive(20)
        assert following is not None
        assert following.value == b'{"g": 1}'
    with deployment.subscriber("days", 5) as subscriber:
        assert subscriber.receive(3) is None
        worker.kill()
        worker.start().wait_for_shards(2)
        assert subscriber.receive(3) is None
        figures = deployment.depth("days")
        assert (figures["dying_before_barrier"], figures["available"]) == (1, 2)
        with deployment.queue("days") as queue:
            queue.pause()
            assert queue.depth()["paused"] == 1
            shown = {one.state: one.waits_for for one in queue.peek() if one.waits_for}
            queue.resume()
            assert queue.depth()["paused"] == 0
        assert shown["available"] == "1 refused dead letter of messages before it"
        moments = history(deployment.bookmark("days", stop), connection=deployment.connection).moments
        assert [one.what for one in moments] == ["arrived", "waits"]
        assert moments[1].facts["waits_for"] == shown["available"], "explain tells it, too"
        assert "takes no record of 100," in shown["dying"], "learned anew after the take-over"
        limit(deployment, letters, 200_000)
        got = [subscriber.receive(60), subscriber.receive(20)]
        assert [one is not None and one.is_barrier for one in got] == [True, False]
    assert deployment.depth("days")["dying_before_barrier"] == 0


@pytest.mark.feature("C27", "X7")
def test_without_its_letter_topic_a_queue_goes_on_and_letters_follow_when_there_is_one(deploy: Deploy) -> None:
    deployment = deploy({"lone": {"max_deliveries": 1}}).apply()
    letters = f"dlq.{deployment.name('lone')}"
    worker = deployment.worker().wait_for_shards(1)
    first, *_ = deployment.write("lone", "written while there is a topic", "a", "b", "c")
    subscriber = deployment.subscriber("lone", 10).start()
    deliveries = [subscriber.receive(10) for _ in range(4)]
    subscriber.settle("expire", deliveries[:1], wait=True)
    deployment.letters("lone", 1)
    admin = AdminClient({"bootstrap.servers": deployment.servers})
    admin.delete_topics([letters])[letters].result(10)
    subscriber.settle("expire", deliveries[1:3], wait=True)
    until(lambda: deployment.depth("lone")["dying"] == 2, "two dying messages")
    subscriber.settle("acknowledge", deliveries[3:], wait=True)
    assert deployment.depth("lone")["depth"] == 0
    subscriber.close()
    create(admin, NewTopic(letters, 1, 1))
    assert [letter.value() for letter in deployment.letters("lone", 2)] == [b"a", b"b"]
    until(lambda: deployment.depth("lone")["dying"] == 0, "messages that are gone")
    assert worker.running
    assert moments_of(deployment, "lone", first.offset)[-1] == "dead_lettered"


@pytest.mark.feature("C27", "L12", "S1")
def test_letters_of_a_sow_topic_wait_as_well(deploy: Deploy) -> None:
    """A record that cannot be taken, and one that expired: the first is in the log, the second only in the state."""
    deployment = deploy({})
    reasons = ["invalid_lifetime", "undecodable", "time_limit"]
    deployment.configure({}, {"prices": {"expiration": "enabled", "dead_letter_reasons": reasons}})
    deployment.apply()
    letters = f"dlq.{deployment.name('prices')}"
    limit(deployment, letters, 50_000)
    worker = deployment.worker().wait_for_shards(1)
    deployment.write("prices", LARGE, key=b"k", headers=[("lapse-ttl-ms", b"soon")])
    deployment.write("prices", b'{"a": "%s"}' % LARGE, key=b"k", headers=[("lapse-ttl-ms", b"300")])
    deployment.write("prices", b"x", key=b"l", headers=[("lapse-ttl-ms", b"soon")])
    tail = deployment.tail(letters)
    tail.wait(1)
    until(lambda: "dying" in moments_of(deployment, "prices", 1), "the record's end")
    worker.kill()
    assert worker.start().wait_for_shards(1)
    limit(deployment, letters, 200_000)
    by_name: dict[bytes, Message] = {}
    for count in (3, 4):  # after a crash a letter may be there twice, with the same name (D3)
        if len(by_name) < 3:
            by_name = {dict(one.headers() or [])["lapse-id"]: one for one in tail.wait(count)}
    assert {dict(one.headers() or [])["lapse-reasons"] for one in by_name.values()} == {
        b"invalid_lifetime",
        b"time_limit",
    }
    assert sorted(len(one.value() or b"") for one in by_name.values()) == [1, 100_000, 100_009]
    until(lambda: moments_of(deployment, "prices", 0) == ["dying", "dead_lettered"], "the events")
    assert worker.running
