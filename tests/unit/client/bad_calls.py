"""Bad calls of the client, and what the caller is told: cases of test_bad_calls.py and of docs/bad-input.md (X7)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from lapse.testing import Lapse
from lapse_client import Delivery, LapseError, Publisher


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


def _settle(delivery: Delivery) -> None:
    with delivery.transaction():
        delivery.acknowledge()


def _settled(delivery: Delivery) -> None:
    delivery.acknowledge()
    with delivery.transaction():
        pass


TRANSACTIONS: Final = (
    _work("`delivery.transaction()` of an at-most-once queue", lambda one: one.transaction(), "once"),
    _work("`tx.produce(…, ttl_ms=-1)`", _produce),
    _work("`delivery.acknowledge()` in the block", _settle),
    _work("a transaction over what is settled", _settled),
)
"""There is the queue `once`, too, which delivers at most once."""


def told(case: Case) -> tuple[str, str]:
    """What the caller is told: the error, and its text."""
    with Lapse() as lapse:
        lapse.queue("quotes", expiration="enabled")
        lapse.queue("orders")
        lapse.queue("once", semantics="at-most-once")
        lapse.sow("prices")
        try:
            case.call(lapse)
        except LapseError as error:
            return type(error).__name__, str(error)
    raise AssertionError(f"{case.shown} was taken")
