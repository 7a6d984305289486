"""A producer that can send nothing any more says why, whatever its reports say first, and to which thread (X5, X7)."""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from lapse.protocol.command import Command
from lapse.testing.cluster import Cluster
from lapse.testing.memory_clients import MemoryProducer
from lapse.testing.memory_transport import MemoryTransport
from lapse_client import Closed, CommandFailed, Connection, Publisher, PublishFailed
from lapse_client.error import LapseError
from lapse_client.publisher.publish_targets import PublishTargets
from lapse_client.session.channel import Channel
from lapse_client.session.lifecycle import Lifecycle
from lapse_client.session.listener import Listener
from lapse_client.session.session import Session

pytestmark = pytest.mark.feature("X5", "X7")

FORBIDDEN = "Have Write on it granted"


class EndedProducer(MemoryProducer):
    """One whose broker will have nothing of it, as librdkafka's: the reports of what it purges may come first."""

    refuses_at_once = False
    has_refused = False
    ended = False

    def produce(self, topic: str, *args: Any, on_delivery: Any = None, **options: Any) -> None:
        if self.refuses_at_once:
            raise KafkaException(KafkaError(KafkaError._FATAL, "Unable to produce message"))
        super().produce(topic, *args, on_delivery=on_delivery, **options)
        self._reports = type(self._reports)(
            (report, KafkaError(KafkaError._PURGE_QUEUE), message) for report, _, message in self._reports
        )

    def poll(self, timeout: float = 0.0) -> int:
        reported = super().poll(0)
        if not reported and self.ended and not self.has_refused:
            self.has_refused = True
            raise KafkaException(KafkaError(KafkaError.CLUSTER_AUTHORIZATION_FAILED))
        self.ended = True
        return reported


class EndedTransport(MemoryTransport):
    def __init__(self, refuses_at_once: bool) -> None:
        super().__init__(Cluster(1_000))
        for name in ("orders", "lapse.orders.commands", "lapse.orders.deliveries"):
            self._cluster.create(name, 1)
        self._refuses_at_once = refuses_at_once

    def producer(self, config: dict[str, Any]) -> Any:
        made = EndedProducer(self._cluster)
        made.refuses_at_once = self._refuses_at_once
        return made

    def patience(self, timeout_s: float, lingering_s: Callable[[], float] = lambda: 0.0) -> float:
        return timeout_s


@pytest.mark.parametrize("refuses_at_once", [False, True])
def test_publish_names_the_right_that_is_lacking(refuses_at_once: bool) -> None:
    with pytest.raises(PublishFailed, match=FORBIDDEN), Publisher(connection(refuses_at_once)) as publisher:
        publisher.publish("orders", b"x")


def test_a_future_names_the_right_that_is_lacking_although_its_report_came_first() -> None:
    with Publisher(connection(False)) as publisher, pytest.raises(PublishFailed, match=FORBIDDEN):
        publisher.submit("orders", b"x").result(10)


def test_a_command_that_cannot_be_sent_any_more_names_the_right_that_is_lacking() -> None:
    """Its thread hears of the cause after the producer has refused the command."""
    channel: Channel[Any] = Channel(connection(True), [("orders", 1)])
    sent = channel.sender.send(channel.shards[0], Command(command="depth"))
    silent = channel.sender.send(channel.shards[0], Command(command="acknowledge", answer="none"))
    assert not sent.done()
    gone = threading.Event()
    channel.start(Listener(), lambda error: gone.set())
    assert gone.wait(10)
    for one in (sent, silent):
        with pytest.raises(LapseError, match=FORBIDDEN):
            one.result(0)
    channel.close()


def test_the_senders_of_what_is_left_learn_of_it_although_the_first_flush_raises(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def flush(producer: EndedProducer, timeout: float) -> int:
        if not producer.has_refused:
            producer.has_refused = True
            raise KafkaException(KafkaError(KafkaError._FATAL))
        return MemoryProducer.flush(producer, timeout)

    monkeypatch.setattr(EndedProducer, "flush", flush)
    channel: Channel[Any] = Channel(connection(False), [("orders", 1)])
    sent = channel.sender.send(channel.shards[0], Command(command="acknowledge", answer="errors"))
    channel.close()
    with pytest.raises(LapseError):
        sent.result(0)


def memory() -> Connection:
    """One whose broker takes everything."""
    cluster = Cluster(1_000)
    cluster.create("orders", 1)
    return Connection("memory", transport=MemoryTransport(cluster))


def connection(refuses_at_once: bool) -> Connection:
    return Connection("memory", transport=EndedTransport(refuses_at_once))


NOWHERE = "127.0.0.1:1"


@pytest.mark.feature("X3")
def test_a_publisher_closes_in_time_although_no_broker_takes_what_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """A producer of librdkafka tries for five minutes, and its close waits for that."""
    monkeypatch.setattr(PublishTargets, "topic_of", lambda _targets, to: to)
    publisher = Publisher(Connection(NOWHERE), timeout_s=0.1)
    sent = publisher.submit("orders", b"x")
    failed: list[BaseException] = []

    def close() -> None:
        try:
            publisher.close()
        except PublishFailed as error:
            failed.append(error)

    closing = threading.Thread(target=close, daemon=True)
    closing.start()
    closing.join(30)
    assert [str(error).count("1 records are still unsent after 0.1 s") for error in failed] == [1]
    with pytest.raises(PublishFailed):
        sent.result(0)


@pytest.mark.feature("X3")
def test_a_publish_that_a_close_overtakes_raises_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    looking, go_on = threading.Event(), threading.Event()

    def topic_of(_targets: PublishTargets, to: str) -> str:
        looking.set()
        assert go_on.wait(30)
        return to

    monkeypatch.setattr(PublishTargets, "topic_of", topic_of)
    publisher = Publisher(Connection(NOWHERE))
    raised: list[BaseException] = []

    def publish() -> None:
        try:
            publisher.submit("orders", b"x")
        except Exception as error:  # noqa: BLE001  # any other than the right one fails the test
            raised.append(error)

    publishing = threading.Thread(target=publish)
    publishing.start()
    assert looking.wait(30)
    publisher.close()
    go_on.set()
    publishing.join(30)
    assert [type(error) for error in raised] == [Closed]
    with pytest.raises(Closed):
        publisher.poll()


@pytest.mark.feature("X7", "S3")
def test_a_command_that_is_too_large_for_kafka_is_no_matter_of_the_connection() -> None:
    channel: Channel[Any] = Channel(Connection(NOWHERE), [("prices", 1)])
    keys = tuple(b"%0100d" % number for number in range(15_000))
    sent = channel.sender.send(channel.shards[0], Command(command="sow_delete", keys=keys))
    with pytest.raises(CommandFailed, match="Name fewer keys, payloads or bookmarks in one call"):
        sent.result(0)
    channel.close()


@pytest.mark.feature("X3")
def test_what_nobody_waits_for_any_more_is_not_waited_for_at_a_close(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call has raised by then. Only a subscription has settlements that may still be on their way."""
    waited_s: list[float] = []
    for subscription in ("", "me"):
        session: Session[Any] = Session(memory(), [("orders", 1)], Lifecycle("it"), subscription)
        session.lifecycle.error = LapseError("no broker answers")
        monkeypatch.setattr(session.channel, "close", waited_s.append)
        session.leave(30)
    assert waited_s[0] <= 1 < waited_s[1]


def test_records_that_are_unsent_have_no_common_topic() -> None:
    assert str(PublishFailed("", None, "2 records are unsent", 2)).startswith("not published: 2 records are unsent. ")


@pytest.mark.feature("X3")
def test_a_callback_of_a_publication_may_close_the_publisher() -> None:
    """It is called within a report, where librdkafka hands out no further one, by the thread that a close waits for."""
    publisher = Publisher(memory())
    producer: Any = publisher._producer
    producer.cut_off = True  # no report comes before the callback is there
    first, second = (publisher.submit("orders", value) for value in (b"1", b"2"))
    closed = threading.Event()
    first.add_done_callback(lambda _: (publisher.close(), closed.set()))
    producer.reconnect()
    assert closed.wait(30)
    assert second.result(30).offset == 1
    with pytest.raises(Closed):
        publisher.publish("orders", b"3")
