"""A call that cannot be meant changes nothing: no message is taken for done, and none is held (X3, X7)."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from lapse.testing import Lapse
from lapse_client import Delivery, QueueSubscriber, aio


async def _coroutine(_: Delivery) -> None:
    """A handler for `lapse_client.aio`."""


class _Handler:
    """An object whose calls make coroutines, which only a call shows."""

    async def __call__(self, delivery: Delivery) -> None:
        await _coroutine(delivery)


@pytest.mark.feature("X3", "X7")
@pytest.mark.parametrize("handler", [_coroutine, partial(_coroutine), _Handler()])
def test_no_message_is_done_by_a_coroutine_that_nobody_awaits(handler: Callable[[Delivery], Any], lapse: Lapse) -> None:
    lapse.queue("orders")
    with lapse.publisher() as publisher:
        publisher.publish("orders", b"1")
    with lapse.subscriber("orders") as subscriber, pytest.raises(TypeError, match="coroutine function"):
        subscriber.run(handler, threads=2)
    assert lapse.depth("orders") == 1


@pytest.mark.feature("X3", "X7")
def test_a_plain_function_ends_the_run_of_coroutines(lapse: Lapse) -> None:
    lapse.queue("orders")
    seen: list[bytes | None] = []

    async def main() -> None:
        async with aio.Publisher() as publisher, aio.QueueSubscriber("orders", 10) as subscriber:
            await publisher.publish("orders", b"1")
            await subscriber.run(lambda delivery: seen.append(delivery.value), tasks=2)  # type: ignore[arg-type,func-returns-value]

    with pytest.raises(TypeError, match="coroutine function"):
        asyncio.run(main())
    assert (seen, lapse.depth("orders")) == ([b"1"], 1)


@pytest.mark.feature("X7", "Q3", "Q8")
@pytest.mark.parametrize("name", ["orders", "others"])
@pytest.mark.parametrize(
    "settle",
    [
        lambda other, delivery: other.acknowledge([delivery]),
        lambda other, delivery: other.settle("cancel", iter([delivery]), wait=True),
        lambda other, delivery: other.transaction([delivery]),
    ],
    ids=["acknowledge", "settle", "transaction"],
)
def test_a_delivery_of_another_subscriber_is_refused_and_stays_with_its_own(
    settle: Callable[[QueueSubscriber, Delivery], object], name: str, lapse: Lapse
) -> None:
    """Its place in the backlog there would never become free."""
    lapse.queue("orders")
    lapse.queue("others")
    with lapse.publisher() as publisher, lapse.subscriber("orders") as subscriber:
        for _ in range(2):
            publisher.publish("orders", b"1")
        delivery = subscriber.receive(timeout=5)
        assert delivery is not None
        refused = pytest.raises(ValueError, match="was received by another subscriber: settle it there")
        with lapse.subscriber(name) as other, refused:
            settle(other, delivery)
        assert delivery.settled_as == ""
        subscriber.acknowledge([delivery])
        assert subscriber.receive(timeout=5) is not None, "its place is free"


@pytest.mark.feature("X7", "Q8")
def test_a_settlement_that_is_refused_at_once_leaves_the_delivery_unsettled(lapse: Lapse) -> None:
    lapse.queue("orders")
    with lapse.publisher() as publisher, lapse.subscriber("orders") as subscriber:
        publisher.publish("orders", b"1")
        delivery = subscriber.receive(timeout=5)
        assert delivery is not None
        wrong: tuple[Callable[[], object], ...] = (
            lambda: delivery.cancel(delay_ms=-1),
            lambda: delivery.cancel(delay_ms=True),
            lambda: delivery.expire(fault=7),  # type: ignore[arg-type]
            lambda: subscriber.settle("forget", [delivery], wait=True),  # type: ignore[arg-type]
        )
        for settle in wrong:
            with pytest.raises(ValueError, match="expected"):
                settle()
            assert not delivery.settled_as
        delivery.acknowledge()
    assert lapse.depth("orders") == 0


@pytest.mark.feature("Q8")
@pytest.mark.parametrize("wait", [False, True])
def test_deliveries_of_a_generator_are_settled(wait: bool, lapse: Lapse) -> None:
    lapse.queue("orders")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 10) as subscriber:
        for number in range(3):
            publisher.publish("orders", str(number))
        taken = [subscriber.receive(timeout=5) for _ in range(3)]
        subscriber.settle("acknowledge", (one for one in taken if one is not None), wait=wait)  # type: ignore[arg-type]
    assert lapse.depth("orders") == 0


@pytest.mark.feature("Q8", "X7")
def test_a_renewal_that_is_refused_as_a_whole_is_logged(lapse: Lapse, caplog: pytest.LogCaptureFixture) -> None:
    lapse.queue("orders", lease_period="30s")
    with lapse.publisher() as publisher, lapse.subscriber("orders") as subscriber:
        publisher.publish("orders", b"1")
        delivery = subscriber.receive(timeout=5)
        assert delivery is not None
        with caplog.at_level(logging.WARNING, "lapse_client"):
            delivery.renew(lease_ms=60_000)
            lapse.until(lambda: "max_lease_period is 30000 ms" in caplog.text)


@pytest.mark.feature("X3", "X7")
def test_what_would_never_hand_out_a_message_is_refused(lapse: Lapse) -> None:
    lapse.queue("orders")

    async def main() -> None:
        async with aio.QueueSubscriber("orders", 10) as subscriber:
            with pytest.raises(ValueError, match="max_size = 0"):
                await anext(subscriber.batches(0))
            with pytest.raises(ValueError, match="timeout = nan"):
                await subscriber.receive(timeout=float("nan"))
            with pytest.raises(ValueError, match="tasks = 0"):
                await subscriber.run(_coroutine, tasks=0)
            assert await subscriber.receive(timeout=-1) is None

    asyncio.run(main())


@pytest.mark.feature("X3", "X7")
@pytest.mark.parametrize("timeout", ["orders", True, float("nan")])
def test_a_wrong_timeout_is_refused_though_a_message_is_there(timeout: Any, lapse: Lapse) -> None:
    """Else a program with this error fails only when its queue is empty."""
    lapse.queue("orders")
    with lapse.publisher() as publisher, lapse.subscriber("orders") as subscriber:
        publisher.publish("orders", b"1")
        lapse.settle()
        with pytest.raises(ValueError, match="^timeout = "):
            subscriber.receive(timeout)
        with pytest.raises(ValueError, match="^timeout = "):
            next(subscriber.messages(timeout))
        with pytest.raises(ValueError, match="^timeout = "):
            next(subscriber.batches(1, timeout))
        delivery = subscriber.receive(timeout=5)
        assert delivery is not None
        assert delivery.value == b"1"
