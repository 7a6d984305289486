"""Subscriptions of HTTP programs: one whose queue was deleted does not outlast that (C4, Q3)."""

import asyncio
from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from lapse_client.error import EntityDeleted, LapseError, UnknownEntity
from lapse_gateway.subscription import Subscription, Subscriptions, Terms
from lapse_gateway.user import Caller


class Subscriber:
    """A subscriber with some deliveries, whose queue can be deleted."""

    def __init__(self, *values: str) -> None:
        self.arrived: list[Any] = [
            SimpleNamespace(
                is_barrier=False, lease_until_ms=99, lease_ends_ms=99.0, bookmark=value, token=b"1@1", value=value
            )
            for value in values
        ]
        self.is_deleted = self.is_closed = False
        self.fault: LapseError | None = None

    async def batches(self, most: int, timeout: float) -> AsyncIterator[list[Any]]:  # noqa: ASYNC109  # as the client's
        if self.is_deleted:
            raise EntityDeleted("orders", "orders is no more")
        if self.fault is not None:
            raise self.fault
        if self.arrived:
            taken, self.arrived = self.arrived[:most], self.arrived[most:]
            yield taken

    async def close(self) -> None:
        self.is_closed = True


class Gateway(Subscriptions):
    """Subscriptions to a queue that is there while it has subscribers left."""

    def __init__(self, *left: Subscriber) -> None:
        super().__init__(9, 60, 10)
        self.left = [*left]

    async def _start(self, caller: Caller, queue: str, name: str, terms: Terms) -> Subscription:
        if not self.left:
            raise UnknownEntity("queue", queue, [])
        return Subscription(queue, name, terms, cast("Any", self.left.pop(0)), lambda: 0.0)


async def received(gateway: Gateway, most: int = 1) -> list[str]:
    caller = cast("Caller", SimpleNamespace(name=""))
    subscription = await gateway.get(caller, "orders", "w", Terms(max_backlog=9, least=most))
    taken = await subscription.take(most, 0, asyncio.Event().wait)
    gateway.done(subscription)
    return [cast("str", one.value) for one in taken]


@pytest.mark.feature("Q3", "C4")
def test_a_subscription_of_a_deleted_queue_begins_anew_once_the_queue_is_there_again() -> None:
    async def run() -> None:
        first, second = Subscriber("a"), Subscriber("b")
        gateway = Gateway(first, second)
        assert await received(gateway) == ["a"]
        first.is_deleted = True
        assert await received(gateway) == ["b"], "it is not told of a deletion that is over"
        assert first.is_closed
        second.is_deleted = True
        with pytest.raises(EntityDeleted):
            await received(gateway)
        assert (second.is_closed, len(gateway)) == (True, 0)
        with pytest.raises(UnknownEntity):
            await received(gateway)

    asyncio.run(run())


@pytest.mark.feature("Q3", "D4")
def test_a_look_at_a_subscription_keeps_the_order_of_its_deliveries() -> None:
    async def run() -> None:
        gateway = Gateway(Subscriber(*"abcdef"))
        found = ["".join(await received(gateway, most)) for most in (1, 3, 9, 9)]
        assert found == ["a", "bcd", "ef", ""]

    asyncio.run(run())


@pytest.mark.feature("Q3", "X4")
def test_a_subscription_that_has_failed_raises_that_once_and_begins_anew() -> None:
    """Such as one whose user had lost the right to it, and has it again."""

    async def run() -> None:
        first, second = Subscriber("a"), Subscriber("b")
        gateway = Gateway(first, second)
        assert await received(gateway) == ["a"]
        first.fault = LapseError("the right is withdrawn")
        with pytest.raises(LapseError, match="withdrawn"):
            await received(gateway)
        assert first.is_closed
        assert await received(gateway) == ["b"]

    asyncio.run(run())
