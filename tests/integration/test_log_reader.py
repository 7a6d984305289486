"""Records are read back one after the other and ahead; where a log has no more, its reader asks for nothing (C60)."""

import asyncio
from collections.abc import Callable
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition

from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.topics.topic_id import TopicIds

pytestmark = pytest.mark.feature("C60")


def test_a_reader_at_the_end_of_a_log_asks_for_nothing_until_it_is_asked(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    topic = create_topic(unique("log"))

    async def run() -> None:
        reader = LogReader(kafka, {}, TopicIds({"bootstrap.servers": kafka}))
        async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:

            async def write(first: int, count: int) -> None:
                for number in range(first, first + count):
                    await producer.send_and_wait(topic, b"%d" % number)

            async def read(first: int, last: int) -> list[int]:
                return [one.offset for one in await reader.read(topic, 0, first, last)]

            await write(0, 10)
            assert (await read(0, 3))[:4] == [0, 1, 2, 3]
            assert (await read(8, 9))[-1] == 9
            client = reader._consumers[TopicPartition(topic, 0)]._client
            plain, asked = client.send, []

            async def noted(node: int, request: Any, **more: Any) -> Any:
                asked.append(type(request).__name__)
                return await plain(node, request, **more)

            client.send = noted
            await asyncio.sleep(0.2)  # what was under way ends
            asked.clear()
            await asyncio.sleep(0.5)
            assert not asked
            await write(10, 5)
            assert await read(10, 14) == [10, 11, 12, 13, 14]
            assert await read(15, 20) == []
            assert (await read(2, 4))[:3] == [2, 3, 4]
            assert await read(14, 14) == [14]
            for safe in [await producer.send(topic, b"one of many") for _ in range(4_000)]:
                await safe
            assert (await read(15, 15))[0] == 15  # and about a thousand behind it
            sought: list[int] = []
            monkeypatch.setattr(reader._consumers[TopicPartition(topic, 0)], "seek", lambda _, at: sought.append(at))
            assert (await read(2_000, 2_000))[0] == 2_000
            assert (await read(3_900, 3_900))[0] == 3_900
            assert not sought, "what is near is read up to"
        await reader.stop()

    asyncio.run(run())
