"""The client and Kafka itself: restarts, publishing, dead letters, replay."""

import concurrent.futures
import threading
import time
from collections.abc import Callable

import pytest
from confluent_kafka import Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewPartitions

from lapse.core.reason import Reason
from lapse.embedded import EmbeddedKafka
from lapse.protocol import dead_letter
from lapse_client import (
    Bookmark,
    Connection,
    ConnectionFailed,
    DeadLetterReader,
    LapseError,
    Publisher,
    QueueSubscriber,
    UnknownEntity,
    replay,
)
from lapse_client.kafka.log_offsets import log_bounds
from support.clients.scripted_shard import ScriptedShards


@pytest.mark.feature("X3")
@pytest.mark.slow
def test_the_subscriber_outlives_a_restart_of_the_broker(own_kafka: EmbeddedKafka) -> None:
    queue = ScriptedShards(own_kafka.bootstrap_servers, "orders", 2)
    seen: set[bytes] = set()
    try:
        connection = Connection(own_kafka.bootstrap_servers)
        with Publisher(connection) as publisher, QueueSubscriber("orders", 10, connection=connection) as subscriber:
            for number in range(100):
                publisher.publish("orders", str(number), key=str(number))
                if number == 50:
                    publisher.flush()
                    own_kafka.kill()
                    threading.Timer(2, own_kafka.start).start()
            for delivery in subscriber.messages(timeout=30):
                with delivery:
                    seen.add(delivery.value)
                if len(seen) == 100:
                    break
        assert len(seen) == 100
    finally:
        queue.stop()


@pytest.mark.feature("X7")
def test_no_broker_is_reported_as_such() -> None:
    with pytest.raises(ConnectionFailed, match="localhost:1"):
        Connection("localhost:1", {"socket.connection.setup.timeout.ms": 1000}).partitions()


@pytest.mark.feature("X7")
def test_publishing_to_nowhere_is_refused_and_creates_nothing(kafka: str, unique: Callable[[str], str]) -> None:
    connection, nowhere = Connection(kafka), unique("nowhere")
    with Publisher(connection) as publisher, pytest.raises(UnknownEntity, match=nowhere):
        publisher.publish(nowhere, "x")
    time.sleep(0.2)
    assert nowhere not in connection.partitions()


@pytest.mark.feature("X3")
def test_a_future_ends_though_nobody_calls_the_publisher(
    kafka: str, create_topic: Callable[..., str], unique: Callable
) -> None:
    name = create_topic(unique("waited"))
    with Publisher(Connection(kafka)) as publisher:
        assert publisher.submit(name, b"first").result(30) == Bookmark(name, 0, 0)
        futures = [publisher.submit(name, b"x") for _ in range(100)]
        done, waiting = concurrent.futures.wait(futures, 30)
        assert not waiting
        assert {future.result().offset for future in done} == set(range(1, 101))
        time.sleep(0.3)  # the thread that served them has ended
        assert publisher.submit(name, b"last").result(30) == Bookmark(name, 0, 101)


@pytest.mark.feature("X7")
def test_a_record_that_kafka_refuses_is_raised(kafka: str, create_topic: Callable[..., str], unique: Callable) -> None:
    name = create_topic(unique("small"), config={"max.message.bytes": "1000"})
    publisher = Publisher(Connection(kafka))
    publisher.publish(name, b"x" * 5000, key="k")
    with pytest.raises(LapseError, match=f"topic {name}, key b'k'"):
        publisher.flush()
    publisher.close()


@pytest.mark.feature("D2", "D3", "X3")
def test_dead_letters_are_read_once_each_with_their_facts(
    kafka: str, create_topic: Callable[..., str], unique: Callable
) -> None:
    queue = unique("q")
    letters = create_topic(f"dlq.{queue}", partitions=2)
    producer = Producer({"bootstrap.servers": kafka})
    for offset in (1, 2, 2):
        death = dead_letter.Death(
            entity=queue,
            bookmark=Bookmark("orders", 1, offset),
            reasons=(Reason.TIME_LIMIT, Reason.MAX_CANCELS),
            expired_at_ms=1000,
            expires_at_ms=999,
            delivery_count=3,
            cancel_count=2,
        )
        headers = dead_letter.headers(death, [("own", b"yes"), ("lapse-ttl-ms", b"5")])
        producer.produce(letters, b"value", b"key", partition=1, headers=headers)
    producer.produce(letters, b"foreign", partition=0)
    producer.flush()
    found = list(DeadLetterReader(queue, connection=Connection(kafka)))
    assert len(found) == 3
    first = next(letter for letter in found if letter.origin == Bookmark("orders", 1, 1))
    assert first.reasons == ("time_limit", "max_cancels")
    assert (first.entity, first.delivery_count, first.cancel_count) == (queue, 3, 2)
    assert (first.expires_at_ms, first.expired_at_ms, first.redriven_count) == (999, 1000, 0)
    assert (first.key, first.value) == (b"key", b"value")
    assert ("lapse-original-ttl-ms", b"5") in first.headers
    assert any(letter.origin is None and letter.value == b"foreign" for letter in found)
    with pytest.raises(UnknownEntity):
        DeadLetterReader(unique("none"), connection=Connection(kafka))


@pytest.mark.feature("Q19")
def test_replay_reads_from_a_bookmark(kafka: str, create_topic: Callable[..., str], unique: Callable) -> None:
    name = create_topic(unique("log"))
    connection = Connection(kafka)
    with Publisher(connection) as publisher:
        for number in range(5):
            publisher.publish(name, str(number), headers={"a": "b"})
    found = list(replay(f"{name}:0:2", connection=connection))
    assert [record.value for record in found] == [b"2", b"3", b"4"]
    assert found[0].bookmark == Bookmark(name, 0, 2)
    assert found[0].headers == [("a", b"b")]
    with pytest.raises(LapseError, match="offsets 0 to 4"):
        list(replay(f"{name}:0:9", connection=connection))


@pytest.mark.feature("X3", "C81")
def test_a_consumer_that_has_heard_too_little_of_a_topic_asks_again(
    kafka: str, unique: Callable[[str], str], create_topic: Callable[..., str]
) -> None:
    """As it does of a broker that has just come back, and keeps that for minutes."""
    name = create_topic(unique("heard"), partitions=1)
    consumer, admin = Connection(kafka).consumer(), AdminClient({"bootstrap.servers": kafka})
    try:
        assert log_bounds(consumer, TopicPartition(name, 0)) == (0, 0)
        admin.create_partitions([NewPartitions(name, 2)])[name].result(15)
        assert log_bounds(consumer, TopicPartition(name, 1)) == (0, 0)
    finally:
        consumer.close()
