"""Records are read back one after the other and ahead; where a log has no more, its reader asks for nothing (C60)."""

import asyncio
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import pytest
from aiokafka import AIOKafkaProducer, TopicPartition
from aiokafka.errors import KafkaConnectionError, KafkaTimeoutError
from confluent_kafka import KafkaError, KafkaException

from lapse.protocol.header import EPOCH, epoch_of
from lapse.runtime.journal.changelog_reader import ChangelogReader
from lapse.runtime.shard.log import Record
from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.topics.topic_id import TopicIds
from lapse.runtime.tp import TP

pytestmark = pytest.mark.feature("C60")


class Silent(TopicIds):
    """Where no controller answers, as while a broker stands still."""

    async def of(self, topics: Iterable[str], *, once: bool = False) -> dict[str, str]:
        raise KafkaException(KafkaError(KafkaError._TIMED_OUT))


@pytest.mark.feature("C27", "C52")
def test_a_topic_of_which_nobody_says_that_it_is_gone_is_read(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker ended there, and with it all its entities; a read that finds no answer is tried again."""
    topic = create_topic(unique("log"))

    async def run() -> None:
        reader = LogReader(kafka, {}, Silent({"bootstrap.servers": kafka}))
        async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
            for number in range(3):
                await producer.send_and_wait(topic, b"%d" % number)
        plain, faults = reader._read_on, [TimeoutError(), KafkaConnectionError(), KafkaTimeoutError()]

        async def sometimes(*asked: Any) -> Sequence[Record]:
            if faults:
                raise faults.pop()
            return await plain(*asked)

        monkeypatch.setattr(reader, "_read_on", sometimes)
        try:
            assert [one.offset for one in await reader.read(topic, 0, 0, 2)] == [0, 1, 2]
            assert not faults
        finally:
            await reader.stop()

    asyncio.run(run())


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


@pytest.mark.feature("C52")
def test_a_silent_leader_holds_up_what_is_read_from_it_only(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One lock for all partitions kept every entity of the worker waiting for half a minute."""
    topics = [create_topic(unique(stem)) for stem in ("silent", "well")]

    async def run() -> None:
        reader, answers = LogReader(kafka, {}, TopicIds({"bootstrap.servers": kafka})), asyncio.Event()
        asked = asyncio.Event()
        async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
            for topic in topics:
                await producer.send_and_wait(topic, b"one")
        plain = reader._read_on

        async def silent(consumer: Any, tp: TopicPartition, *rest: Any) -> Sequence[Record]:
            if tp.topic == topics[0]:
                asked.set()
                await answers.wait()
            return await plain(consumer, tp, *rest)

        monkeypatch.setattr(reader, "_read_on", silent)
        waiting = asyncio.create_task(reader.read(topics[0], 0, 0, 0))
        async with asyncio.timeout(30):
            await asked.wait()
            assert [one.value for one in await reader.read(topics[1], 0, 0, 0)] == [b"one"]
            assert await reader.ends([TP(topics[1], 0)]) == {TP(topics[1], 0): 1}
            assert await reader.offset_at([TP(topics[1], 0)], 0) == {TP(topics[1], 0): 0}
            await reader.release(topics[1], 0)
        assert not waiting.done()
        answers.set()
        assert [one.value for one in await waiting] == [b"one"]
        await reader.stop()

    asyncio.run(run())


@pytest.mark.feature("Q16", "C41")
def test_the_epoch_of_the_last_delivery_is_found_behind_what_others_wrote(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    """A search that found epoch 0 would begin a new changelog at an epoch whose deliveries all readers skip."""
    topic = create_topic(unique("deliveries"))

    async def run() -> None:
        reader = ChangelogReader(kafka, {})

        async def epoch() -> int:
            return await reader.search_back(topic, 0, lambda record: epoch_of(dict(record.headers)))

        assert await epoch() == 0
        async with (
            AIOKafkaProducer(bootstrap_servers=kafka) as producer,
            AIOKafkaProducer(bootstrap_servers=kafka, transactional_id=unique("foreign")) as foreign,
        ):
            for number in (6, 7):
                await producer.send_and_wait(topic, b"", headers=[(EPOCH, b"%d" % number)])
            async with foreign.transaction():
                for sent in [await foreign.send(topic, b"foreign", partition=0) for _ in range(300)]:
                    await sent
            assert await epoch() == 7
            await foreign.begin_transaction()
            await foreign.send_and_wait(topic, b"stays open", partition=0)
            await producer.send_and_wait(topic, b"", headers=[(EPOCH, b"8")])
            assert await epoch() == 8
            await foreign.abort_transaction()
        await reader.rest()

    asyncio.run(run())
