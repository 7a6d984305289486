"""`lapse.testing`: the same rules, in order and at their instants, over crashes at each point, without real time."""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, Literal

import pytest

from lapse.config import ConfigError
from lapse.core.reason import Reason
from lapse.protocol import topic as names
from lapse.runtime.queue import machine
from lapse.runtime.queue.unwritten import JournaledDeliveries
from lapse.runtime.shard.payload import PayloadWindow
from lapse.testing import CrashPoint, Lapse
from lapse_client import (
    AnswerTimeout,
    CommandFailed,
    Delivery,
    EntityDeleted,
    InvalidPublication,
    Publisher,
    Queue,
    QueueSubscriber,
    SettlementResult,
    SowClient,
    UnknownEntity,
    aio,
    history,
    replay,
)
from support.suite.at_length import alike

pytestmark = pytest.mark.feature("X8")


def publish(lapse: Lapse, to: str, count: int, **options: Any) -> None:
    with lapse.publisher() as publisher:
        for number in range(count):
            publisher.publish(to, b"%d" % number, key=b"%d" % number, **options)


@pytest.mark.parametrize(("backlog", "most"), [(1_000, 100), (10, 250), pytest.param(1, 1_100, marks=pytest.mark.slow)])
@pytest.mark.slow
def test_a_thousand_messages_take_few_commands(lapse: Lapse, backlog: int, most: int) -> None:
    """What makes it quick: neither a command nor a step for each message, but with a backlog of 1."""
    lapse.queue("orders")
    publish(lapse, "orders", 1_000)
    with lapse.subscriber("orders", backlog) as subscriber:
        for delivery in subscriber.messages(1):
            with delivery:
                assert delivery.delivery_count == 1
    assert lapse.depth("orders") == 0
    written = {topic: len(lapse.records(topic)) for topic in (names.commands("orders"), names.deliveries("orders"))}
    assert max(written.values()) < most, written


def test_acknowledgments_after_a_stop_take_few_commands(lapse: Lapse) -> None:
    lapse.queue("orders")
    publish(lapse, "orders", 500)
    with lapse.subscriber("orders", 500) as subscriber:
        lapse.settle()
        taken = subscriber.subscription.take(500, 1.0)
        assert len(taken) == 500
        subscriber.stop()
        lapse.settle()
        before = len(lapse.records(names.commands("orders")))
        for delivery in taken:
            delivery.acknowledge()
    assert lapse.depth("orders") == 0
    assert len(lapse.records(names.commands("orders"))) - before < 100


@pytest.mark.feature("L2", "L10", "Q5")
def test_everything_happens_at_its_own_instant_and_in_order(lapse: Lapse) -> None:
    """One long advance, and many short ones, come to the same."""
    reported = []
    for steps in (1, 60):
        with Lapse() as lapse:
            begin_ms = lapse.clock.now_ms
            lapse.queue("orders", expiration="enabled", lease_period="10s", max_deliveries=2)
            for ttl_s in (30, 5, 20):
                publish(lapse, "orders", 1, ttl_ms=ttl_s * 1_000)
            publish(lapse, "orders", 1, enqueue_at_ms=begin_ms + 7_000, ttl_ms=1_000)
            for _ in range(steps):
                lapse.clock.advance(60 / steps)
            assert lapse.clock.now_ms == begin_ms + 60_000
            letters = lapse.dead_letters("orders")
            reported.append([(letter.origin.offset, letter.expired_at_ms - begin_ms) for letter in letters])
            assert [letter.timestamp_ms for letter in letters] == [letter.expired_at_ms for letter in letters]
    assert reported == [[(1, 5_000), (3, 8_000), (2, 20_000), (0, 30_000)]] * 2


def test_time_does_not_go_back_and_waiting_does_not_move_it(lapse: Lapse) -> None:
    lapse.queue("orders")
    begin_ms = lapse.clock.now_ms
    with lapse.subscriber("orders") as subscriber:
        assert subscriber.receive(3_600) is None
    assert lapse.clock.now_ms == begin_ms
    with pytest.raises(ValueError, match="time does not go back"):
        lapse.clock.advance(-0.001)


@pytest.mark.feature("D3", "Q9", "Q16", "C55")
@pytest.mark.parametrize("partitions", alike(2, 1))
@pytest.mark.parametrize("point", alike(*CrashPoint, None))
def test_nothing_is_lost_or_doubled_wherever_the_worker_crashes(
    point: CrashPoint | None, partitions: int, lapse: Lapse
) -> None:
    """Each message is acknowledged, or gets a letter; deliveries that were journaled keep their counts."""
    lapse.queue("orders", partitions=partitions, lease_period="10s", max_deliveries=3, expiration="enabled")
    fates: Counter[bytes] = Counter()
    with lapse.subscriber("orders", 4) as subscriber:
        for turn in range(6):
            lapse.crash(before=point)
            publish(lapse, "orders", 5, ttl_ms=0 if turn % 2 else 15_000)
            for delivery in subscriber.messages(1):
                assert 1 <= delivery.delivery_count <= 3
                if delivery.timestamp_ms % 2 == 0 and int(delivery.value or b"") % 3:
                    delivery.acknowledge()
                    fates[str(delivery.bookmark).encode()] += 1
            lapse.clock.advance(10)
        lapse.clock.advance(60)
    for letter in lapse.dead_letters("orders"):
        fates[str(letter.origin).encode()] += 1
    assert lapse.depth("orders") == 0
    assert fates.keys() == {
        f"orders:{partition}:{offset}".encode()
        for partition in range(partitions)
        for offset in range(len(lapse.records("orders", partition)))
    }
    assert set(fates.values()) == {1}


@pytest.mark.feature("C35", "C55", "Q12")
@pytest.mark.parametrize("payload", alike("packed", "reference"))
@pytest.mark.parametrize("point", alike(*CrashPoint))
def test_nothing_comes_before_the_barrier_in_front_of_it_wherever_the_worker_crashes(
    point: CrashPoint, payload: str, lapse: Lapse
) -> None:
    lapse.queue("days", ordering="total", barrier="/end = 1")
    with lapse.subscriber("days", 10, payload=payload) as subscriber, lapse.publisher() as publisher:
        lapse.crash(before=point)
        publisher.publish("days", b'{"end": 1}')
        publisher.publish("days", b'{"n": 1}')
        got = [(delivery.is_barrier, delivery.delivery_count) for delivery in subscriber.messages(1)]
    assert got[0] == (True, 0)
    assert got[-1] == (False, 1)


@pytest.mark.feature("C35", "C40", "Q12")
@pytest.mark.parametrize(("written", "twice"), [(False, False), (True, False), (True, True)])
def test_a_barrier_whose_record_goes_while_its_release_is_only_journaled_leaves_with_a_letter(
    written: bool, twice: bool, lapse: Lapse, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was told as released, reached nobody, and had no letter. One that somebody has got has none.

    The owner in between may crash before it repeats the barrier, and the record goes after that.
    """
    lapse.queue("days", ordering="total", barrier="/end = 1")
    get, gone, owners = PayloadWindow.get, set[int](), list[object]()

    async def found(window: Any, topic: str, partition: int, offsets: list[int], used: bool = True) -> Any:
        records = await get(window, topic, partition, offsets, used)
        return [None if offset in gone else record for offset, record in zip(offsets, records, strict=True)]

    class Successor(JournaledDeliveries):
        def __init__(self, *args: Any) -> None:
            super().__init__(*args)
            owners.append(self)
            if len(owners) > twice:
                gone.update(change.facts["offset"] for change in self.released)

    monkeypatch.setattr(PayloadWindow, "get", found)
    monkeypatch.setattr(machine, "JournaledDeliveries", Successor)
    with lapse.subscriber("days", 10) as subscriber, lapse.publisher() as publisher:
        if not written:
            lapse.crash(before=CrashPoint.DELIVERIES)
        publisher.publish("days", b'{"end": 1}')
        lapse.settle()
        if written:
            lapse.crash()
        if twice:
            lapse.crash(before=CrashPoint.JOURNAL)
        publisher.publish("days", b'{"n": 1}')
        got = [delivery.is_barrier for delivery in subscriber.messages(1)]
        lapse.crash()
        lapse.settle()
    assert gone == {0}, "a release was found at take-over"
    assert got == ([True] if written else []) + [False]
    letters = [(letter.origin.offset, letter.reasons) for letter in lapse.dead_letters("days")]
    assert letters == ([] if written else [(0, (Reason.LOG_TRUNCATED,))])
    assert lapse.depth("days") == 1


def test_a_crash_happens_where_it_is_asked_for(lapse: Lapse) -> None:
    lapse.queue("orders")
    journal = names.changelog("lapse", "orders")
    lapse.settle()
    lapse.crash(before="journal")
    publish(lapse, "orders", 1)
    lapse.settle()
    epochs = [record.headers[0][1] for record in lapse.records(journal)]
    assert len(set(epochs)) == 2, "the shard was taken over once"
    assert lapse.depth("orders") == 1
    lapse.settle()
    assert len({record.headers[0][1] for record in lapse.records(journal)}) == 2, "it crashes once"
    with pytest.raises(ValueError, match="somewhere"):
        lapse.crash(before="somewhere")


@pytest.mark.feature("Q5", "C13")
def test_who_was_lost_and_comes_back_settles_nothing_of_others(lapse: Lapse) -> None:
    lapse.queue("orders", heartbeat_timeout="10s", leasing="strict")
    refused: list[SettlementResult] = []
    with lapse.subscriber("orders", on_refused=refused.append) as lost:
        publish(lapse, "orders", 1)
        held = lost.receive(1)
        assert held is not None
        with lapse.subscriber("orders") as other:
            lapse.lose(lost)
            lapse.clock.advance(9.999)
            assert other.receive(1) is None
            lapse.clock.advance(0.001)
            again = other.receive(1)
            assert again is not None
            assert again.delivery_count == 2
            held.acknowledge()
            lapse.settle()
            lapse.find(lost)
            assert [refusal.result for refusal in refused] == ["not_holder"]
            again.acknowledge()
    assert lapse.depth("orders") == 0


@pytest.mark.slow
def test_who_is_idle_stays_subscribed(lapse: Lapse) -> None:
    lapse.queue("orders", heartbeat_timeout="10s", lease_period="2h", max_lease_period="2h")
    publish(lapse, "orders", 1)
    with lapse.subscriber("orders") as subscriber:
        held = subscriber.receive(1)
        assert held is not None
        lapse.clock.advance(3_600)
        assert subscriber.receive(1) is None
        held.acknowledge()
    assert lapse.depth("orders") == 0


@pytest.mark.feature("Q3", "Q5")
@pytest.mark.parametrize("payload", alike("packed", "reference"))
@pytest.mark.parametrize("renewed_s", alike(60, 0))
def test_a_message_that_is_never_settled_keeps_the_credit_for_its_lease_only(
    lapse: Lapse, payload: Literal["packed", "reference"], renewed_s: int
) -> None:
    lapse.topic("orders", 2)
    lapse.queue("work", topics=["orders"], lease_period="5s", max_lease_period="1h")
    publish(lapse, "orders", 6)
    with lapse.subscriber("work", 1, payload=payload) as subscriber:
        forgotten = subscriber.receive(10)
        assert forgotten is not None
        if renewed_s:
            assert subscriber.settle("renew", [forgotten], lease_ms=renewed_s * 1_000, wait=True)[0].settled
            lapse.clock.advance(6)
            assert subscriber.receive(1) is None, "the credit stays until the end of the renewed lease"
        lapse.clock.advance(renewed_s + 6)
        for delivery in subscriber.messages(10):
            delivery.acknowledge()
    assert lapse.depth("work") == 0


@pytest.mark.feature("Q3", "Q8")
def test_a_renewal_that_an_acknowledgment_overtakes_keeps_no_credit(lapse: Lapse) -> None:
    lapse.topic("orders", 3)
    lapse.queue("work", topics=["orders"], max_lease_period="1h")
    publish(lapse, "orders", 9)
    with lapse.subscriber("work", 2) as subscriber:
        for delivery in subscriber.messages(10):
            delivery.renew(3_600_000)
            delivery.acknowledge()
            subscriber.flush()
    assert lapse.depth("work") == 0


def test_without_a_worker_nothing_answers_and_nobody_waits(lapse: Lapse) -> None:
    lapse.queue("orders", expiration="1m")
    publish(lapse, "orders", 1)
    lapse.stop_worker()
    with pytest.raises(AnswerTimeout), lapse.queue_client("orders") as queue:
        queue.depth()
    lapse.clock.advance(61)
    lapse.start_worker()
    assert lapse.depth("orders") == 0


@pytest.mark.feature("D4")
@pytest.mark.parametrize("payload", ["inline", "packed", "reference"])
def test_deliveries_come_in_each_form(payload: Any, lapse: Lapse) -> None:
    lapse.queue("orders", partitions=2)
    publish(lapse, "orders", 50, headers={"own": "yes"})
    with lapse.subscriber("orders", 20, payload=payload) as subscriber:
        seen = set()
        for delivery in subscriber.messages(5):
            with delivery:
                assert delivery.headers == [("own", b"yes")]
                seen.add(delivery.value)
    assert seen == {b"%d" % number for number in range(50)}


@pytest.mark.feature("D4", "X3")
def test_referenced_messages_are_read_as_they_are_taken(lapse: Lapse) -> None:
    lapse.queue("orders")
    publish(lapse, "orders", 5_000)
    with lapse.subscriber("orders", 5_000, payload="reference") as subscriber:
        got = list(islice(subscriber.messages(10), 1))
        waiting = subscriber.subscription.arrivals
        while waiting.await_room(0):
            time.sleep(0.001)
        assert 2_000 < len(waiting) <= 4_000
        for delivery in subscriber.messages(5):
            got.append(delivery)
            if len(got) == 5_000:
                break
        assert [int(delivery.value or b"") for delivery in got] == list(range(5_000))
        subscriber.acknowledge(got)
    assert lapse.depth("orders") == 0


@pytest.mark.feature("Q2", "Q12", "Q17", "Q21")
def test_queues_of_every_shape(lapse: Lapse) -> None:
    """Several topics, a pattern with one that comes later, one order over partitions, barriers, forwarding."""
    lapse.topic("eu.orders", 2)
    lapse.queue("orders", topic_pattern=r"\w+\.orders", default_publish_target="eu.orders", ordering="total",
                barrier="/end = 1")  # fmt: skip
    lapse.queue("from", forward_to="orders")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 10) as subscriber:
        publisher.publish("orders", b'{"n": 1}')
        lapse.topic("us.orders", 3)
        publisher.publish("us.orders", b'{"n": 2}', key="k")
        publisher.publish("from", b'{"n": 3}')
        lapse.clock.advance(1)
        publisher.publish("eu.orders", b'{"end": 1}')
        first = [subscriber.receive(1) for _ in range(3)]
        assert {one.value for one in first if one} == {b'{"n": 1}', b'{"n": 2}', b'{"n": 3}'}
        assert subscriber.receive(1) is None
        subscriber.acknowledge([one for one in first if one])
        barrier = subscriber.receive(1)
        assert barrier is not None
        assert barrier.is_barrier


@pytest.mark.feature("S4", "S6", "C46")
def test_sow_topics_survive_crashes(lapse: Lapse) -> None:
    lapse.sow("prices", partitions=3, key="/symbol", expiration="10s")
    with lapse.publisher() as publisher, lapse.sow_client("prices") as prices, prices.subscribe() as updates:
        for number in range(20):
            publisher.publish("prices", b'{"symbol": "%d", "price": 1}' % number, key=b"%d" % (number * 7))
        assert len(list(prices.query())) == 20
        lapse.crash()
        assert len(list(prices.query())) == 20
        kinds = Counter(update.kind for update in updates.updates(1))
        assert kinds["publish"] == 20
        lapse.clock.advance(10)
        assert not list(prices.query())
        assert Counter(update.operation for update in updates.updates(1) if update.kind == "oof") == {"expired": 20}


@pytest.mark.feature("S5", "S6", "X3")
def test_selected_fields_of_sow_records_come_from_all_shards_in_order(lapse: Lapse) -> None:
    lapse.sow("prices", partitions=3, key="/symbol")
    select = ["/symbol", "-/book/ask"]
    with lapse.publisher() as publisher, lapse.sow_client("prices") as prices:
        for n in range(9):
            publisher.publish("prices", b'{"symbol": "%d", "price": %d, "book": {"bid": 1, "ask": 2}}' % (n, n))
        found = prices.query("/price < 3", order_by="/price DESC", select=["/symbol"])
        assert [one.value for one in found] == [b'{"symbol":"2"}', b'{"symbol":"1"}', b'{"symbol":"0"}']
        (whole,) = prices.query("/price = 3", select=["-/book/ask"])
        assert whole.value == b'{"symbol":"3","price":3,"book":{"bid":1}}'
        with pytest.raises(CommandFailed, match="sow: select: .*'price' is no path"):
            list(prices.query(select=["price"]))
        with pytest.raises(TypeError, match="select takes several"):
            list(prices.query(select="/symbol"))
        with prices.sow_and_delta_subscribe("/price = 4", select=("/symbol", "/book/bid")) as updates:
            message = [(one.kind, one.value) for one in islice(updates, 2) if one.value]
            lapse.clock.advance(1)  # of updates of one instant on two partitions only one counts (C46)
            publisher.publish("prices", b'{"symbol": "4", "price": 4, "book": {"bid": 9, "ask": 2}}')
            message += [(one.kind, one.value) for one in islice(updates, 1)]
        assert message == [("sow", b'{"symbol":"4","book":{"bid":1}}'), ("delta", b'{"book":{"bid":9}}')]

    async def main() -> list[bytes | None]:
        async with aio.SowClient("prices") as topic:
            return [one.value async for one in topic.query(keys=[b'["4"]'], select=select)]

    assert asyncio.run(main()) == [b'{"symbol":"4"}']


def test_clients_without_a_connection_work_on_it_while_it_lives(lapse: Lapse) -> None:
    lapse.queue("orders")
    with Publisher() as publisher:
        bookmark = publisher.submit("orders", b"1").result(1)
    with QueueSubscriber("orders") as subscriber, Queue("orders") as queue:
        assert queue.peek()[0].state == "leased"
        assert next(subscriber.messages(1)).bookmark == bookmark
    assert [record.value for record in replay(bookmark)] == [b"1"]

    async def main() -> list[bytes | None]:
        async with aio.QueueSubscriber("orders") as one:
            return [delivery.value async for delivery in one.messages(1)]

    assert asyncio.run(main()) == [b"1"]


def test_time_moves_within_coroutines(lapse: Lapse) -> None:
    lapse.queue("orders", lease_period="30s")

    async def main() -> list[int]:
        counts: list[int] = []
        async with aio.Publisher() as publisher, aio.QueueSubscriber("orders") as subscriber:
            await publisher.publish("orders", b"1")
            for _ in range(3):
                delivery = await subscriber.receive(5)
                assert delivery is not None
                counts.append(delivery.delivery_count)
                assert await subscriber.receive(5) is None
                lapse.clock.advance(30)
            lapse.lose(subscriber)
            lapse.find(subscriber)
        return counts

    assert asyncio.run(main()) == [1, 2, 3]


@pytest.mark.feature("C4", "Q18")
def test_a_deleted_queue_is_gone_at_once_and_may_be_made_again(lapse: Lapse) -> None:
    lapse.queue("orders", partitions=2)
    publish(lapse, "orders", 3)
    with lapse.queue_client("orders") as queue, pytest.raises(CommandFailed):
        queue.delete()
    with lapse.queue_client("orders") as queue:
        queue.delete(force=True)
    assert [letter.reasons for letter in lapse.dead_letters("orders")] == []
    with pytest.raises(UnknownEntity):
        lapse.depth("orders")
    lapse.queue("orders", partitions=2)
    assert lapse.depth("orders") == 3, "it reads its topic from the beginning"


@pytest.mark.feature("C4", "S9", "Q23")
def test_a_subscriber_hears_of_a_deletion_for_whose_end_somebody_waits(lapse: Lapse) -> None:
    lapse.queue("orders", partitions=2, dead_letter_reasons=["purged"])
    lapse.sow("prices")
    publish(lapse, "orders", 3)
    with lapse.subscriber("orders") as subscriber, lapse.sow_client("prices") as prices:
        assert subscriber.receive() is not None
        with lapse.admin() as admin:
            admin.delete_queue("orders", force=True)
        assert len(lapse.dead_letters("orders")) == 3
        with pytest.raises(EntityDeleted):
            subscriber.receive(1)
        prices.delete_topic(force=True)
        with pytest.raises(UnknownEntity), lapse.sow_client("prices"):
            pass
    with pytest.raises(UnknownEntity):
        lapse.subscriber("orders").start()


@pytest.mark.feature("C4", "X3")
def test_who_settles_at_a_deleted_queue_hears_that_it_is_gone(lapse: Lapse, caplog: pytest.LogCaptureFixture) -> None:
    lapse.queue("orders")
    publish(lapse, "orders", 1)
    with lapse.subscriber("orders") as subscriber:
        held = subscriber.receive()
        assert held is not None
        with Queue("orders", connection=lapse.connection) as queue:
            queue.delete(force=True)
            with pytest.raises(EntityDeleted, match="is no more"):
                subscriber.settle("acknowledge", [held], wait=True)
    assert "ends when heartbeats are missed" not in caplog.text


@pytest.mark.feature("D6")
def test_what_happened_to_a_message_is_reported(lapse: Lapse) -> None:
    lapse.queue("orders", max_deliveries=1, lease_period="5s")
    with lapse.publisher() as publisher, lapse.subscriber("orders") as subscriber:
        bookmark = publisher.submit("orders", b"1").result(1)
        assert subscriber.receive(1)
        lapse.clock.advance(5)
        lapse.settle()
    steps = [moment.what for moment in history(bookmark).moments]
    assert "dead_lettered" in steps


def test_handlers_in_threads(lapse: Lapse) -> None:
    lapse.queue("orders")
    seen: list[bytes | None] = []
    with lapse.subscriber("orders", 8) as subscriber:
        handlers = threading.Thread(target=subscriber.run, args=(lambda one: seen.append(one.value), 4))
        handlers.start()
        publish(lapse, "orders", 100)
        lapse.until(lambda: len(seen) == 100)
        assert lapse.depth("orders") == 0
    handlers.join()
    with pytest.raises(TimeoutError):
        lapse.until(lambda: False, 0.01)


@pytest.mark.feature("X7")
@pytest.mark.feature("X3", "Q5")
@pytest.mark.parametrize("at_work", [False, True])
def test_a_close_that_is_cancelled_leaves_no_subscription(at_work: bool, lapse: Lapse) -> None:
    lapse.queue("orders")
    publish(lapse, "orders", 1)

    async def main() -> aio.QueueSubscriber:
        subscriber = await aio.QueueSubscriber("orders", connection=lapse.connection).start()
        began, gate = asyncio.Event(), threading.Event()

        async def handle(_: Delivery) -> None:
            began.set()
            await asyncio.Event().wait()

        running = asyncio.create_task(subscriber.run(handle)) if at_work else None
        if running is not None:
            async with asyncio.timeout(20):
                await began.wait()
        loop = asyncio.get_running_loop()
        loop.set_default_executor(ThreadPoolExecutor(1))
        busy = loop.run_in_executor(None, gate.wait, 20)
        closing = asyncio.create_task(subscriber.close())
        for _ in range(3):
            await asyncio.sleep(0)
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        gate.set()
        await busy
        if running is not None:
            running.cancel()
            await asyncio.wait([running])
        return subscriber

    kept = asyncio.run(main())  # what is dropped is closed by the garbage collector
    with lapse.queue_client("orders") as queue:
        assert (queue.subscriptions(), kept.name) == ([], kept.name)


@pytest.mark.feature("X3")
def test_who_closes_when_a_settlement_is_refused_does_not_wait_for_itself(
    lapse: Lapse, caplog: pytest.LogCaptureFixture
) -> None:
    lapse.queue("orders", lease_period="5s", leasing="strict")
    publish(lapse, "orders", 1)
    closed = threading.Event()

    def close(_: SettlementResult) -> None:
        subscriber.close()
        closed.set()

    subscriber = lapse.subscriber("orders", on_refused=close).start()
    late = subscriber.receive(1)
    assert late is not None
    lapse.clock.advance(6)
    late.acknowledge()
    subscriber.flush()
    assert closed.wait(60)
    assert "heartbeats are missed" not in caplog.text
    with lapse.queue_client("orders") as queue:
        assert queue.subscriptions() == []


@pytest.mark.feature("X3")
def test_who_interrupts_handlers_twice_can_still_close(lapse: Lapse) -> None:
    lapse.queue("orders")
    publish(lapse, "orders", 2)
    subscriber = lapse.subscriber("orders", 2).start()
    main, both, gate = threading.current_thread(), threading.Barrier(2), threading.Event()

    def handle(_: Delivery) -> None:
        both.wait(20)
        if threading.current_thread() is main:
            raise KeyboardInterrupt
        while not subscriber.subscription.arrivals.ended:
            gate.wait(0.001)
        signal.pthread_kill(main.ident or 0, signal.SIGINT)  # once more, while the first one waits for this handler
        gate.wait(20)

    with pytest.raises(KeyboardInterrupt):
        subscriber.run(handle, threads=2)
    closing = threading.Thread(target=subscriber.close, daemon=True)
    closing.start()
    closing.join(20)
    gate.set()
    assert not closing.is_alive()
    assert lapse.depth("orders") == 2, "neither was acknowledged"


def test_what_is_wrong_is_reported_as_by_a_deployment(lapse: Lapse, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"queue\.orders\.leese_period"):
        lapse.queue("orders", leese_period="30s")
    lapse.queue("orders")
    with pytest.raises(ConfigError, match="already"):
        lapse.sow("orders")
    with pytest.warns(UserWarning, match="on_expire"):
        lapse.queue("told", on_expire="shutil:copy")
    with lapse.publisher() as publisher:
        with pytest.raises(UnknownEntity):
            publisher.publish("nowhere", b"1")
        with pytest.raises(InvalidPublication):
            publisher.publish("orders", b"1", ttl_ms=-1)
    with pytest.raises(CommandFailed), lapse.subscriber("orders", filter="bad"):
        pass
    path = tmp_path / "lapse.toml"
    path.write_text('[queue.more]\nlease_period = "1s"\n[users.alice]\nkey = "env:KEY"\n', "utf-8")
    with pytest.raises(ConfigError):
        lapse.load(path)
    path.write_text('[queue.more]\nlease_period = "1s"\n[sow.prices]\n', "utf-8")
    lapse.load(path)
    publish(lapse, "more", 1)
    assert lapse.depth("more") == 1
    with pytest.raises(UnknownEntity, match="no queue 'prices' on this cluster; it is a SOW topic; there is: more"):
        QueueSubscriber("prices", connection=lapse.connection).start()
    with pytest.raises(UnknownEntity, match="no SOW topic 'more' on this cluster; it is a queue; there is: prices"):
        SowClient("more", connection=lapse.connection).start()


@pytest.mark.feature("Q25", "C71")
def test_a_rate_holds_on_the_virtual_clock_over_a_crash(lapse: Lapse) -> None:
    lapse.queue("mails", rate="10/1s", group_by="/to", group_rate="4/1s", group_limit=100)
    with lapse.publisher() as publisher:
        for number in range(30):
            publisher.publish("mails", b'{"to": "%s"}' % b"abc"[number % 3 : number % 3 + 1])
    with lapse.subscriber("mails", 100) as subscriber:

        def delivered() -> int:
            count = 0
            while (delivery := subscriber.receive(0)) is not None:
                delivery.acknowledge()
                count += 1
            return count

        assert delivered() == 10
        lapse.clock.advance(0.999)
        assert delivered() == 0
        lapse.crash()
        assert delivered() == 0
        lapse.clock.advance(0.001)
        assert delivered() == 10
        lapse.clock.advance(1)
        assert delivered() == 10
        assert lapse.depth("mails") == 0


@pytest.mark.feature("Q2", "X7")
def test_a_publish_to_a_queue_whose_target_is_missing_is_refused_at_once(lapse: Lapse) -> None:
    lapse.queue("orders", topics=["first", "second"], default_publish_target="second")
    lapse._cluster.delete("second")
    with lapse.publisher() as publisher, pytest.raises(UnknownEntity, match="no topic 'second'"):
        publisher.publish("orders", b"x")
