"""What goes on beside a fault: the other queues of a subscription, and the other queries of a client (X3, S5)."""

import re
import sys
import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException

from lapse.protocol.command import Command
from lapse.testing import Lapse
from lapse.testing.memory_clients import MemoryProducer
from lapse_client import Connection, Delivery, LapseError, QueueSubscriber
from lapse_client.session.channel import Channel
from lapse_client.sow.query import SowQuery
from support.suite.at_length import alike


@pytest.mark.feature("Q3", "X3")
def test_a_queue_that_cannot_be_joined_keeps_no_other_from_it(lapse: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    lapse.queue("a")
    joined: list[str] = []
    with lapse.subscriber("a") as subscriber:

        def ends(_: QueueSubscriber, queue: str) -> list[Any]:
            if queue == "b":
                raise LapseError("its deliveries may not be seen")
            joined.append(queue)
            return []

        monkeypatch.setattr(QueueSubscriber, "_delivery_ends", ends)
        monkeypatch.setattr(Connection, "queues", lambda _: ["a", "b", "c"])
        subscriber.look_for(re.compile("[a-c]"))
    assert joined == ["c"]


@pytest.mark.slow
@pytest.mark.feature("S5", "X3")
def test_a_take_over_during_the_first_commands_of_a_query_ends_no_channel(lapse: Lapse) -> None:
    lapse.sow("prices", partitions=2)
    channel: Channel[Any] = Channel(lapse.connection, [("prices", 400)])
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    failures: list[BaseException] = []
    try:
        for _ in range(8):
            query = SowQuery(channel, Command(command="sow"), 1.0)
            over = threading.Event()

            def take_over(query: SowQuery = query, over: threading.Event = over) -> None:
                try:
                    while not over.is_set():
                        query.on_taken_over(channel.shards[0])
                except RuntimeError as error:
                    failures.append(error)

            thread = threading.Thread(target=take_over)
            thread.start()
            query._ask(None)
            over.set()
            thread.join()
    finally:
        sys.setswitchinterval(before)
        channel.close()
    assert not failures


@pytest.mark.feature("C55", "X3", "X8")
@pytest.mark.parametrize("partitions", alike(2, 1))
def test_a_subscriber_that_starts_while_the_worker_crashes_is_subscribed_by_the_next_one(
    partitions: int, lapse: Lapse
) -> None:
    """The subscription was journaled, and its answer never written."""
    lapse.queue("orders", partitions=partitions)
    lapse.sow("prices", partitions=partitions)
    with lapse.publisher() as publisher, lapse.sow_client("prices") as prices:
        lapse.crash(before="deliveries")
        with lapse.subscriber("orders", 4) as subscriber:
            publisher.publish("orders", b"1")
            delivery = subscriber.receive(timeout=5)
            assert delivery is not None
            assert delivery.delivery_count == 1
        for subscribe in (prices.subscribe, prices.delta_subscribe):
            lapse.crash(before="deliveries")
            with subscribe() as updates:
                publisher.publish("prices", b"{}", key="A")
                assert [update.kind for update in updates.updates(timeout=5)] == ["publish"]


@pytest.mark.feature("X3", "X7")
def test_a_client_is_closed_although_its_producer_has_ended(lapse: Lapse, monkeypatch: pytest.MonkeyPatch) -> None:
    """librdkafka's flush raises what ended it in the midst of a report, which makes it a SystemError."""

    def ended(*_: object) -> int:
        raise SystemError("flush") from KafkaException(KafkaError(KafkaError._FATAL))

    closed: list[object] = []
    lapse.queue("orders")
    with lapse.subscriber("orders") as subscriber:
        producer, _ = subscriber.subscription.channel.endpoints
        monkeypatch.setattr(producer, "flush", ended)
        monkeypatch.setattr(producer, "close", lambda: closed.append(producer))
    assert closed == [producer]


@pytest.mark.feature("X3", "C2")
@pytest.mark.parametrize("answered", [True, False])
def test_a_close_without_answers_does_not_wait_for_kafka_as_well(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch, answered: bool
) -> None:
    waited: list[float] = []
    flush = MemoryProducer.flush

    def noted(producer: MemoryProducer, timeout: float = 0.0) -> int:
        waited.append(timeout)
        return flush(producer, timeout)

    monkeypatch.setattr(MemoryProducer, "flush", noted)
    lapse.queue("orders")
    with lapse.subscriber("orders") as subscriber:
        if not answered:
            lapse.lose(subscriber)
        waited.clear()
    assert waited[0] == (15.0 if answered else 1.0)


@pytest.mark.feature("C51", "X8")
def test_what_is_held_enters_at_the_instant_that_makes_room_for_it(lapse: Lapse) -> None:
    """Nobody takes the message that fills the depth. It expires, and the held one is delivered without a command."""
    lapse.queue("orders", target_queue_depth=1, expiration="enabled")
    with lapse.publisher() as publisher, lapse.subscriber("orders", filter="/id = 1") as subscriber:
        publisher.publish("orders", b'{"id": 1}', enqueue_at_ms=lapse.clock.now_ms + 1_000)
        publisher.publish("orders", b'{"id": 0}', ttl_ms=3_000)
        lapse.clock.advance(3)
        delivery = subscriber.receive(timeout=5)
        assert delivery is not None
        assert delivery.value == b'{"id": 1}'


@pytest.mark.feature("X3")
def test_a_close_waits_for_the_handlers_of_all_runs(lapse: Lapse) -> None:
    """Each thread may call `run`. The first one that ends must not close the subscriber under another's handler."""
    lapse.queue("orders")
    at_work, go_on, ended = threading.Barrier(3), threading.Event(), list[bytes | None]()
    subscriber = lapse.subscriber("orders", 10).start()

    def handle(delivery: Delivery) -> None:
        at_work.wait(20)
        if delivery.value == b"slow":
            go_on.wait(20)
        ended.append(delivery.value)

    with lapse.publisher() as publisher:
        publisher.publish("orders", b"slow")
        publisher.publish("orders", b"quick")
    runs = [threading.Thread(target=subscriber.run, args=[handle]) for _ in range(2)]
    for run in runs:
        run.start()
    at_work.wait(20)
    closing = threading.Thread(target=subscriber.close)
    closing.start()
    lapse.until(lambda: ended == [b"quick"])
    for thread in (*runs, closing):
        thread.join(0.1)
    go_on.set()
    for thread in (*runs, closing):
        thread.join(20)
    assert lapse.depth("orders") == 0, "the slow one's acknowledgment was sent"
