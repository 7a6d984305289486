"""Bad calls of the client, and what the caller is told: cases of test_bad_calls.py and of docs/bad-input.md (X7)."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Final

from lapse.config import ConfigError
from lapse.testing import Lapse
from lapse_client import (
    Admin,
    Connection,
    Delivery,
    EventReader,
    JsonSerde,
    LapseError,
    Publisher,
    QueueSubscriber,
    Retry,
    TaskQueue,
    aio,
)


@dataclass(frozen=True, slots=True)
class Case:
    """One call.

    Attributes:
        shown: the call, as the page shows it.
        call: makes it.
    """

    shown: str
    call: Callable[[Lapse], object]


def _request(shown: str, ask: Callable[[Publisher], object]) -> Case:
    def call(lapse: Lapse) -> None:
        with lapse.publisher() as publisher:
            ask(publisher)

    return Case(shown, call)


def _reply(
    shown: str, headers: dict[str, str], answer: Callable[[Delivery], object] = lambda one: one.reply(b"7")
) -> Case:
    def call(lapse: Lapse) -> None:
        with lapse.publisher() as publisher, lapse.subscriber("quotes") as subscriber:
            publisher.publish("quotes", b"A", headers=headers)
            delivery = subscriber.receive(timeout=5)
            assert delivery is not None
            answer(delivery)

    return Case(shown, call)


REQUESTS: Final = (
    _request('`request("quotes", …, timeout=0)`', lambda one: one.request("quotes", b"A", timeout=0)),
    _request('`request("quotes", …, timeout="5s")`', lambda one: one.request("quotes", b"A", timeout="5s")),  # type: ignore[arg-type]
    _request(
        '`request("quotes", …, headers={"reply_to": "me"})`',
        lambda one: one.request("quotes", b"A", timeout=5, headers={"reply_to": "me"}),
    ),
    _request(
        '`request("orders", …)`, whose `expiration` is `"disabled"`', lambda one: one.request("orders", b"A", timeout=5)
    ),
    _request('`request("prices", …)`', lambda one: one.request("prices", b"A", timeout=5)),
    _request('`request("quote", …)`', lambda one: one.request("quote", b"A", timeout=5)),
    _request('`request("quotes", …)`, and nobody replies', lambda one: one.request("quotes", b"A", timeout=0.01)),
    _reply("`reply(…)` to what is no request", {}),
    _reply("`reply(…)` to `reply_to: lapse.orders.commands`", {"reply_to": "lapse.orders.commands"}),
    _reply("`reply(…)` to `reply_to: nobody`", {"reply_to": "nobody"}),
    _reply(
        '`reply(…, headers={"lapse-ttl-ms": "5"})`',
        {"reply_to": "prices"},
        lambda one: one.reply(b"7", headers={"lapse-ttl-ms": "5"}),
    ),
)
"""There are the queues `quotes`, which acts on lifetimes, and `orders`, and the SOW topic `prices`."""


def _work(shown: str, work: Callable[[Delivery], object], queue: str = "quotes") -> Case:
    def call(lapse: Lapse) -> None:
        with lapse.publisher() as publisher, lapse.subscriber(queue) as subscriber:
            publisher.publish(queue, b"A")
            delivery = subscriber.receive(timeout=5)
            assert delivery is not None
            work(delivery)

    return Case(shown, call)


def _produce(delivery: Delivery) -> None:
    with delivery.transaction() as tx:
        tx.produce("orders", b"A", ttl_ms=-1)


def _nowhere(delivery: Delivery) -> None:
    with delivery.transaction() as tx:
        tx.produce("nowhere", b"A")


def _inside(delivery: Delivery) -> None:
    with delivery.transaction() as tx:
        tx.produce("lapse.events.orders", b"A")


def _late(delivery: Delivery) -> None:
    with delivery.transaction() as tx:
        pass
    tx.produce("orders", b"A")


def _settle(delivery: Delivery) -> None:
    with delivery.transaction():
        delivery.acknowledge()


def _settled(delivery: Delivery) -> None:
    delivery.acknowledge()
    with delivery.transaction():
        pass


def _write(delivery: Delivery, value: Any, key: Any = None) -> None:
    with delivery.transaction() as tx:
        tx.produce("orders", value, key)


def _merge(delivery: Delivery, value: Any) -> None:
    with delivery.transaction() as tx:
        tx.produce("prices", value, "A", delta=True)


TRANSACTIONS: Final = (
    _work('`tx.produce("orders", {"a": 1})`', lambda one: _write(one, {"a": 1})),
    _work('`tx.produce("orders", b"A", key=7)`', lambda one: _write(one, b"A", 7)),
    _work('`tx.produce("nowhere", b"A")`', _nowhere),
    _work('`tx.produce("lapse.events.orders", b"A")`', _inside),
    _work("`delivery.transaction()` of an at-most-once queue", lambda one: one.transaction(), "once"),
    _work("`tx.produce(…, ttl_ms=-1)`", _produce),
    _work('`tx.produce("prices", None, delta=True)`', lambda one: _merge(one, None)),
    _work('`tx.produce("orders", …)` behind the block', _late),
    _work("`delivery.acknowledge()` in the block", _settle),
    _work("a transaction over what is settled", _settled),
)
"""There is the queue `once`, too, which delivers at most once."""


def _receive(shown: str, receive: Callable[[QueueSubscriber], object]) -> Case:
    def call(lapse: Lapse) -> None:
        with lapse.subscriber("orders") as subscriber:
            receive(subscriber)

    return Case(shown, call)


async def _coroutine(_: Delivery) -> None:
    """A handler that the synchronous client cannot run."""


def _of_two(first: bytes, second: bytes) -> bytes:
    return first + second


def _updates(lapse: Lapse) -> None:
    with lapse.sow_client("prices") as sow:
        next(sow.subscribe().updates())


def _foreign(subscriber: QueueSubscriber) -> None:
    with Publisher() as publisher, QueueSubscriber("orders") as other:
        publisher.publish("orders", b"A")
        publisher.publish("orders", b"B")
        delivery = subscriber.receive(timeout=5) or other.receive(timeout=5)
        assert delivery is not None
        (other if delivery.lot.settler is subscriber.subscription.settler else subscriber).acknowledge([delivery])


def _raise(delivery: Delivery, after: object) -> None:
    with delivery:
        raise Retry(after=after)  # type: ignore[arg-type]


def _rewind(shown: str, to: Any, **options: Any) -> Case:
    def call(lapse: Lapse) -> None:
        with lapse.queue_client("orders") as queue:
            queue.rewind(to, **options)

    return Case(shown, call)


def _acknowledge(shown: str, bookmarks: Any) -> Case:
    def call(lapse: Lapse) -> None:
        with lapse.queue_client("orders") as queue:
            queue.acknowledge(bookmarks)

    return Case(shown, call)


def _query(lapse: Lapse, **options: Any) -> None:
    with lapse.sow_client("prices") as sow:
        list(sow.query(**options))


def _subscribe(shown: str, **terms: Any) -> Case:
    def call(lapse: Lapse) -> None:
        with lapse.subscriber("orders", **{"max_backlog": 1, **terms}):
            pass

    return Case(shown, call)


def _follow(lapse: Lapse, text: Any, **terms: Any) -> None:
    with lapse.sow_client("prices") as sow, sow.subscribe(text, **terms):
        pass


def _scheduled(lapse: Lapse, **options: Any) -> None:
    with lapse.sow_client("prices") as sow:
        sow.scheduled(**options)


_MANY: Final = ["k" * 3_000 + str(number) for number in range(1_000)]


def _delete(lapse: Lapse, **options: Any) -> None:
    with lapse.sow_client("prices") as sow:
        sow.delete(**options)


def _define(shown: str, define: Callable[[Admin], object]) -> Case:
    def call(lapse: Lapse) -> None:
        with lapse.admin() as admin:
            define(admin)

    return Case(shown, call)


OTHERS: Final = (
    _request('`publish("lapse.orders.commands", b"A")`', lambda one: one.publish("lapse.orders.commands", b"A")),
    _request('`publish("lapse-orders-changelog", b"A")`', lambda one: one.publish("lapse-orders-changelog", b"A")),
    _request('`publish("orders", {"a": 1})`, without a serializer', lambda one: one.publish("orders", {"a": 1})),
    _request('`publish("orders", b"A", key=7)`', lambda one: one.publish("orders", b"A", key=7)),  # type: ignore[arg-type]
    _request("`publish(None, …)`", lambda one: one.publish(None, b"A")),  # type: ignore[arg-type]
    _request('`publish(…, headers="trace")`', lambda one: one.publish("orders", b"A", headers="trace")),  # type: ignore[arg-type]
    _request('`publish(…, headers=["ab"])`', lambda one: one.publish("orders", b"A", headers=["ab"])),  # type: ignore[list-item]
    _request('`publish(…, delta="no")`', lambda one: one.publish("prices", b"{}", delta="no")),  # type: ignore[arg-type]
    _request(
        '`submit_all("orders", [("A", "k")])`',
        lambda one: one.submit_all("orders", [("A", "k")]),  # type: ignore[list-item]
    ),
    _request(
        '`submit_all("orders", [("A", "k", None, {"ttl": 5})])`',
        lambda one: one.submit_all("orders", [("A", "k", None, {"ttl": 5})]),
    ),
    _request("`poll(-1)` of a publisher", lambda one: one.poll(-1)),
    Case("`Connection(9092)`", lambda _: Connection(9092)),  # type: ignore[arg-type]
    Case("`Publisher(serializer=JsonSerde)`, the class", lambda lapse: lapse.publisher(serializer=JsonSerde)),
    Case('`Publisher("localhost:9092")`', lambda _: Publisher("localhost:9092")),  # type: ignore[arg-type]
    Case('`Publisher(timeout_s=float("inf"))`', lambda lapse: lapse.publisher(timeout_s=float("inf"))),
    _work("`cancel(delay_ms=-1)`", lambda one: one.cancel(delay_ms=-1)),
    _work("`renew(lease_ms=0)`", lambda one: one.renew(lease_ms=0)),
    _work("`expire(fault=7)`", lambda one: one.expire(fault=7)),  # type: ignore[arg-type]
    _receive('`settle("forget", […])`', lambda one: one.settle("forget", [])),  # type: ignore[arg-type]
    _receive("`acknowledge([delivery])` of another subscriber's delivery", _foreign),
    _receive('`receive(timeout=float("nan"))`', lambda one: one.receive(timeout=float("nan"))),
    _receive('`receive(timeout="5s")`', lambda one: one.receive(timeout="5s")),  # type: ignore[arg-type]
    _receive("`batches(0)`", lambda one: next(one.batches(0))),
    _receive("`run(handler, threads=0)`", lambda one: one.run(print, threads=0)),
    _receive('`run("handle")`', lambda one: one.run("handle")),  # type: ignore[arg-type]
    _receive('`acknowledge(["orders:0:0"])` of a subscriber', lambda one: one.acknowledge(["orders:0:0"])),  # type: ignore[list-item]
    _work("`acknowledge(delivery)`, a single one", lambda one: one.lot.settler.own(one)),  # type: ignore[attr-defined]
    _receive("`run(handler)` with a coroutine function", lambda one: one.run(_coroutine)),
    Case('`TaskQueue("orders", max_backlog=5)`', lambda _: TaskQueue("orders", max_backlog=5)),
    Case('`TaskQueue("orders").run(threads="4")`', lambda _: TaskQueue("orders").run(threads="4")),  # type: ignore[arg-type]
    _work("`raise Retry(after=-1)`", lambda one: _raise(one, -1)),
    _work('`raise Retry(after="5s")`', lambda one: _raise(one, "5s")),
    _rewind('`rewind("end")`', "end"),
    _rewind('`rewind("orders:0")`', "orders:0"),
    _rewind('`rewind("beginning", lifetimes="old")`', "beginning", lifetimes="old"),
    _rewind('`rewind("beginning", filter="")`', "beginning", filter=""),
    _rewind('`rewind("beginning", timeout_s=None)`', "beginning", timeout_s=None),
    _rewind('`rewind("beginning", command_id=…)` of 500 characters', "beginning", command_id="n" * 500),
    _acknowledge('`acknowledge("orders:0:0")`', "orders:0:0"),
    _acknowledge('`acknowledge(["orders:3:0"])`, where `orders` has one partition', ["orders:0:0", "orders:3:0"]),
    _subscribe("`QueueSubscriber(…, name=…)` of 501 characters", name="n" * 501),
    _subscribe("`QueueSubscriber(…, name=7)`", name=7),
    Case("`QueueSubscriber(7)`", lambda lapse: lapse.subscriber(7)),  # type: ignore[arg-type]
    Case('`QueueSubscriber(re.compile(b"orders"))`', lambda _: QueueSubscriber(re.compile(b"orders"))),  # type: ignore[arg-type]
    Case("`DeadLetterReader(None)`", lambda lapse: lapse.dead_letters(None)),  # type: ignore[arg-type]
    Case("`Queue(None)`", lambda lapse: lapse.queue_client(None).start()),  # type: ignore[arg-type]
    Case(
        '`EventReader("orders", since_ms=1.5e12)`',
        lambda lapse: EventReader("orders", connection=lapse.connection, since_ms=1.5e12),  # type: ignore[arg-type]
    ),
    Case(
        '`EventReader("orders", after=17)`',
        lambda lapse: EventReader("orders", connection=lapse.connection, after=17),  # type: ignore[arg-type]
    ),
    Case('`aio.EventReader("orders", since_ms="now")`', lambda _: aio.EventReader("orders", since_ms="now")),  # type: ignore[arg-type]
    Case('`aio.DeadLetterReader("orders", entity=7)`', lambda _: aio.DeadLetterReader("orders", entity=7)),  # type: ignore[arg-type]
    _subscribe("`QueueSubscriber(…, name=…)` that UTF-8 cannot hold", name="\udcff"),
    _subscribe("`QueueSubscriber(…, filter=7)`", filter=7),
    _subscribe('`QueueSubscriber(…, filter="")`', filter=""),
    _subscribe("`QueueSubscriber(…, max_backlog=1 << 63)`", max_backlog=1 << 63),
    _subscribe("`QueueSubscriber(…, deserializer=JsonSerde)`, the class", deserializer=JsonSerde),
    _subscribe('`QueueSubscriber(…, deserializer="json")`', deserializer="json"),
    _subscribe("`QueueSubscriber(…, deserializer=…)` with a function of two values", deserializer=_of_two),
    Case("`subscribe(7)` of a SOW topic", lambda lapse: _follow(lapse, 7)),
    Case(
        "`subscribe(heartbeat_timeout_ms=0)` of a SOW topic", lambda lapse: _follow(lapse, None, heartbeat_timeout_ms=0)
    ),
    Case('`subscribe("")` of a SOW topic', lambda lapse: _follow(lapse, "")),
    Case("`subscribe(select=[7])` of a SOW topic", lambda lapse: _follow(lapse, None, select=[7])),
    Case("`query(keys=7)` of a SOW topic", lambda lapse: _query(lapse, keys=7)),
    Case('`query(select=["price"])` of a SOW topic', lambda lapse: _query(lapse, select=["price"])),
    Case('`query(select="/price")` of a SOW topic', lambda lapse: _query(lapse, select="/price")),
    Case("`scheduled(skip=-1)` of a SOW topic", lambda lapse: _scheduled(lapse, skip=-1)),
    Case("`scheduled(top_n=-1)` of a SOW topic", lambda lapse: _scheduled(lapse, top_n=-1)),
    Case("`delete()` of a SOW topic, of nothing", _delete),
    Case("`delete(keys=…)` of a SOW topic, with more than 2 MiB of keys", lambda lapse: _delete(lapse, keys=_MANY)),
    Case('`delete(keys="AB")` of a SOW topic', lambda lapse: _delete(lapse, keys="AB")),
    Case("`updates()` of a subscription that nobody has opened", _updates),
    Case("`delete(data=…)`, with the keys of Kafka", lambda lapse: _delete(lapse, data=[b"{}"])),
    _define('`admin.create_queue("a b")`', lambda one: one.create_queue("a b")),
    _define('`admin.create_queue("fresh", lease="1s")`', lambda one: one.create_queue("fresh", lease="1s")),
    _define(
        '`admin.create_queue("fresh", lease_period=timedelta(1))`',
        lambda one: one.create_queue("fresh", lease_period=timedelta(1)),
    ),
    _define(
        '`admin.create_queue("fresh", lease_period=float("nan"))`',
        lambda one: one.create_queue("fresh", lease_period=float("nan")),
    ),
    _define('`admin.alter_queue("orders")`', lambda one: one.alter_queue("orders")),
    _define('`admin.delete_queue("order")`', lambda one: one.delete_queue("order")),
    _define('`admin.delete_queue("orders", force="no")`', lambda one: one.delete_queue("orders", force="no")),  # type: ignore[arg-type]
)
"""Retries, rewinds, settlements, select lists, deletes by data, definitions."""

TESTING: Final = (
    Case('`lapse.queue("fresh", leasing_period="1s")`', lambda lapse: lapse.queue("fresh", leasing_period="1s")),
    Case('`lapse.queue("a b")`', lambda lapse: lapse.queue("a b")),
    Case('`lapse.queue("orders")`, which is there', lambda lapse: lapse.queue("orders")),
    Case("`lapse.clock.advance(-1)`", lambda lapse: lapse.clock.advance(-1)),
    Case('`lapse.clock.advance("1s")`', lambda lapse: lapse.clock.advance("1s")),  # type: ignore[arg-type]
    Case('`lapse.clock.advance_to(float("inf"))`', lambda lapse: lapse.clock.advance_to(float("inf"))),  # type: ignore[arg-type]
    Case('`lapse.topic("a b")`', lambda lapse: lapse.topic("a b")),
    Case('`lapse.topic("fresh", 0)`', lambda lapse: lapse.topic("fresh", 0)),
    Case('`lapse.topic("orders", 3)`, which is there', lambda lapse: lapse.topic("orders", 3)),
    Case("`lapse.lose(publisher)`", lambda lapse: lapse.lose(lapse.publisher())),
    Case('`lapse.until(…, timeout_s=float("nan"))`', lambda lapse: lapse.until(lambda: False, timeout_s=float("nan"))),
    Case('`lapse.crash(before="acks")`', lambda lapse: lapse.crash(before="acks")),
    Case('`lapse.records("order")`', lambda lapse: lapse.records("order")),
    Case('`lapse.records("orders", 1)`', lambda lapse: lapse.records("orders", 1)),
    Case('`lapse.load("nowhere.toml")`', lambda lapse: lapse.load("nowhere.toml")),
)
"""What a test does with the fixture of `lapse.testing`."""


def refusal_of(case: Case) -> tuple[str, str]:
    """What the caller is told: the error, and its text."""
    with Lapse() as lapse:
        lapse.queue("quotes", expiration="enabled")
        lapse.queue("orders")
        lapse.queue("once", semantics="at-most-once")
        lapse.sow("prices")
        try:
            case.call(lapse)
        except (LapseError, ConfigError, ValueError, TypeError) as error:
            return type(error).__name__, str(error)
    raise AssertionError(f"{case.shown} was taken")
