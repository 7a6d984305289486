"""Deliveries by reference are the same, whether the client reads records as columns or as objects (D4)."""

import gc
import threading
from collections.abc import Callable, Iterator
from random import Random
from typing import Any, cast

import pytest
from confluent_kafka import KafkaException, Producer

from lapse.core.lifetime import NEVER
from lapse.protocol.bookmark import BookmarkRange
from lapse_client import Connection
from lapse_client.delivery.log_place import ColumnSource, LogPlace, MessageSource
from lapse_client.delivery.lot import Lot
from lapse_client.delivery.referenced_lot import ColumnLot, HandedOut, RecordLot
from lapse_client.kafka.column_consumer import ColumnConsumer
from lapse_client.kafka.fault import NOT_THERE
from lapse_client.kafka.headers import Headers
from lapse_client.session.shard import Shard
from support.suite.compiled import NEEDS_RECORD_COLUMNS

pytestmark = [NEEDS_RECORD_COLUMNS, pytest.mark.feature("D4")]

EACH = 120
"""Records of each way of writing."""

PARTS: list[bytes | None] = [None, b"", b"k", b"some bytes" * 30, b"\0" * 5_000]
HEADERS: list[Headers] = [
    [],
    [("lapse-ttl-ms", b"60000")],
    [("b", b"1"), ("a", b"2"), ("b", None), ("ü", b"\xff"), ("empty", b"")],
    [("lapse-reason", b"expired"), ("lapse-ttl-ms", b"1"), ("trace", b"x" * 300)],
]


@pytest.fixture(scope="module")
def topic(kafka: str) -> Iterator[str]:
    """A topic with records of every shape, compressed in every way, committed and aborted."""
    from confluent_kafka.admin import AdminClient

    from lapse.topic_creation import NewTopic

    name, admin, random = "record-columns", AdminClient({"bootstrap.servers": kafka}), Random(1)
    admin.create_topics([NewTopic(name, 1, 1)])[name].result(30)

    def write(producer: Producer) -> None:
        for _ in range(EACH):
            parts = {"key": random.choice(PARTS), "value": random.choice(PARTS)}
            producer.produce(name, headers=cast("Any", random.choice(HEADERS)), **parts)
        producer.flush(30)

    for codec in ("none", "gzip", "snappy", "lz4", "zstd"):
        write(Producer({"bootstrap.servers": kafka, "compression.type": codec, "linger.ms": 5}))
    in_parts = Producer({"bootstrap.servers": kafka, "transactional.id": name, "linger.ms": 5})
    in_parts.init_transactions(30)
    for ends in (in_parts.commit_transaction, in_parts.abort_transaction, in_parts.commit_transaction):
        in_parts.begin_transaction()
        write(in_parts)
        ends(30)
    yield name
    admin.delete_topics([name])[name].result(30)


Read = Callable[[BookmarkRange], list[Lot]]


@pytest.fixture
def readers(kafka: str, topic: str) -> Iterator[tuple[Read, Read]]:
    """Two ways to read ranges of a topic as lots: as columns, and as objects."""
    connection, stopping = Connection(kafka), threading.Event()
    consumer = connection.column_consumer(topic, 0, enable_partition_eof=True)
    assert consumer is not None
    columns = LogPlace(topic, ColumnSource(consumer), stopping)
    objects = LogPlace(topic, MessageSource(topic, 0, connection.consumer(enable_partition_eof=True)), stopping)

    def handed(some: BookmarkRange) -> HandedOut:
        deadlines = [NEVER if offset % 3 else 1_000 * offset for offset in range(some.first, some.last + 1)]
        return HandedOut(cast("Any", None), Shard(0, topic, 0), some, deadlines, b"99", b"1", 50_000.0)

    yield (
        lambda some: [ColumnLot(handed(some), part) for part in columns.read(some)],
        lambda some: [RecordLot(handed(some), part) for part in objects.read(some)],
    )
    columns.close()
    objects.close()


def seen(lots: list[Lot]) -> list[tuple[object, ...]]:
    """All that an application sees of the messages of some lots."""
    return [
        (
            lot.offsets[at],
            lot.key(at),
            lot.value(at),
            lot.headers(at),
            lot.timestamp_ms(at),
            lot.deadline_ms(at),
            lot.delivery_counts[at],
            lot.token_of(at),
            at in lot.overdue,
            None if lot.key_bounds is None else lot.data[lot.key_bounds[at] : lot.key_bounds[at + 1]] == lot.key(at),
            None
            if lot.value_bounds is None
            else lot.data[lot.value_bounds[at] : lot.value_bounds[at + 1]] == lot.value(at),
        )[: 9 if isinstance(lot, RecordLot) else None]
        for lot in lots
        for at in range(len(lot))
    ]


def visible(lots: list[Lot]) -> list[tuple[object, ...]]:
    """The same without the last two, which only columns have. They must not contradict the rest."""
    every = seen(lots)
    assert all(False not in one[9:] for one in every)
    return [one[:9] for one in every]


def test_columns_are_what_objects_are(topic: str, readers: tuple[Read, Read]) -> None:
    columns, objects = readers
    random, end = Random(2), 8 * EACH + 3
    ranges = [(0, end - 1)]
    for _ in range(4):  # each is a seek, which takes half a second
        first = random.randrange(end)
        ranges.append((first, min(end - 1, first + random.choice([0, 7, 500]))))
    ranges += [(first, first + 9) for first in range(0, end - 10, 10)]  # one behind the other, as a queue hands out
    for first, last in ranges:
        some = BookmarkRange(topic, 0, first, last, 1)
        assert visible(columns(some)) == visible(objects(some)), some
    whole = BookmarkRange(topic, 0, 1 << 48, (1 << 48) + end - 1, 2)  # brought back by a rewind
    assert len(visible(columns(whole))) == 7 * EACH
    assert visible(columns(whole)) == visible(objects(whole))


def test_what_was_read_stays_readable_after_the_end(kafka: str, topic: str) -> None:
    consumer = Connection(kafka).column_consumer(topic, 0, enable_partition_eof=True)
    assert consumer is not None
    place = LogPlace(topic, ColumnSource(consumer), threading.Event())
    some = BookmarkRange(topic, 0, 0, 4 * EACH, 1)
    handed = HandedOut(cast("Any", None), Shard(0, topic, 0), some, (), None, b"1", 0.0)
    lots: list[Lot] = [ColumnLot(handed, part) for part in place.read(some)]
    before = visible(lots)
    place.close()
    assert visible(lots) == before
    assert any(one[3] for one in before)
    lots.clear()
    gc.collect()


def test_a_topic_that_is_not_there_has_no_end(kafka: str) -> None:
    consumer = Connection(kafka).column_consumer("no-such-topic", 0)
    assert consumer is not None
    with pytest.raises(KafkaException) as refused:
        consumer.end(2.0)
    assert refused.value.args[0].code() in NOT_THERE
    consumer.close()


@pytest.mark.parametrize(
    "config",
    [
        {"oauth_cb": lambda _: ("token", 0.0)},
        {"sasl.mechanisms": "OAUTHBEARER"},
        {"no.such.option": 1},
        {"fetch.message.max.bytes": "many"},
    ],
)
def test_settings_that_only_confluent_kafka_can_take_are_left_to_it(config: dict[str, Any]) -> None:
    plain = {"bootstrap.servers": "127.0.0.1:1", "group.id": "x", "log_level": 0}
    assert ColumnConsumer.open("orders", 0, {**plain, **config}) is None
    opened = ColumnConsumer.open("orders", 0, plain)
    assert opened is not None
    opened.close()
