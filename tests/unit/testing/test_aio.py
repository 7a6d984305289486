"""What waits in asyncio, and what ends it (X3)."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any

import pytest

from lapse.testing import Lapse
from lapse_client import EntityDeleted, EventReader, aio
from lapse_client.aio.client import Awakening
from lapse_client.delivery.arrivals import Arrivals

pytestmark = pytest.mark.feature("X3")


def test_an_error_that_comes_while_nothing_is_found_is_raised() -> None:
    """The channel's thread may end the buffer at any instant."""
    arrivals: Arrivals[int] = Arrivals()

    def get() -> list[int]:
        found = arrivals.take(1)
        if not arrivals.ended:
            arrivals.end(EntityDeleted("orders", "gone"))
        return found

    async def main() -> list[int]:
        return await Awakening("it", arrivals).take(get, 20)

    with pytest.raises(EntityDeleted):
        asyncio.run(main())


def test_letters_are_read_as_by_the_synchronous_reader(lapse: Lapse) -> None:
    """Of one entity among those that share a topic, and one by its bookmark."""
    for name in ("orders", "bills"):
        lapse.queue(name, dead_letter="dlq.all")

    async def main() -> tuple[list[Any], Any]:
        letters = [one async for one in aio.DeadLetterReader("dlq.all", connection=lapse.connection, entity="bills")]
        reader = aio.DeadLetterReader("dlq.all", connection=lapse.connection)
        assert await reader.at(letters[0].bookmark) == letters[0]
        return letters, await reader.at(str(letters[0].bookmark))

    with lapse.publisher() as publisher:
        for name in ("orders", "bills"):
            publisher.publish(name, name)
            with lapse.queue_client(name) as queue:
                queue.expire(filter="TRUE")
    letters, one = asyncio.run(main())
    assert [letter.value for letter in letters] == [b"bills"]
    assert one == letters[0]


def test_what_a_reader_of_events_has_reached_before_it_begins_leaves_it_to_the_other_arguments(lapse: Lapse) -> None:
    """A program that keeps `reached` may stop before the first event comes."""
    lapse.queue("orders")
    with lapse.publisher() as publisher, lapse.queue_client("orders") as queue:
        publisher.publish("orders", b"A")
        queue.expire(filter="TRUE")
    first = EventReader("orders", connection=lapse.connection)
    assert first.reached == ""
    again = EventReader("orders", connection=lapse.connection, after=first.reached)
    assert len(list(again)) == len(list(first)) > 0
    assert not list(EventReader("orders", connection=lapse.connection, after=again.reached))

    async def main() -> None:
        reader = aio.EventReader("orders", connection=lapse.connection)
        same = aio.EventReader("orders", connection=lapse.connection, after=reader.reached)
        assert len([one async for one in same]) == len([one async for one in reader]) > 0

    asyncio.run(main())


def test_a_task_of_a_handler_closes_its_subscriber(lapse: Lapse) -> None:
    """As `asyncio.gather` begins one. The close must not wait for the handler that waits for it."""
    lapse.queue("orders")

    async def main() -> list[Any]:
        found: list[Any] = []
        async with aio.QueueSubscriber("orders", 2, connection=lapse.connection) as subscriber:

            async def handle(delivery: aio.Delivery) -> None:
                found.append(delivery.value)
                await asyncio.gather(subscriber.close())

            async with asyncio.timeout(30):
                await subscriber.run(handle)
        return found

    with lapse.publisher() as publisher:
        publisher.publish("orders", b"1")
    lapse.settle()
    assert asyncio.run(main()) == [b"1"]
    assert lapse.depth("orders") == 0


def logged(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wrap a function, as decorators do that do not know of coroutines."""

    @functools.wraps(function)
    def call(*arguments: Any, **named: Any) -> Any:
        return function(*arguments, **named)

    return call


def test_a_task_whose_decorator_is_a_plain_function_is_done_before_it_is_acknowledged(lapse: Lapse) -> None:
    lapse.queue("emails")
    done: list[int] = []

    async def main() -> None:
        async with aio.TaskQueue("emails", connection=lapse.connection) as tasks:

            @tasks.task
            @logged
            async def send(number: int) -> None:
                await asyncio.sleep(0)
                done.append(number)
                await tasks.close()

            await send.submit(7)
            async with asyncio.timeout(30):
                await tasks.run()

    asyncio.run(main())
    assert done == [7]
