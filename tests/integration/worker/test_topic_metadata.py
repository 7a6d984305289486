"""What a worker asks of the brokers about topics costs by what is new, however many topics the cluster has (C90)."""

import asyncio
import socket
from collections.abc import Callable, Collection
from typing import Any

import pytest
from aiokafka import AIOKafkaConsumer, AIOKafkaProducer, TopicPartition
from aiokafka.cluster import ClusterMetadata
from confluent_kafka import KafkaException
from confluent_kafka.admin import AdminClient

from lapse.core.shard.changelog import Changelog
from lapse.runtime.journal.changelog_reader import ChangelogReader
from lapse.runtime.kafka.metadata import NeededTopics, client_of, ensure_metadata
from lapse.runtime.shard.log_reader import LogReader
from lapse.runtime.topics import topic_id
from lapse.runtime.topics.topic_id import TopicIds
from lapse.runtime.tp import TP

pytestmark = pytest.mark.feature("C90")


def test_a_client_asks_only_for_topics_that_it_does_not_know(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    old, new, soon = (create_topic(unique(name), partitions=3) for name in ("old", "new", "soon"))

    async def run() -> None:
        async with AIOKafkaProducer(bootstrap_servers=kafka) as producer:
            client, asked = producer.client, []
            plain = client._metadata_update

            async def noted(cluster: ClusterMetadata, topics: Collection[str]) -> Any:
                asked.append(set(topics))
                return await plain(cluster, topics)

            client._metadata_update = noted
            needed = NeededTopics()
            needed.names.add(soon)
            await ensure_metadata(client, [old])
            await ensure_metadata(client, [old, new], needed)
            await ensure_metadata(client, [new, soon])
            assert asked == [{old}, {new, soon}]
            assert client.cluster.partitions_for_topic(old) == {0, 1, 2}
            assert client.cluster.partitions_for_topic(new) == {0, 1, 2}
            assert {old, new, soon} <= client._topics, "a later look at the cluster would forget them"
            sent = [await producer.send_and_wait(topic, b"v", partition=0) for topic in (old, new, soon)]
            assert [one.offset for one in sent] == [0, 0, 0]
            assert asked == [{old}, {new, soon}], "the producer had to ask again"

    asyncio.run(run())


def test_what_one_client_has_just_learned_no_other_one_of_its_worker_asks_for(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    one, other = (create_topic(unique(name), partitions=3) for name in ("one", "other"))

    async def run() -> None:
        needed, asked = NeededTopics(), []
        needed.names |= {one, other}

        def noting(client: Any) -> Any:
            plain = client._metadata_update

            async def noted(cluster: ClusterMetadata, topics: Collection[str]) -> Any:
                asked.append(set(topics))
                return await plain(cluster, topics)

            client._metadata_update = noted
            return client

        async with (
            AIOKafkaProducer(bootstrap_servers=kafka) as first,
            AIOKafkaProducer(bootstrap_servers=kafka) as last,
        ):
            clients = [noting(first.client), noting(last.client)]
            await asyncio.gather(
                ensure_metadata(clients[0], [one], needed), ensure_metadata(clients[1], [other], needed)
            )
            assert asked == [{one, other}]
            assert {one, other} <= clients[1]._topics
            sent = [await last.send_and_wait(topic, b"v", partition=2) for topic in (one, other)]
            assert [made.offset for made in sent] == [0, 0]
            assert asked == [{one, other}], "the producer had to ask again"
            needed.forget([one])
            third = create_topic(unique("third"))
            async with AIOKafkaProducer(bootstrap_servers=kafka) as new:
                await ensure_metadata(noting(new.client), [third], needed)
            assert asked[1:] == [{third, other}], "what was forgotten is asked for anew, and only if it is needed"

    asyncio.run(run())


def test_a_client_asks_no_more_for_topics_that_were_deleted(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str], caplog: pytest.LogCaptureFixture
) -> None:
    gone, there = create_topic(unique("gone")), create_topic(unique("there"))

    async def run() -> None:
        log = LogReader(kafka, {}, TopicIds({"bootstrap.servers": kafka}))
        changelogs = ChangelogReader(kafka, {})
        await log.ends([TP(gone, 0), TP(there, 0)])
        for topic in (there, gone):
            await changelogs.read(topic, 0, Changelog())
        admin = AdminClient({"bootstrap.servers": kafka})
        await asyncio.to_thread(admin.delete_topics([gone])[gone].result)
        clients = [consumer._client for consumer in (*log._consumers.values(), changelogs._asker)]
        for reader in (log, changelogs):
            reader.forget([gone])
        for client in clients:
            await client.force_metadata_update()
            assert client._topics == {there}
        await log.stop()
        await changelogs.rest()

    asyncio.run(run())
    assert gone not in caplog.text


def test_a_consumer_without_partitions_does_not_ask_for_all_topics(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    """While it started, a worker with 300 queues asked for all topics of the cluster in 32 of its clients.

    They were of standbys whose shards had just been taken over. Each answer took 35 ms of CPU at a time.
    """
    one, other = (create_topic(unique(name)) for name in ("one", "other"))

    async def run() -> None:
        async with AIOKafkaConsumer(**ChangelogReader(kafka, {}).settings) as consumer:
            client = client_of(consumer)
            for topics in ({one}, set(), {other}):
                consumer.assign([TopicPartition(topic, 0) for topic in topics])
                await client.force_metadata_update()
                assert client.cluster.topics() == topics
                assert client.cluster.brokers()
            assert {one, other} <= await consumer.topics(), "whoever asks for all gets all"

    asyncio.run(run())


def test_shards_that_look_for_topics_share_one_look(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str]
) -> None:
    one = create_topic(unique("one"), partitions=4)

    async def run() -> None:
        ids, looks = TopicIds({"bootstrap.servers": kafka}), []
        plain = ids._list

        def noted() -> dict[str, int]:
            looks.append(1)
            return plain()

        ids._list = noted  # type: ignore[method-assign]
        found = await asyncio.gather(*(ids.listed(5.0) for _ in range(50)))
        assert [listed[one] for listed in found] == [4] * 50
        assert len(looks) == 1
        await ids.listed()
        assert len(looks) == 2, "who needs the topics of now does not get those of before"

    asyncio.run(run())


@pytest.mark.feature("C60", "C90")
def test_brokers_that_are_slow_to_describe_topics_are_asked_again_with_more_patience(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A worker of a thousand queues ended where an answer took longer than 15 s: here nothing is answered in 1 ms."""
    monkeypatch.setattr(topic_id, "_PATIENCE_S", 0.001)
    monkeypatch.setattr(topic_id, "_AGAIN_S", 0.0)
    one = create_topic(unique("one"), partitions=4)

    async def run() -> None:
        ids = TopicIds({"bootstrap.servers": kafka})
        with pytest.raises(KafkaException, match="imed out"):
            await ids.shapes([one, unique("none")], once=True)
        assert {name: shape.partitions for name, shape in (await ids.shapes([one, unique("none")])).items()} == {one: 4}

    asyncio.run(run())


@pytest.mark.feature("C60", "C90")
def test_who_got_no_answer_asks_by_a_new_connection(
    kafka: str, create_topic: Callable[..., str], unique: Callable[[str], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A broker stood still, and was without a controller for a moment: the client waited for one for ever."""
    monkeypatch.setattr(topic_id, "_PATIENCE_S", 0.1)
    monkeypatch.setattr(topic_id, "_AGAIN_S", 0.0)
    monkeypatch.setattr(topic_id, "_GIVE_UP_S", 5.0)
    one = create_topic(unique("one"))

    async def run(silent: str) -> None:
        ids = TopicIds({"bootstrap.servers": silent})
        with pytest.raises(KafkaException, match="imed out"):
            await ids.of([one], once=True)
        ids._settings["bootstrap.servers"] = kafka
        assert (await ids.of([one])).keys() == {one}

    with socket.create_server(("127.0.0.1", 0)) as listens:
        asyncio.run(run(f"127.0.0.1:{listens.getsockname()[1]}"))
