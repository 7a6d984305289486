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
from lapse_client import Connection, Publisher, PublishFailed
from lapse_client.error import LapseError
from lapse_client.session.channel import Channel
from lapse_client.session.listener import Listener

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
