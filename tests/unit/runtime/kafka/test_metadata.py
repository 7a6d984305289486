"""Metadata of thousands of topics are asked for in parts, and only by the clients that need them (C90)."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest
from aiokafka import TopicPartition
from aiokafka.client import AIOKafkaClient
from aiokafka.cluster import ClusterMetadata
from aiokafka.protocol.metadata import MetadataResponse_v5

from lapse.runtime.kafka.metadata import NeededTopics, ensure_group_metadata, ensure_metadata

pytestmark = pytest.mark.feature("C90")

TOPICS = [f"topic-{number}" for number in range(420)]


class Client(AIOKafkaClient):
    """A client whose broker knows all topics, and counts those of each request."""

    def __init__(self) -> None:
        self.cluster = ClusterMetadata()
        self.asked: list[list[str]] = []
        self._topics, self._conns = set[str](), {}
        self.refuses_from = len(TOPICS)
        self.cluster.update_metadata(described([]))

    async def _get_conn(self, *_: Any, **__: Any) -> Any:
        return self

    async def send(self, request: Any) -> Any:  # type: ignore[override]  # of a connection
        self.asked.append(list(request._topics))
        if len(self.asked) > self.refuses_from:
            raise TimeoutError
        return described([topic for topic in request._topics if topic != "missing"])

    def force_metadata_update(self) -> asyncio.Future[bool]:
        self.asked.append(["all"])
        done: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        done.set_result(True)
        return done


def described(topics: list[str]) -> MetadataResponse_v5:
    partitions = [(0, 0, 1, [1], [1], []), (0, 1, 1, [1], [1], [])]
    return MetadataResponse_v5(
        0, [(1, "broker", 9092, None)], "cluster", 1, [(0, topic, topic == TOPICS[0], partitions) for topic in topics]
    )


def test_a_refresh_of_many_topics_has_parts_between_which_others_have_turns() -> None:
    async def run() -> None:
        client, turns, updates = Client(), 0, list[ClusterMetadata]()
        client.cluster.add_listener(updates.append)

        async def others() -> None:
            nonlocal turns
            while True:
                turns += 1
                assert len(client.cluster.topics()) in (0, len(TOPICS) - 1), "what is known is replaced as a whole"
                await asyncio.sleep(0)

        beside = asyncio.create_task(others())
        assert await client._metadata_update(client.cluster, set(TOPICS))
        beside.cancel()
        assert sorted(topic for some in client.asked for topic in some) == sorted(TOPICS)
        assert max(map(len, client.asked)) <= 50
        assert turns >= len(client.asked)
        whole = ClusterMetadata()
        whole.update_metadata(described(TOPICS))
        known = client.cluster
        assert known._partitions == whole._partitions
        assert known._broker_partitions == whole._broker_partitions
        assert (known.brokers(), known.internal_topics) == (whole.brokers(), whole.internal_topics)
        assert (known.controller, updates) == (whole.controller, [known])

    asyncio.run(run())


def test_a_refresh_that_the_broker_does_not_answer_to_the_end_changes_nothing() -> None:
    async def run() -> None:
        client = Client()
        assert await client._metadata_update(client.cluster, TOPICS[:3])
        client.refuses_from = 3
        assert not await client._metadata_update(client.cluster, TOPICS)
        assert client.cluster.topics(exclude_internal_topics=False) == set(TOPICS[:3])

    asyncio.run(run())


def test_what_a_client_learns_during_a_refresh_is_not_forgotten_at_its_end() -> None:
    """The refresh does not ask for it. Its shard would wait for the next one, which asks for all topics again."""

    async def run() -> None:
        client = Client()
        client._topics = set(TOPICS)
        refresh = asyncio.create_task(client._metadata_update(client.cluster, TOPICS))
        while not client.asked:  # noqa: ASYNC110
            await asyncio.sleep(0)
        await ensure_metadata(client, ["late"])
        assert not refresh.done()
        assert await refresh
        assert client.cluster.topics(exclude_internal_topics=False) == {*TOPICS, "late"}
        assert client.cluster.leader_for_partition(TopicPartition("late", 1)) == 1
        assert len(client.cluster.partitions_for_broker(1)) == 2 * len(TOPICS) + 2

    asyncio.run(run())


def test_once_nothing_is_taken_over_a_client_asks_only_for_what_it_needs() -> None:
    async def run() -> None:
        needed = NeededTopics()
        needed.names |= set(TOPICS[:10])
        needed.settle()
        client = Client()
        await ensure_metadata(client, [TOPICS[20]], needed)
        assert client.asked == [[TOPICS[20]]]

    asyncio.run(run())


def test_a_member_of_a_group_asks_for_those_of_its_topics_that_are_new() -> None:
    """Each assignment waits for that. aiokafka would ask for all topics, which takes as long as the rest of it."""

    async def run() -> None:
        client, topics = Client(), set(TOPICS)
        client._topics = topics
        await client._metadata_update(client.cluster, topics)
        client.asked.clear()
        await ensure_group_metadata(client, {*topics, "late"}, {"late"})
        assert client.asked == [["late"]]
        assert client.cluster.partitions_for_topic("late") == {0, 1}
        assert client._topics == {*topics, "late"}
        await ensure_group_metadata(client, topics, set())
        assert client._topics == topics, "it was deleted"
        await ensure_group_metadata(client, {*topics, "late"}, {"late"})
        assert client.asked == [["late"], ["late"]], "it may have other partitions now"
        await ensure_group_metadata(client, {*topics, "late", "missing"}, {"missing"})
        assert client.asked[2:] == [["missing"], ["all"]]
        await ensure_group_metadata(client, {*topics, "late", "missing"}, set())
        assert client.asked[4:] == [["missing"]]

    asyncio.run(run())
