"""The asynchronous client against scripted shards on a real broker."""

import asyncio
from collections.abc import Callable, Iterator

import pytest

from lapse_client.aio import Publisher, QueueSubscriber
from lapse_client.error import Closed, UnknownEntity
from lapse_client.kafka.connection import Connection
from support.clients.scripted_shard import ScriptedShards

pytestmark = pytest.mark.feature("X3")


@pytest.fixture
def queue(kafka: str, unique: Callable[[str], str]) -> Iterator[ScriptedShards]:
    shards = ScriptedShards(kafka, unique("aio"), 2)
    yield shards
    shards.stop()


async def publish(queue: ScriptedShards, count: int) -> list[object]:
    async with Publisher(Connection(queue.servers)) as publisher:
        sent = [publisher.publish(queue.queue, str(number), key=str(number)) for number in range(count)]
        return await asyncio.gather(*sent)


def test_publish_and_receive(queue: ScriptedShards) -> None:
    async def main() -> list[int]:
        bookmarks = await publish(queue, 30)
        assert len(set(bookmarks)) == 30
        seen = []
        async with QueueSubscriber(queue.queue, 10, connection=Connection(queue.servers)) as subscriber:
            async for delivery in subscriber:
                async with delivery:
                    seen.append(int(delivery.value))
                if len(seen) == 30:
                    break
            assert await subscriber.receive(0.2) is None
        return seen

    assert sorted(asyncio.run(main())) == list(range(30))
    assert queue.depth() == 0


def test_a_handler_that_fails_gets_its_message_again(queue: ScriptedShards) -> None:
    async def main() -> list[int]:
        await publish(queue, 20)
        seen: list[int] = []
        failures = 0
        async with QueueSubscriber(queue.queue, 5, connection=Connection(queue.servers)) as subscriber:

            async def handle(delivery: object) -> None:
                nonlocal failures
                await asyncio.sleep(0.001)
                if delivery.value == b"3" and not failures:
                    failures += 1
                    raise ValueError("three")
                seen.append(int(delivery.value))
                if len(seen) == 20:
                    asyncio.get_running_loop().call_later(
                        0.2, lambda: closing.append(asyncio.ensure_future(subscriber.close()))
                    )

            closing: list[object] = []
            async with asyncio.timeout(30):
                await subscriber.run(handle, tasks=3)
        return seen

    assert sorted(asyncio.run(main())) == list(range(20))
    assert queue.depth() == 0


def test_settling_tells_results_and_batches_come_as_lists(queue: ScriptedShards) -> None:
    async def main() -> None:
        await publish(queue, 10)
        async with QueueSubscriber(queue.queue, 10, connection=Connection(queue.servers)) as subscriber:
            seen = 0
            async for batch in subscriber.batches(timeout=5):
                results = await subscriber.settle("acknowledge", batch, wait=True)
                assert {result.result for result in results} == {"settled"}
                seen += len(batch)
                if seen == 10:
                    break

    asyncio.run(main())
    assert queue.depth() == 0


def test_what_is_not_started_or_not_there_says_so(queue: ScriptedShards) -> None:
    async def main() -> None:
        connection = Connection(queue.servers)
        with pytest.raises(Closed):
            await QueueSubscriber(queue.queue, connection=connection).receive(0.1)
        with pytest.raises(UnknownEntity):
            await QueueSubscriber("nowhere", connection=connection).start()

    asyncio.run(main())
