"""Records on a deliveries topic that no worker wrote, or that are damaged: the subscription goes on (X7)."""

import threading
from typing import Any

import pytest
from confluent_kafka import KafkaError, KafkaException, TopicPartition

from lapse.core.lifetime import NEVER
from lapse.protocol import codec, packed_delivery, topic
from lapse.testing import Lapse
from lapse.testing.memory_clients import MemoryConsumer
from lapse_client.delivery import log_place

pytestmark = pytest.mark.feature("X7", "X3", "D4")


def packed(**changes: Any) -> bytes:
    column = packed_delivery.column
    columns = {"offsets": column("q", [0, 1]), "stamps": column("q", [0, 0]), "counts": column("I", [1, 1])} | changes
    return packed_delivery.encode("orders", 0, *columns.values(), values=[b"x", b"y"])


def reference(ranges: list[tuple[int, int, int]], deadlines_ms: bytes = b"", source: str = "orders") -> bytes:
    facts = [{"first": first, "last": last, "delivery_count": count} for first, last, count in ranges]
    named = {"topic": source, "partition": 0, "ranges": facts, "deadlines_ms": deadlines_ms}
    return codec.encode("reference", named)


DAMAGED: dict[str, tuple[str, bytes, dict[str, bytes | None]]] = {
    "a delivery without a bookmark": ("packed", b"", {"lapse-kind": b"delivery", "lapse-bookmark": None}),
    "a count that is no number": ("packed", b"", {"lapse-kind": b"delivery", "lapse-delivery-count": b"one"}),
    "a lease that is no number": ("packed", packed(), {"lapse-kind": b"packed", "lapse-lease-until-ms": b"soon"}),
    "too few bytes": ("packed", packed()[:-1], {"lapse-kind": b"packed"}),
    "no bytes": ("packed", b"", {"lapse-kind": b"packed"}),
    "an answer without bytes": ("packed", b"", {"lapse-kind": b"answer"}),
    "a reference without a lease that is a number": (
        "reference",
        reference([(0, 0, 1)]),
        {"lapse-kind": b"reference", "lapse-lease-until-ms": b"soon"},
    ),
    "fewer deadlines than messages": (
        "reference",
        reference([(0, 0, 1), (1, 1, 1)], NEVER.to_bytes(8, "little")),
        {"lapse-kind": b"reference"},
    ),
    "a range that ends before it begins": ("reference", reference([(5, 2, 1)]), {"lapse-kind": b"reference"}),
    "records that are not there": ("reference", reference([(7, 9, 1)]), {"lapse-kind": b"reference"}),
    "a topic that was deleted": ("reference", reference([(0, 1, 1)], source="gone"), {"lapse-kind": b"reference"}),
    "a range without end": ("reference", reference([(0, (1 << 63) - 1, 1)]), {"lapse-kind": b"reference"}),
}


@pytest.mark.parametrize("what", DAMAGED)
def test_a_damaged_record_is_dropped_and_the_next_message_comes(
    lapse: Lapse, what: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(log_place, "_SHORT_S", 0.1)
    payload, value, headers = DAMAGED[what]
    lapse.queue("orders")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 5, payload=payload) as subscriber:
        named = {"lapse-subscription": subscriber.name.encode(), "lapse-epoch": b"1", **headers}
        lapse.connection.producer().produce(
            topic.deliveries("orders"), value, b"key", partition=0, headers=[*named.items()]
        )
        lapse.settle()
        publisher.publish("orders", b"1")
        delivery = subscriber.receive(10)
        assert delivery is not None
        assert delivery.value == b"1"


@pytest.mark.feature("D4")
@pytest.mark.parametrize("knows_its_topics", [True, False])
def test_records_that_brokers_have_and_do_not_send_are_waited_for(
    lapse: Lapse, monkeypatch: pytest.MonkeyPatch, knows_its_topics: bool
) -> None:
    """As while a broker restarts. The reader has been at the end of the log before they came."""
    asked, ends = threading.Event(), MemoryConsumer.get_watermark_offsets

    def looked_up(consumer: MemoryConsumer, place: TopicPartition, *arguments: Any, **options: Any) -> Any:
        if place.topic == "orders":
            if not (knows_its_topics or asked.is_set()):
                asked.set()
                raise KafkaException(KafkaError(KafkaError._UNKNOWN_PARTITION))
            asked.set()
        return ends(consumer, place, *arguments, **options)

    monkeypatch.setattr(log_place, "_SHORT_S", 0.1)
    monkeypatch.setattr(log_place, "_KNOWN_S", 0.1)
    monkeypatch.setattr(MemoryConsumer, "get_watermark_offsets", looked_up)
    lapse.queue("orders", lease_period="1h")
    with lapse.publisher() as publisher, lapse.subscriber("orders", 5, payload="reference") as subscriber:
        publisher.publish("orders", b"1")
        first = subscriber.receive(10)
        assert first is not None
        records = subscriber.subscription._listener._records
        assert records is not None
        ((place, _),) = records._places.values()
        consumer = place._source._consumer  # type: ignore[attr-defined]
        consumer.cut_off(True)
        publisher.publish("orders", b"2")
        lapse.settle()
        assert asked.wait(20)
        consumer.cut_off(False)
        second = subscriber.receive(10)
        assert second is not None
        assert second.value == b"2"
