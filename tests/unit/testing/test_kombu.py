"""What a consumer of kombu has received and may not hand out yet (X3, Q5)."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import kombu
import pytest

from lapse.protocol import topic
from lapse.testing import Lapse
from lapse_client import Delivery
from lapse_client.subscriber.subscriber import QueueSubscriber
from lapse_kombu.channel import Channel
from lapse_kombu.consumption import Consumption
from lapse_kombu.queue_name import queue_name
from lapse_kombu.transport import Transport
from lapse_kombu.unsettled import Unsettled

pytestmark = pytest.mark.feature("X3", "Q5")


def consumption(subscriber: QueueSubscriber, closed: list[QueueSubscriber]) -> tuple[Consumption, Unsettled]:
    unsettled = Unsettled(SimpleNamespace(settled=closed.append, reserve=lambda: None))
    return Consumption("orders", subscriber, 5, lambda _: None, unsettled, no_ack=False), unsettled


def test_reserved_deliveries_are_handed_out_one_by_one(lapse: Lapse) -> None:
    """What a consumer that fails on the first would take along is kept leased, and so comes to nobody."""
    lapse.queue("orders", lease_period="10s")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 5) as subscriber:
        one, unsettled = consumption(subscriber, [])
        for value in (b"1", b"2"):
            publisher.publish("orders", value)
        lapse.settle()
        one.reserve()
        assert unsettled.has(subscriber)
        found: list[Delivery] = []
        while came := one.take(5, 0.0):
            assert len(came) == 1
            found += came
        assert [delivery.value for delivery in found] == [b"1", b"2"]


def test_a_consumer_that_was_cancelled_reserves_nothing(lapse: Lapse) -> None:
    """The thread that renews leases may be about to reserve while another thread cancels the consumer."""
    lapse.queue("orders", lease_period="10s")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 5) as subscriber:
        closed: list[QueueSubscriber] = []
        one, unsettled = consumption(subscriber, closed)
        publisher.publish("orders", b"1")
        lapse.settle()
        one.reserve()
        assert unsettled.has(subscriber)
        one.give_back()
        publisher.publish("orders", b"2")
        lapse.settle()
        one.reserve()
        assert not unsettled.has(subscriber), "its subscription would never be closed"
        assert closed == [subscriber], "what is given back may be the last that it waited for"


def test_what_a_consumer_takes_as_another_thread_cancels_it_goes_to_others(lapse: Lapse) -> None:
    lapse.queue("orders", lease_period="1h")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 5) as subscriber:
        one, unsettled = consumption(subscriber, [])
        for value in (b"1", b"2"):
            publisher.publish("orders", value)
        lapse.settle()
        one.give_back()
        assert not one.take(5, 1.0)
        assert not unsettled.has(subscriber), "its subscription would never be closed"
    with lapse.subscriber("orders", 5) as other:
        lapse.settle()
        assert [delivery.value for delivery in other.messages(timeout=0)] == [b"1", b"2"]


@pytest.mark.parametrize("limits", [{}, {"max_cancels": 1}])
def test_what_a_stopped_consumer_was_sent_and_what_comes_later_goes_to_others(lapse: Lapse, limits: Any) -> None:
    """A consumer that is cancelled while a message is worked on, such as by `cancel_consumer` of Celery."""
    lapse.queue("orders", lease_period="1h", **limits)
    with lapse.publisher() as publisher, lapse.subscriber("orders", 3) as subscriber:
        for value in (b"1", b"2", b"3"):
            publisher.publish("orders", value)
        (held,) = subscriber.subscription.take(1, 1.0)
        subscriber.stop()
        lapse.settle()
        assert not len(subscriber.subscription.arrivals), "what nobody will take takes no memory"
        publisher.publish("orders", b"4")
        with lapse.subscriber("orders", 5) as other:
            lapse.settle()
            early = [] if limits else [b"2", b"3"]  # a return would count as a cancel
            assert [delivery.value for delivery in other.messages(timeout=0)] == [*early, b"4"]
        held.acknowledge()
        subscriber.flush()
        lapse.settle()
        assert lapse.depth("orders") == 3
        subscriber.close()
        with lapse.subscriber("orders", 5) as other:
            lapse.settle()
            assert [delivery.value for delivery in other.messages(timeout=0)] == [b"2", b"3", b"4"]
    assert not lapse.dead_letters("orders")


def test_a_consumer_whose_queue_was_deleted_stops_without_an_error(lapse: Lapse) -> None:
    """Otherwise its subscription would never be closed."""
    lapse.queue("orders", lease_period="1h")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 3) as subscriber:
        one, unsettled = consumption(subscriber, [])
        for value in (b"1", b"2"):
            publisher.publish("orders", value)
        lapse.settle()
        one.reserve()
        (held,) = one.take(1, 0.0)
        unsettled.hold("tag", held, subscriber)
        with lapse.admin() as admin:
            admin.delete_queue("orders", force=True)
        lapse.settle()
        one.give_back()
        subscriber.stop()


class Settling(QueueSubscriber):
    """Another thread, such as one of Celery's pool of threads, settles the last message during the stop."""

    channel: Any

    def stop(self) -> None:
        super().stop()
        self.channel.qos.ack("tag")


def test_a_consumer_whose_last_message_is_settled_as_it_stops_is_closed(lapse: Lapse) -> None:
    lapse.queue("orders")
    channel: Any = SimpleNamespace(_leaving=[], reserve=lambda: None)
    channel.settled = lambda subscriber: Channel.settled(channel, subscriber)
    channel.qos = Unsettled(channel)
    with lapse.publisher() as publisher, Settling("orders", 3, connection=lapse.connection) as subscriber:
        subscriber.channel = channel
        publisher.publish("orders", b"1")
        (held,) = subscriber.subscription.take(1, 1.0)
        channel.qos.hold("tag", held, subscriber)
        Channel._leave(channel, subscriber)
        lapse.settle()
        with lapse.queue_client("orders") as queue:
            assert not queue.subscriptions()
    assert not channel._leaving


@pytest.fixture
def channel(lapse: Lapse) -> Iterator[Channel]:
    transport: Any = kombu.Connection("lapse://localhost:9092", transport=Transport).transport
    transport._lapse = lapse.connection
    channel = Channel(transport)
    yield channel
    channel.close()
    transport.close_connection(transport)


def put(channel: Channel, queue: str, *bodies: str) -> None:
    for body in bodies:
        channel.basic_publish(channel.prepare_message(body), "", queue)


def test_messages_that_two_queues_have_of_one_topic_are_settled_each_for_itself(lapse: Lapse, channel: Channel) -> None:
    lapse.queue("orders", lease_period="1h")
    lapse.queue("risk", topics=["orders"], lease_period="1h")
    put(channel, "orders", "1")
    found: list[tuple[str, Any]] = []
    for queue in ("orders", "risk"):
        channel.basic_consume(queue, False, lambda message, queue=queue: found.append((queue, message)), queue)
    while len(found) < 2:
        channel.drain(1.0)
    (first, message), (second, _) = found
    message.ack()
    channel.close()
    lapse.settle()
    assert (lapse.depth(first), lapse.depth(second)) == (0, 1)


def test_what_came_with_a_message_on_which_the_consumer_fails_is_handed_out_later(
    lapse: Lapse, channel: Channel
) -> None:
    """Their leases would be kept, and yet nobody would get them."""
    lapse.queue("orders", lease_period="1h")
    put(channel, "orders", "1", "2", "3")
    lapse.settle()
    found: list[bytes] = []

    def fails_once(message: Any) -> None:
        found.append(message.body)
        message.ack()
        if len(found) == 1:
            raise LookupError("the application's own")

    channel.basic_consume("orders", False, fails_once, "tag")
    lapse.settle()
    with pytest.raises(LookupError):
        channel.drain(1.0)
    while len(found) < 3 and channel.drain(1.0):
        pass
    assert found == [b"1", b"2", b"3"]


def test_a_consumer_that_cancels_itself_gets_no_more_and_others_get_the_rest(lapse: Lapse, channel: Channel) -> None:
    lapse.queue("orders", lease_period="1h")
    put(channel, "orders", "1", "2", "3")
    lapse.settle()
    found: list[bytes] = []

    def takes_one(message: Any) -> None:
        found.append(message.body)
        message.ack()
        channel.basic_cancel("tag")

    channel.basic_consume("orders", False, takes_one, "tag")
    lapse.settle()
    assert channel.drain(1.0)
    assert found == [b"1"]
    lapse.settle()
    with lapse.subscriber("orders", 5) as other:
        lapse.settle()
        assert len(list(other.messages(timeout=0))) == 2


def test_transient_queues_get_what_is_sent_while_they_are_there_and_lose_none_of_it(
    lapse: Lapse, channel: Channel
) -> None:
    transient, found = channel._transient, list[bytes]()

    def tell(*bodies: str) -> None:
        for body in bodies:
            message = channel.prepare_message(body)
            channel._inplace_augment_message(message, "news", "")
            transient.publish(message)

    def fails_once(message: Any) -> None:
        found.append(message.body)
        if len(found) == 1:
            raise LookupError("the application's own")

    transient.declare("first")
    transient.bind("first", "news", "fanout", "", None)
    transient.delete("first")
    tell("shut down")
    transient.declare("second")
    transient.bind("second", "news", "fanout", "", None)
    tell("1", "2", "3")
    channel.basic_consume("second", True, fails_once, "tag")
    with pytest.raises(LookupError):
        channel.drain(1.0)
    while len(found) < 3 and channel.drain(1.0):
        pass
    assert found == [b"1", b"2", b"3"]


def test_a_message_that_is_about_to_be_handed_out_as_another_thread_cancels_the_consumer_stays_its_own(
    lapse: Lapse, channel: Channel
) -> None:
    """The subscription was closed, and the message handed out once more, since it was not held yet."""
    lapse.queue("orders", lease_period="1h")
    put(channel, "orders", "1")
    channel.basic_consume("orders", False, lambda message: None, "tag")
    lapse.settle()
    consumed = channel._consumed["tag"]
    assert isinstance(consumed, Consumption)
    (delivery,) = consumed.take(1, 1.0)
    channel.basic_cancel("tag")
    message = channel._message("orders", delivery, consumed.subscriber, no_ack=False)
    assert message is not None
    message.ack()
    lapse.settle()
    assert lapse.depth("orders") == 0


@pytest.mark.feature("X3", "Q18")
def test_a_temporary_queue_that_has_deleted_itself_is_created_again_for_the_next_message(
    lapse: Lapse, channel: Channel
) -> None:
    """A program that only sends declares its queues once."""
    channel.queue_declare("brief", arguments={"x-expires": 600_000})
    for body in ("1", "2"):
        put(channel, "brief", body)
        with lapse.queue_client("brief") as queue:
            assert [one.state for one in queue.peek()] == ["available"]
            queue.purge()
        lapse.clock.advance(599)
        assert "brief" in lapse.connection.queues(), "as it was declared"
        lapse.clock.advance(10)
        assert "brief" not in lapse.connection.partitions()
    message = channel.prepare_message("3")
    message["properties"]["delivery_mode"] = 1
    channel.basic_publish(message, "", "brief")
    assert "brief" not in lapse.connection.queues(), "what need not be kept creates no queue"


def test_a_time_before_1970_is_past(lapse: Lapse, channel: Channel) -> None:
    lapse.queue("orders")
    channel.basic_publish(channel.prepare_message("1", headers={"eta": "1960-01-01T00:00:00+00:00"}), "", "orders")
    with lapse.queue_client("orders") as queue:
        assert [one.state for one in queue.peek()] == ["available"]


@pytest.mark.feature("X3", "C4", "L5")
def test_a_queue_with_a_task_for_later_is_not_empty(lapse: Lapse, channel: Channel) -> None:
    """It was deleted with the task."""
    lapse.queue("orders")
    channel.basic_publish(channel.prepare_message("1", headers={"eta": "2030-01-01T00:00:00+00:00"}), "", "orders")
    channel.queue_delete("orders", if_empty=True)
    with lapse.queue_client("orders") as queue:
        assert [one.state for one in queue.peek()] == ["scheduled"]
        queue.purge()
    channel.queue_delete("orders", if_empty=True)
    assert "orders" not in lapse.connection.queues()
    channel.queue_delete("orders")


@pytest.mark.parametrize("same", ["celery", "a.b_c-d", "_" * 200, "amq.gen-4c5f"])
def test_a_name_that_a_topic_can_have_stays(same: str) -> None:
    assert queue_name(same) == same


def test_queues_whose_names_topics_cannot_have_stay_apart() -> None:
    """Else each consumer would take the tasks of the other queue."""
    given = [
        "a b",
        "a/b",
        "a:b",
        "a_b",
        "ä",
        "ö",
        ".a",
        "-a",
        "_a",
        "n" * 200,
        "n" * 201,
        "n" * 202,
        "\udcff",
        "\udcfe",
    ]
    found = [queue_name(one) for one in given]
    assert len(set(found)) == len(given)
    assert found == [queue_name(one) for one in given]
    for name in found:
        assert topic.NAME.match(name)
    assert queue_name("mails/urgent") == "mails_urgent-ebc6fbcd", "docs/celery.md shows it"
