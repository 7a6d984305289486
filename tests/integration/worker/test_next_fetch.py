"""The next fetch: when it leaves, and that nothing stops the fetches of a worker (C60)."""

import asyncio
from collections.abc import Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, TopicPartition
from aiokafka.errors import KafkaError
from aiokafka.protocol.fetch import FetchRequest
from aiokafka.protocol.produce import ProduceRequest
from confluent_kafka import Producer

from lapse.runtime.kafka.connection import SwiftConnection
from lapse.runtime.kafka.fetcher import SwiftFetcher
from lapse.runtime.kafka.producer import BatchProducer

pytestmark = pytest.mark.feature("C60")

ROUNDS = 20
PATIENCE_S = 60


@asynccontextmanager
async def reading(servers: str, *topics: str) -> Any:
    """A consumer of the first partitions of topics, from their beginnings; and these partitions."""
    consumer = AIOKafkaConsumer(bootstrap_servers=servers, auto_offset_reset="earliest", enable_auto_commit=False)
    await consumer.start()
    try:
        tps = [TopicPartition(topic, 0) for topic in topics]
        consumer.assign(tps)
        yield consumer, tps
    finally:
        await consumer.stop()


def publish(producer: Producer, topic: str, value: bytes) -> None:
    """Write a record, and wait until Kafka has it."""
    producer.produce(topic, value, partition=0)
    assert not producer.flush(PATIENCE_S)


async def got(consumer: AIOKafkaConsumer, *tps: TopicPartition) -> list[bytes | None]:
    """The values of the records that come first from some partitions."""
    async with asyncio.timeout(PATIENCE_S):
        while not (found := await consumer.getmany(*tps, timeout_ms=1_000)):
            pass
    return [record.value for records in found.values() for record in records]


@pytest.fixture
def topics(create_topic: Callable[..., str], unique: Callable[[str], str]) -> list[str]:
    return [create_topic(unique(stem)) for stem in ("first", "second")]


def test_the_next_fetch_leaves_behind_the_journal_of_the_records_that_came(
    kafka: str, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    sent, fetched = list[type](), asyncio.Event()
    plain = SwiftConnection.send

    def send(self: Any, request: Any, expect_response: bool = True) -> Any:
        sent.append(type(request))
        if isinstance(request, FetchRequest):
            fetched.set()
        return plain(self, request, expect_response)

    async def run() -> None:
        publisher, journal = Producer({"bootstrap.servers": kafka, "linger.ms": 0}), BatchProducer(kafka, {})
        await journal.start()
        news, journaled = asyncio.Event(), asyncio.Queue[Any]()

        async def write() -> None:
            future, _ = await journal.send_atomically(topics[1], 0, [(b"step", b"")], [])
            journaled.put_nowait(await future)

        async def steps() -> None:  # like those of a runner
            writing = set()
            while True:
                await news.wait()
                news.clear()
                writing.add(asyncio.create_task(write()))

        running = asyncio.create_task(steps())
        async with reading(kafka, topics[0]) as (consumer, tps):
            news.set()
            await journaled.get()  # the first one asks for the topic
            for number in range(ROUNDS):
                await asyncio.to_thread(publish, publisher, topics[0], b"%d" % number)
                assert await got(consumer, *tps) == [b"%d" % number]
                sent.clear()
                fetched.clear()
                news.set()
                await journaled.get()
                await asyncio.wait_for(fetched.wait(), PATIENCE_S)
                known = [one for one in sent if one in (ProduceRequest, FetchRequest)]
                assert known[:2] == [ProduceRequest, FetchRequest]
        running.cancel()
        await journal.stop()

    monkeypatch.setattr(SwiftConnection, "send", send)
    asyncio.run(run())


def test_records_that_nobody_takes_hold_others_up_for_a_moment_only(kafka: str, topics: list[str]) -> None:
    async def run() -> None:
        publisher = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
        async with reading(kafka, *topics) as (consumer, (first, second)):
            came = consumer._fetcher._create_fetch_waiter()
            await asyncio.to_thread(publish, publisher, topics[0], b"waits")
            await asyncio.wait_for(came, PATIENCE_S)
            for number in range(3):
                await asyncio.to_thread(publish, publisher, topics[1], b"%d" % number)
                assert await got(consumer, second) == [b"%d" % number]
            assert await got(consumer, first) == [b"waits"]

    asyncio.run(run())


def test_another_assignment_is_read_from_its_beginning(kafka: str, topics: list[str]) -> None:
    async def run() -> None:
        publisher = Producer({"bootstrap.servers": kafka, "linger.ms": 0})
        for topic in topics:
            await asyncio.to_thread(publish, publisher, topic, topic.encode())
        async with reading(kafka, topics[0]) as (consumer, tps):
            assert await got(consumer, *tps) == [topics[0].encode()]
            for topic in reversed(topics):
                consumer.unsubscribe()
                consumer.assign([TopicPartition(topic, 0)])
                assert await got(consumer) == [topic.encode()]

    asyncio.run(run())


def test_fetching_can_be_closed_in_every_turn_of_the_first_fetch(kafka: str, topics: list[str]) -> None:
    async def run(turns: int) -> None:
        async with reading(kafka, *topics) as (consumer, _):
            for _ in range(turns):
                await asyncio.sleep(0)
            await consumer._fetcher.close()

    for turns in range(1, 25):
        asyncio.run(run(turns))


def test_an_answer_that_cannot_be_processed_ends_the_fetcher(
    kafka: str, topics: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    async def fail(*_: Any) -> bool:
        raise ValueError("an answer of another protocol")

    async def run() -> None:
        async with reading(kafka, *topics) as (consumer, _):
            async with asyncio.timeout(PATIENCE_S):
                with pytest.raises(KafkaError, match="Unexpected error"):
                    await consumer._fetcher.error_future

    monkeypatch.setattr(SwiftFetcher, "_proc_fetch_request", fail)
    with pytest.raises(KafkaError):  # aiokafka raises it at the close as well
        asyncio.run(run())
