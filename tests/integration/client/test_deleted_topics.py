"""Whoever reads all topics of a cluster is not ended by somebody who deletes one of them meanwhile."""

from collections.abc import Callable, Sequence

import pytest
from confluent_kafka import Consumer, TopicPartition
from confluent_kafka.admin import AdminClient

from lapse.protocol import topic
from lapse_client import Connection, ConnectionFailed, LapseError, Publisher, PublishFailed, UnknownEntity
from lapse_client.kafka import log_offsets
from lapse_client.kafka import span as spans
from lapse_client.kafka.metadata import Metadata
from lapse_client.kafka.span import span
from lapse_client.publisher import record_publisher
from lapse_client.queue.deletion import wait_until_gone
from support.kafka.log import until, write

pytestmark = pytest.mark.feature("D7", "X7")


@pytest.fixture
def here(
    kafka: str, unique: Callable[[str], str], create_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> tuple[Connection, dict[str, int]]:
    """A cluster, and two topics with records."""
    monkeypatch.setattr(log_offsets, "METADATA_TIMEOUT_S", 2.0)
    topics = {create_topic(unique(stem)): 1 for stem in ("going", "staying")}
    for name in topics:
        write(kafka, name, [b"1", b"2"])
    return Connection(kafka), topics


def delete(connection: Connection, name: str) -> None:
    admin = AdminClient({"bootstrap.servers": connection.bootstrap_servers})
    admin.delete_topics([name])[name].result(30)
    until(lambda: name not in admin.list_topics(timeout=15).topics, "its deletion")


def test_what_was_deleted_after_it_was_listed_is_left_out(here: tuple[Connection, dict[str, int]]) -> None:
    """It was told as `no connection to Kafka`, though the broker had answered."""
    connection, topics = here
    going, staying = topics
    delete(connection, going)
    found = [(one.topic(), one.value()) for one in span(connection, topics, since_ms=0, listed=True)]
    assert found == [(staying, b"1"), (staying, b"2")]
    with pytest.raises(ConnectionFailed, match="Unknown"):
        list(span(connection, topics))


def test_what_is_deleted_while_its_first_offset_is_looked_up_is_left_out(
    here: tuple[Connection, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    connection, topics = here
    going, staying = topics
    asked: list[set[str]] = []

    def late(consumer: Consumer, instants: Sequence[TopicPartition]) -> list[TopicPartition]:
        if not asked:
            delete(connection, going)
        asked.append({one.topic for one in instants})
        return log_offsets.offsets_at(consumer, instants)

    monkeypatch.setattr(spans, "offsets_at", late)
    found = [(one.topic(), one.value()) for one in span(connection, topics, since_ms=0, listed=True)]
    assert found == [(staying, b"1"), (staying, b"2")]
    assert asked == [{going, staying}, {staying}]


def test_what_is_deleted_while_it_is_read_is_left_out(here: tuple[Connection, dict[str, int]]) -> None:
    connection, topics = here
    going, staying = topics
    totals: list[int] = []

    def progress(_: int, total: int) -> None:
        if not totals:
            delete(connection, going)
        totals.append(total)

    found = [(one.topic(), one.value()) for one in span(connection, topics, progress=progress, listed=True)]
    assert (found, totals[0]) == ([(staying, b"1"), (staying, b"2")], 4)


@pytest.mark.feature("C4", "C90")
def test_who_waits_for_the_end_of_an_entity_does_not_ask_for_all_topics(
    kafka: str, unique: Callable[[str], str], create_topic: Callable[..., str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Fifty that waited had a broker list its topics a hundred times a second, and busy queues waited for it."""
    connection, name = Connection(kafka), unique("orders")
    commands = create_topic(topic.commands(name))
    monkeypatch.setattr(Metadata, "ask", lambda *_: pytest.fail("it lists all topics"))
    with pytest.raises(LapseError, match=f"{commands} could not be removed within 0 s"):
        wait_until_gone(connection, name, 0)
    delete(connection, commands)
    wait_until_gone(connection, name, 20)


@pytest.mark.feature("X3")
def test_a_publisher_names_the_deletion_of_a_topic_before_its_timeout(
    here: tuple[Connection, dict[str, int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """librdkafka waits for a topic for half a minute, as long as the publisher, which said that there is no answer."""
    connection, (going, _) = here
    monkeypatch.setattr(record_publisher, "_PROPAGATION_MS", 1_000)
    publisher = Publisher(connection, timeout_s=20)
    publisher.publish(going, b"3")
    publisher.flush()
    delete(connection, going)
    publisher.publish(going, b"4")
    with pytest.raises(PublishFailed) as refused:
        publisher.close()
    assert refused.value.kafka_error.lstrip("_").startswith("UNKNOWN_"), refused.value
    with Publisher(connection) as later, pytest.raises(UnknownEntity):
        later.publish(going, b"5")
