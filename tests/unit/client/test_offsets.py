"""Where readers begin that are asked for records from an instant on (D2, D5)."""

from types import SimpleNamespace
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lapse.testing import Lapse
from lapse.testing.memory_clients import MemoryConsumer
from lapse_client.kafka.connection import offsets_at
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


@pytest.mark.feature("D5", "X7")
def test_an_error_of_one_partition_does_not_mean_that_it_has_no_records() -> None:
    error = KafkaError(KafkaError.NOT_LEADER_FOR_PARTITION)
    found = [SimpleNamespace(offset=7, error=None), SimpleNamespace(offset=-1001, error=error)]
    consumer: Any = SimpleNamespace(offsets_for_times=lambda *_, **__: found)
    with pytest.raises(KafkaException, match="NOT_LEADER"):
        offsets_at(consumer, [TopicPartition("orders", 0, 5), TopicPartition("orders", 1, 5)])
