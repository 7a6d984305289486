"""Where readers begin that are asked for records from an instant on (D2, D5)."""

from types import SimpleNamespace
from typing import Any, cast

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lapse.testing import Lapse
from lapse.testing.memory_clients import MemoryConsumer
from lapse_client.error import ConnectionFailed
from lapse_client.kafka import log_offsets
from lapse_client.kafka.log_offsets import log_bounds, offsets_at
from lapse_client.kafka.topic_reader import TopicReader
from lapse_client.letters.letter_purge import LetterPurge, Span


@pytest.fixture
def meanwhile(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """Functions that are called once, after a consumer has got the offsets for an instant."""
    waiting: list[Any] = []
    look_up = MemoryConsumer.offsets_for_times

    def looked_up(consumer: MemoryConsumer, *arguments: Any, **options: Any) -> list[TopicPartition]:
        found = look_up(consumer, *arguments, **options)
        while waiting:
            waiting.pop()()
        return found

    monkeypatch.setattr(MemoryConsumer, "offsets_for_times", looked_up)
    return waiting


@pytest.mark.feature("D2", "X3")
def test_a_reader_that_follows_gets_what_comes_while_it_looks_for_its_beginning(
    lapse: Lapse, meanwhile: list[Any]
) -> None:
    lapse.queue("orders")
    with lapse.publisher() as publisher:
        publisher.publish("orders", b"old")
        lapse.settle()
        lapse.clock.advance(10)
        meanwhile.append(lambda: (publisher.publish("orders", b"new"), lapse.settle()))
        reader = TopicReader(lapse.connection, "orders", 1, follow=True, since_ms=int(lapse.clock.now_ms))
        records = reader.paced()
        first = next(records)
        assert first is not None
        assert first.value() == b"new"
        records.close()


@pytest.mark.feature("D2", "D5")
def test_a_purge_spares_a_letter_that_comes_while_it_is_planned(lapse: Lapse, meanwhile: list[Any]) -> None:
    lapse.queue("orders")
    bad = {"lapse-ttl-ms": "soon"}
    with lapse.publisher() as publisher:
        produce = publisher._producer.produce
        produce("orders", b"1", headers=[*bad.items()])
        lapse.settle()
        lapse.clock.advance(10)
        until_ms = int(lapse.clock.now_ms)
        lapse.clock.advance(10)
        meanwhile.append(lambda: (produce("orders", b"2", headers=[*bad.items()]), lapse.settle()))
        assert LetterPurge("dlq.orders", lapse.connection).plan(until_ms) == [Span(0, 0, 1)]
    assert len(lapse.dead_letters("orders")) == 2


class Electing:
    """A consumer whose brokers elect a leader, for as many questions as it has errors."""

    def __init__(self, *errors: int) -> None:
        self.errors = list(errors)
        self.looked: list[str] = []
        self.assign: Any = None

    def offsets_for_times(self, asked: list[TopicPartition], **_: float) -> list[Any]:
        error = KafkaError(self.errors.pop(0)) if self.errors else None
        return [SimpleNamespace(offset=7, error=None), SimpleNamespace(offset=-1001 if error else 9, error=error)]

    def get_watermark_offsets(self, place: TopicPartition, **_: float) -> tuple[int, int]:
        if self.errors:
            raise KafkaException(KafkaError(self.errors.pop(0)))
        return 7, 9

    def list_topics(self, topic: str, **_: float) -> None:
        self.looked.append(topic)


PLACES = [TopicPartition("orders", 0, 5), TopicPartition("orders", 1, 5)]


@pytest.mark.feature("D5", "X7")
def test_an_error_of_one_partition_does_not_mean_that_it_has_no_records(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_offsets, "METADATA_TIMEOUT_S", 0.0)
    with pytest.raises(KafkaException, match="NOT_LEADER"):
        offsets_at(cast("Any", Electing(KafkaError.NOT_LEADER_FOR_PARTITION)), PLACES)


@pytest.mark.feature("X3", "D5")
@pytest.mark.parametrize("code", [KafkaError.NOT_LEADER_FOR_PARTITION, KafkaError.OFFSET_NOT_AVAILABLE])
def test_who_asks_while_a_leader_is_elected_waits_for_it(monkeypatch: pytest.MonkeyPatch, code: int) -> None:
    monkeypatch.setattr(log_offsets, "_RETRY_S", 0.0)
    consumer = Electing(code, code)
    assert [one.offset for one in offsets_at(cast("Any", consumer), PLACES)] == [7, 9]
    consumer.errors = [code, code]
    assert log_bounds(cast("Any", consumer), PLACES[0]) == (7, 9)
    assert consumer.looked == ["orders"] * 4


def test_what_does_not_pass_is_raised_at_once() -> None:
    consumer = Electing(KafkaError.TOPIC_AUTHORIZATION_FAILED)
    with pytest.raises(KafkaException):
        offsets_at(cast("Any", consumer), PLACES)
    assert offsets_at(cast("Any", consumer), []) == []
    assert not consumer.looked


@pytest.mark.feature("X3")
def test_where_a_topic_ends_is_a_failed_connection_only_once_it_lasts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_offsets, "_RETRY_S", 0.0)
    assigned: list[Any] = []
    consumer = Electing(KafkaError.NOT_LEADER_FOR_PARTITION)
    consumer.assign = assigned.extend
    log_offsets.assign_ends(cast("Any", consumer), [("orders", 0)], "broker:9092")
    assert [(one.topic, one.partition, one.offset) for one in assigned] == [("orders", 0, 9)]
    monkeypatch.setattr(log_offsets, "METADATA_TIMEOUT_S", 0.0)
    consumer.errors = [KafkaError.NOT_LEADER_FOR_PARTITION]
    with pytest.raises(ConnectionFailed, match="broker:9092"):
        log_offsets.assign_ends(cast("Any", consumer), [("orders", 0)], "broker:9092")
