"""Outputs and acknowledgments, all or none: over exceptions, lost leases, kill -9 and fencing (X9)."""

import asyncio
import itertools
import os
import random
import signal
import sys
import time
from collections import Counter
from types import ModuleType
from typing import Any

import pytest
from confluent_kafka.admin import (  # type: ignore[attr-defined]  # it lists none of its names in __all__
    AdminClient,
    AlterConfigOpType,
    ConfigEntry,
    ConfigResource,
    ResourceType,
)

import support.consumers.atomic
import support.consumers.dying
from lapse_client import Delivery, InvalidPublication, QueueSubscriber, Retry, TransactionFailed, aio
from support.kafka.log import Tail, until
from support.processes import fork_server
from support.processes.deployment import Deployment, broker_now_ms
from support.suite.at_length import AT_LENGTH, cases

pytestmark = pytest.mark.feature("X9")

QUEUES = {
    "orders": {},
    "killed": {},
    "unsure": {},
    "interrupted": {},
    "quick": {"lease_period": "2s"},
    "large": {"max_deliveries": 1},
    "small": {},
    "once": {"semantics": "at-most-once"},
    "shipments": {},
    "many5000": {},
    "done5000": {},
    **({"many1000000": {}, "done1000000": {}} if AT_LENGTH else {}),
}


def outputs(served: Deployment) -> list[bytes]:
    """What a reader of committed records sees on the topic of outputs."""
    tail = Tail(served.servers, served.name("shipments"))
    try:
        return sorted(message.value() or b"" for message in tail.drain())
    finally:
        tail.close()


def of(served: Deployment, prefix: bytes) -> list[bytes]:
    return [value for value in outputs(served) if value.startswith(prefix)]


def ship(delivery: Delivery | None, topic: str, *values: bytes | str, **options: int) -> None:
    """Work on a delivery in a transaction."""
    assert delivery is not None
    with delivery.transaction() as tx:
        for value in values:
            tx.produce(topic, value, **options)


def first_of(*subscribers: QueueSubscriber) -> tuple[Delivery, QueueSubscriber]:
    """The delivery that one of them gets, and who gets it."""
    found: list[tuple[Delivery, QueueSubscriber]] = []

    def gets() -> bool:
        for one in subscribers:
            if (delivery := one.receive(0.02)) is not None:
                found.append((delivery, one))
                return True
        return False

    until(gets, "somebody gets it")
    return found[0]


def test_outputs_and_acknowledgments_are_all_or_none(served: Deployment) -> None:
    shipments = served.name("shipments")
    served.write("orders", *(f"a{number}" for number in range(6)))
    with served.subscriber("orders", 10) as subscriber:
        first, second, *rest = [one for one in (subscriber.receive(20) for _ in range(6)) if one is not None]
        with first.transaction() as tx:
            tx.produce(shipments, b"a of the first", ttl_ms=60_000)
            tx.produce(shipments, b"a and another one")
        assert not tx.repeated
        with pytest.raises(InvalidPublication):
            ship(second, shipments, b"a never", "no payload", ttl_ms=-1)
        with rest[0].transaction() as tx:
            tx.produce(shipments, b"a never")
            raise Retry(after=0)
        with pytest.raises(TransactionFailed, match="Nothing of it counts"):
            ship(rest[1], shipments, b"a never", b"x" * 2_000_000)
        with subscriber.transaction(rest[2:]) as tx:
            tx.produce(shipments, b"a of two")
        again = [one for one in (subscriber.receive(20) for _ in range(3)) if one is not None]
        assert sorted((one.value, one.delivery_count) for one in again) == [(b"a1", 2), (b"a2", 2), (b"a3", 2)]
        for delivery in again:
            with delivery.transaction() as tx:
                tx.produce(shipments, b"a again " + (delivery.value or b""))
    expected = [b"a again a1", b"a again a2", b"a again a3", b"a and another one", b"a of the first", b"a of two"]
    assert of(served, b"a") == expected
    assert served.depth("orders")["depth"] == 0


def test_the_asynchronous_client_works_in_transactions(served: Deployment) -> None:
    served.write("orders", *(f"b{number}" for number in range(20)))
    shipments = served.name("shipments")

    async def work(delivery: aio.Delivery) -> None:
        async with delivery.transaction() as tx:
            tx.produce(shipments, delivery.value)
            if delivery.delivery_count == 1 and delivery.value == b"b7":
                raise Retry(after=0)

    async def main() -> None:
        async with aio.QueueSubscriber(served.name("orders"), 10, connection=served.connection) as subscriber:
            running = asyncio.create_task(subscriber.run(work, tasks=4))
            await asyncio.to_thread(until, lambda: served.depth("orders")["depth"] == 0, "all are acknowledged")
            await subscriber.close()
            await running

    asyncio.run(main())
    assert of(served, b"b") == sorted(b"b%d" % number for number in range(20))


def test_a_lost_lease_takes_the_outputs_with_it(served: Deployment) -> None:
    shipments = served.name("shipments")
    served.write("quick", "c0")
    with served.subscriber("quick", 1) as slow, served.subscriber("quick", 1) as other:
        held, taken_by = first_of(slow, other)
        taker = other if taken_by is slow else slow
        again = taker.receive(20)
        with pytest.raises(TransactionFailed, match="its lease was lost"):
            ship(held, shipments, b"c too late")
        taken_by.close()
        while again is not None:  # the lease is short, and this machine may be busy
            try:
                ship(again, shipments, b"c in time")
                break
            except TransactionFailed:
                again = taker.receive(20)
    assert of(served, b"c") == [b"c in time"]
    assert served.depth("quick")["depth"] == 0


def test_whoever_comes_later_under_a_name_goes_on_alone(served: Deployment) -> None:
    shipments = served.name("shipments")
    served.write("orders", "d0", "d1", "d2")
    shop = f"shop-{served.token}"
    older = served.subscriber("orders", 10, transactional_id=shop).start()
    first, second, third = (older.receive(20) for _ in range(3))
    ship(first, shipments, b"d0")
    with served.subscriber("orders", 10, transactional_id=shop) as newer:
        served.write("orders", "d3")
        ship(newer.receive(20) or older.receive(20), shipments, b"d3")
        for delivery in (second, third):
            with pytest.raises(TransactionFailed, match="another process uses the transactional_id"):
                ship(delivery, shipments, b"d never")
        older.close()
        ship(newer.receive(20), shipments, b"d1")
        ship(newer.receive(20), shipments, b"d2")
    assert of(served, b"d") == [b"d0", b"d1", b"d2", b"d3"]


@pytest.mark.feature("Q22", "C61")
def test_what_comes_back_by_a_rewind_is_worked_on_anew(served: Deployment) -> None:
    """Its earlier generation is committed; that says nothing of this one, not even when this one comes again."""
    shipments = served.name("shipments")
    (written,) = served.write("orders", "r0")
    with served.subscriber("orders", 1) as subscriber, served.queue("orders") as queue:
        ship(subscriber.receive(20), shipments, b"r first")
        until(lambda: served.depth("orders")["depth"] == 0, "it is acknowledged")
        assert queue.rewind(served.bookmark("orders", written))["rewound"] == 1
        delivery = subscriber.receive(20)
        assert delivery is not None
        with delivery.transaction():
            raise Retry(after=0)
        again = subscriber.receive(20)
        assert again is not None
        assert (again.bookmark.generation, again.delivery_count) == (1, 2)
        ship(again, shipments, b"r second")
    assert of(served, b"r") == [b"r first", b"r second"]


def test_an_output_that_kafka_refuses_fails_only_its_own_transaction(served: Deployment) -> None:
    served.write("large", "a", "b", "c", "d")
    outputs = ConfigResource(ResourceType.TOPIC, served.name("small"))
    outputs.add_incremental_config(
        ConfigEntry("max.message.bytes", "2000", incremental_operation=AlterConfigOpType.SET)
    )
    admin = AdminClient({"bootstrap.servers": served.servers})
    for done in admin.incremental_alter_configs([outputs]).values():
        done.result(30)
    with served.subscriber("large", 1) as subscriber:
        for size in (5, 5_000, 5, 5):
            delivery = subscriber.receive(20)
            if size > 2_000:
                with pytest.raises(TransactionFailed, match="MSG_SIZE_TOO_LARGE"):
                    ship(delivery, served.name("small"), b"x" * size)
            else:
                ship(delivery, served.name("small"), b"x" * size)
    until(lambda: served.depth("large")["depth"] == 0, "each was delivered once")


def test_what_has_no_lease_has_no_transaction(served: Deployment) -> None:
    served.write("once", "e0")
    with served.subscriber("once", 1) as subscriber:
        delivery = subscriber.receive(20)
        assert delivery is not None
        with pytest.raises(InvalidPublication, match="was delivered at most once"):
            delivery.transaction()
        delivery.acknowledge()


def program(module: ModuleType, *arguments: str) -> fork_server.Process:
    """Start a consumer of `support`; its output goes where that of the tests goes."""
    return fork_server.start([str(module.__file__), *arguments], sys.__stderr__.buffer, os.environ)


def test_a_consumer_that_is_killed_at_any_step_leaves_both_or_neither(served: Deployment) -> None:
    """Four consumers die, each at another step; others work on meanwhile, and get what those had once it is known."""
    shipments, queue = served.name("shipments"), served.name("killed")
    steps = ("begun", "written", "held", "decided")
    served.write("killed", *(f"k{number}" for number in range(len(steps))))
    dying = [program(support.consumers.dying, served.servers, queue, shipments, step) for step in steps]
    assert [one.wait(60) for one in dying] == [-signal.SIGKILL] * len(steps)
    served.write("killed", *(f"l{number}" for number in range(200)))
    seen: list[bytes | None] = []
    handed_out: list[float] = []
    with served.subscriber("killed", 20) as subscriber:
        while len(seen) < 200 + len(steps) - 1:
            delivery = subscriber.receive(60)
            assert delivery is not None, seen
            ship(delivery, shipments, delivery.value or b"")
            seen.append(delivery.value)
            handed_out.append(time.monotonic())
        assert subscriber.receive(0.5) is None, "what was committed is not handed out"
    shipped = of(served, b"k")
    assert sorted(value[:2] for value in shipped) == [b"k0", b"k1", b"k2", b"k3"], "each once"
    assert [value[2:] for value in shipped if b"by" in value] == [b" by decided"]
    assert of(served, b"l") == sorted(b"l%d" % number for number in range(200))
    until(lambda: served.depth("killed")["depth"] == 0, "all are acknowledged")
    # Kafka lets the abandoned ones stay open for ten seconds, and looks every ten: nobody else waits for that.
    assert max(after - before for before, after in itertools.pairwise(handed_out[:200])) < 10


@pytest.mark.feature("C3", "C6")
def test_a_transaction_finds_out_what_another_had_committed(served: Deployment) -> None:
    """As a last resort, where a subscription began before there was anything to know.

    The message's stamp is ahead of the clock, so that of the decision is an hour older.
    """
    shipments = served.name("shipments")
    served.write("unsure", "f0", timestamp_ms=broker_now_ms() + 3_600_000)
    with served.subscriber("unsure", 1) as one, served.subscriber("unsure", 1) as another:
        held, dying = first_of(one, another)
        other = another if dying is one else one
        work = dying.subscription.settler.work
        assert work is not None
        work._acknowledge = lambda deliveries: None  # type: ignore[method-assign]  # it dies before it can
        ship(held, shipments, b"f of the first")
        dying.close()
        delivery = other.receive(20)
        assert delivery is not None
        with delivery.transaction() as tx:
            tx.produce(shipments, b"f again")
        assert tx.repeated
    assert of(served, b"f") == [b"f of the first"]
    until(lambda: served.depth("unsure")["depth"] == 0, "it is acknowledged")


@pytest.mark.parametrize("is_committed", [False, True])
def test_an_interrupted_commit_is_not_repeated(served: Deployment, is_committed: bool) -> None:
    """Ctrl-C right before Kafka commits, and right after that: the program goes on with the same delivery."""
    shipments, prefix = served.name("shipments"), b"i%d" % is_committed
    served.write("interrupted", prefix)
    with served.subscriber("interrupted", 1) as subscriber:
        delivery = subscriber.receive(20)
        work = subscriber.subscription.settler.work
        assert work is not None
        assert delivery is not None
        opened = work._opened

        def interrupted() -> Any:
            producer = opened()

            class Interrupted:
                def __getattr__(self, name: str) -> Any:
                    return getattr(producer, name)

                def commit_transaction(self, timeout_s: float) -> None:
                    if is_committed:
                        producer.commit_transaction(timeout_s)
                    raise KeyboardInterrupt

            return Interrupted()

        work._opened = interrupted  # type: ignore[method-assign]
        with pytest.raises(KeyboardInterrupt):
            ship(delivery, shipments, prefix + b" first")
        work._opened = opened  # type: ignore[method-assign]
        with delivery.transaction() as tx:
            tx.produce(shipments, prefix + b" again")
        assert tx.repeated == is_committed
    assert of(served, prefix) == [prefix + (b" first" if is_committed else b" again")]
    until(lambda: served.depth("interrupted")["depth"] == 0, "it is acknowledged")


@pytest.mark.parametrize(("messages", "kills"), cases([(5_000, 3)], [(1_000_000, 60)]))
def test_outputs_and_acknowledgments_agree_over_random_kills(served: Deployment, messages: int, kills: int) -> None:
    """Two consumers work, and every second or two one of them is killed; once the worker is killed as well."""
    queue, topic = f"many{messages}", served.name(f"done{messages}")
    arguments = (support.consumers.atomic, served.servers, served.name(queue), topic)
    written = served.write(queue, *(b"%d" % number for number in range(messages)))
    served.write(f"done{messages}", b"first")
    assert len(written) == messages
    consumers = [program(*arguments) for _ in range(2)]
    chance = random.Random(messages)
    try:
        for kill in range(kills):
            time.sleep(1 + 1.5 * chance.random())
            consumers[kill % 2].kill()
            consumers[kill % 2].wait()
            consumers[kill % 2] = program(*arguments)
            if kill == kills // 2:
                served.workers[0].kill()
                served.workers[0].start()
        until(lambda: served.depth(queue)["depth"] == 0, "all are acknowledged", 60 + messages / 1_000)
    finally:
        for one in consumers:
            one.kill()
            one.wait()
    tail = Tail(served.servers, topic)
    try:
        tail.wait(messages + 1, 60 + messages / 10_000)
        counts = Counter(message.value() for message in tail.drain())
    finally:
        tail.close()
    assert counts == Counter([b"first", *(b"%d" % number for number in range(messages))]), "each once"
