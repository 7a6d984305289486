"""Transactions in memory: outputs and acknowledgments, all or none (X9, X8)."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, NoReturn

import pytest
from confluent_kafka import KafkaError, KafkaException

from lapse.protocol.bookmark import Bookmark
from lapse.testing import CrashPoint, Lapse
from lapse.testing.memory_clients import MemoryConsumer
from lapse.testing.memory_transport import MemoryTransport
from lapse_client import Closed, Delivery, QueueSubscriber, Retry, TransactionFailed, aio
from lapse_client.transaction import decision_log
from lapse_client.transaction.decision_log import DecisionLog, Verdict, claim

pytestmark = pytest.mark.feature("X9", "X8")


def values(lapse: Lapse, topic: str) -> list[bytes | None]:
    return [record.value for record in lapse.records(topic)]


def publish(lapse: Lapse, *some: str) -> None:
    with lapse.publisher() as publisher:
        for value in some:
            publisher.publish("orders", value)


def received(subscriber: QueueSubscriber) -> Delivery:
    delivery = subscriber.receive(timeout=5)
    assert delivery is not None
    return delivery


def ship(delivery: Delivery, topic: str = "shipments") -> bool:
    with delivery.transaction() as tx:
        tx.produce(topic, delivery.value, ttl_ms=5_000)
    return tx.repeated


@pytest.mark.parametrize("crash", [None, *CrashPoint])
def test_an_output_is_there_once_and_its_message_is_acknowledged(lapse: Lapse, crash: CrashPoint | None) -> None:
    lapse.queue("orders")
    lapse.topic("shipments")
    publish(lapse, "a", "b")
    with lapse.subscriber("orders", 10) as subscriber:
        first, second = received(subscriber), received(subscriber)
        if crash is not None:
            lapse.crash(before=crash)
        assert not ship(first)
        with second.transaction() as tx:
            tx.produce("shipments", b"never")
            raise Retry(after=0)
        again = received(subscriber)
        assert (again.value, again.delivery_count) == (b"b", 2)
        with pytest.raises(TransactionFailed, match="nowhere: not published") as failed:
            ship_nowhere(lapse, again)
        assert not failed.value.outcome_unknown
        assert not ship(received(subscriber))
    assert values(lapse, "shipments") == [b"a", b"b"]
    assert lapse.depth("orders") == 0


@pytest.mark.feature("C16")
def test_a_delivery_that_is_named_twice_is_acknowledged_once(lapse: Lapse) -> None:
    lapse.queue("orders")
    lapse.topic("shipments")
    publish(lapse, "a", "b")
    with lapse.subscriber("orders", 10) as subscriber:
        first, second = received(subscriber), received(subscriber)
        with subscriber.transaction([first, first, second]) as tx:
            tx.produce("shipments", b"both")
        assert not tx.repeated
        assert subscriber.receive(timeout=1) is None
    assert values(lapse, "shipments") == [b"both"]
    assert lapse.depth("orders") == 0


def ship_nowhere(lapse: Lapse, delivery: Delivery) -> None:
    """To a topic that is deleted after it was looked up."""
    lapse.topic("nowhere")
    work = delivery.lot.settler.transaction((delivery,))
    work.produce("nowhere", b"x")
    with work:
        delivery.lot.settler.work._names().topic_of("nowhere")  # type: ignore[attr-defined]
        lapse._cluster.delete("nowhere")


def test_a_lease_that_is_over_takes_the_outputs_with_it(lapse: Lapse) -> None:
    lapse.queue("orders", lease_period="30s")
    lapse.topic("shipments")
    publish(lapse, "a")
    with lapse.subscriber("orders", 10) as subscriber:
        held = received(subscriber)
        lapse.clock.advance(30)
        again = received(subscriber)
        with pytest.raises(TransactionFailed, match="is stale: its lease was lost"):
            ship(held)
        assert values(lapse, "shipments") == []
        assert not ship(again)
    assert values(lapse, "shipments") == [b"a"]
    assert lapse.depth("orders") == 0


def test_a_fault_in_the_commit_gives_the_message_back_at_once(lapse: Lapse) -> None:
    """Else it would wait for its lease's end, and the next message with it."""
    lapse.queue("orders", lease_period="1h")
    publish(lapse, "a")
    with lapse.subscriber("orders") as subscriber:
        held = received(subscriber)
        work = subscriber.subscription.settler.work
        assert work is not None
        work._names = lambda: 1 / 0  # type: ignore[method-assign, assignment, return-value]
        with pytest.raises(ZeroDivisionError):
            ship(held)
        again = received(subscriber)
        assert (again.value, again.delivery_count) == (b"a", 2)


def test_what_was_committed_and_not_acknowledged_is_not_done_again(lapse: Lapse) -> None:
    lapse.queue("orders", heartbeat_timeout="10s")
    lapse.topic("shipments")
    publish(lapse, "a")
    with lapse.subscriber("orders") as dying:
        held = received(dying)
        work = dying.subscription.settler.work
        assert work is not None
        work._acknowledge = lambda deliveries: None  # type: ignore[method-assign]  # it dies before it can
        assert not ship(held)
        lapse.lose(dying)
        lapse.clock.advance(60)
        lapse.crash()
        with lapse.subscriber("orders") as other:
            assert ship(received(other)), "somebody had committed it before"
    assert values(lapse, "shipments") == [b"a"]
    assert lapse.depth("orders") == 0


def test_the_asynchronous_client_works_in_transactions(lapse: Lapse) -> None:
    lapse.queue("orders")
    lapse.topic("shipments")
    publish(lapse, *map(str, range(20)))

    async def main() -> None:
        async with aio.QueueSubscriber("orders", 100) as subscriber:
            async for delivery in subscriber.messages(timeout=1):
                async with delivery.transaction() as tx:
                    tx.produce("shipments", delivery.value)

    asyncio.run(main())
    assert values(lapse, "shipments") == [b"%d" % number for number in range(20)]
    assert lapse.depth("orders") == 0


@pytest.mark.slow
def test_claims_of_messages_that_are_done_take_no_memory_for_ever(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They are read whenever a message comes again, which somewhere is always the case."""
    monkeypatch.setattr(decision_log, "_MOST_KEPT", 10)
    lapse.queue("orders", lease_period="10s")
    lapse.topic("shipments")
    kept: list[int] = []
    with lapse.subscriber("orders", 1) as subscriber:
        for number in range(30):
            publish(lapse, str(number))
            received(subscriber).cancel(0)
            assert not ship(received(subscriber))
            assert subscriber.subscription.settler.work is not None
            (part,) = subscriber.subscription.settler.work._log("orders")._parts.values()
            kept.append(len(part._claimed))
            lapse.clock.advance(20)
    assert max(kept) <= 20
    assert len(values(lapse, "shipments")) == 30


def test_a_log_of_decisions_that_could_not_be_opened_is_opened_again(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An older message in doubt has it read from an earlier instant on. A closed reader must not be left."""
    monkeypatch.setattr(decision_log, "_PATIENCE_S", 1.0)
    lapse.queue("orders")
    decisions = DecisionLog(lapse.connection, "orders", 1)
    decisions.make()
    now_ms = int(lapse.clock.now_ms)
    newer, older = in_doubt(1, now_ms), in_doubt(0, now_ms - 1_000_000)
    assert decisions.verdicts([newer]) == [Verdict.NONE]

    def silent(*_: object, **__: object) -> NoReturn:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))

    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(MemoryConsumer, "offsets_for_times", silent)
        with pytest.raises(KafkaException):
            decisions.verdicts([older])
    lapse.connection.producer().produce(decisions.topic, b"{}", claim(newer), partition=0)
    assert decisions.verdicts([newer]) == [Verdict.DONE]
    decisions.close()


def test_a_block_that_a_close_overtakes_takes_no_transactional_id_back(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A producer that is opened with an id ends the transactions of whoever has the id now."""
    lapse.queue("orders")
    lapse.topic("shipments")
    publish(lapse, "a")
    opened: list[str] = []
    producer = MemoryTransport.producer

    def noted(transport: MemoryTransport, config: dict[str, Any]) -> Any:
        opened.append(config.get("transactional.id", ""))
        return producer(transport, config)

    monkeypatch.setattr(MemoryTransport, "producer", noted)
    first = lapse.subscriber("orders", transactional_id="shipping").start()
    delivery = received(first)

    def overtaken() -> None:
        with delivery.transaction() as tx:
            tx.produce("shipments", b"late")
            first.close()

    with pytest.raises(Closed):
        overtaken()
    assert "shipping" not in opened
    with lapse.subscriber("orders", transactional_id="shipping") as second:
        assert not ship(received(second))
    assert values(lapse, "shipments") == [b"a"]


def test_a_delta_is_an_output_as_a_publication_is(lapse: Lapse) -> None:
    lapse.queue("orders")
    lapse.sow("prices")
    publish(lapse, "a")
    with lapse.publisher() as publisher, lapse.subscriber("orders") as subscriber, lapse.sow_client("prices") as prices:
        publisher.publish("prices", b'{"bid":1,"ask":2}', "A")
        with received(subscriber).transaction() as tx:
            tx.produce("prices", b'{"bid":3}', "A", delta=True)
        assert [record.value for record in prices.query()] == [b'{"bid":3,"ask":2}']


def in_doubt(offset: int, timestamp_ms: int) -> Any:
    return SimpleNamespace(
        shard=SimpleNamespace(partition=0),
        bookmark=Bookmark("orders", 0, offset),
        place=b"orders:0:%d" % offset,
        timestamp_ms=timestamp_ms,
    )
