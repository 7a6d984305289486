from datetime import UTC, datetime, timedelta

import pytest

from lapse.protocol import packed_delivery, reference
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.packed_delivery import column
from lapse_spark import local_rows, quarantine, schema
from lapse_spark.records import delivery, sow

pytestmark = pytest.mark.spark

AT = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


def delivered(bookmark=b"orders:3:7", epoch=b"5", kind=b"delivery"):
    return [
        ("lapse-kind", kind),
        ("lapse-subscription", b"s1"),
        ("lapse-bookmark", bookmark),
        ("lapse-delivery-count", b"2"),
        ("lapse-lease-until-ms", b"1750000000000"),
        ("lapse-expires-at-ms", b"1750000009999"),
        ("lapse-timestamp-ms", b"1749999990000"),
        ("lapse-epoch", epoch),
    ]


@pytest.fixture
def deliveries(spark):
    def parse(*headers):
        rows = [("lapse.q.deliveries", 0, offset, AT, b"k", b"v", one) for offset, one in enumerate(headers)]
        return delivery.parse(local_rows.frame(spark, rows, schema.RAW))

    return parse


@pytest.mark.feature("D4")
def test_delivery_is_read_whole(deliveries):
    row = deliveries(delivered()).head()
    assert row.fault is None
    assert (row.kind, row.subscription, row.topic, row.partition, row.offset) == ("delivery", "s1", "orders", 3, 7)
    assert [tuple(one) for one in row.ranges] == [(7, 7, 2)]
    assert (row.delivery_count, row.lease_until_ms, row.epoch) == (2, 1_750_000_000_000, 5)
    assert (row.expires_at_ms, row.arrived_at_ms) == (1_750_000_009_999, 1_749_999_990_000)


@pytest.mark.feature("D4", "C61")
def test_a_delivery_and_a_barrier_of_rewound_messages_name_their_positions(deliveries):
    read = deliveries(
        delivered(bookmark=b"orders:3:7~2"),
        delivered(bookmark=b"orders:3:8~1", kind=b"barrier"),
        delivered(bookmark=b"orders:3:7~16384"),
        delivered(bookmark=b"orders:3:281474976710656~1"),
        delivered(bookmark=b"orders:3:7~0"),
    )
    rows = read.orderBy("delivery_offset").collect()
    unreadable = "header lapse-bookmark is missing or unreadable"
    assert [row.fault for row in rows] == [None, None, *[unreadable] * 3]
    places = [Bookmark.parse(text).offset for text in ("orders:3:7~2", "orders:3:8~1")]
    assert [(row.topic, row.partition, row.offset) for row in rows[:2]] == [("orders", 3, place) for place in places]
    assert [tuple(one) for row in rows[:2] for one in row.ranges] == [(place, place, 2) for place in places]


@pytest.mark.feature("D4")
def test_a_reference_names_its_messages(spark):
    def rows(*values):
        heads = [("lapse-kind", b"reference"), ("lapse-subscription", b"s1"), ("lapse-lease-until-ms", b"99")]
        records = [("lapse.q.deliveries", 0, place, AT, None, value, heads) for place, value in enumerate(values)]
        return delivery.parse(local_rows.frame(spark, records, schema.RAW))

    ranges = [(5, 6, 1), (9, 9, 3)]
    read = rows(
        reference.encode("orders", 2, ranges, column("q", [7, reference.NEVER, 1 << 40])),
        reference.encode("t", 0, ranges, b""),
    )
    assert [row.fault for row in read.collect()] == [None, None]
    one, other = ([row for row in delivery.each(read).collect() if row.topic == name] for name in ("orders", "t"))
    facts = [(row.partition, row.offset, row.delivery_count, row.expires_at_ms, row.lease_until_ms) for row in one]
    assert facts == [(2, 5, 1, 7, 99), (2, 6, 1, None, 99), (2, 9, 3, 1 << 40, 99)]
    assert [(row.offset, row.expires_at_ms) for row in other] == [(5, None), (6, None), (9, None)]

    good = reference.encode("orders", 2, ranges, b"")
    half = 1 << 19
    long = [
        reference.encode("t", 0, some, b"") for some in ([(9, 5, 1)], [(0, 2 * half, 1)], [(0, half, 1), (0, half, 1)])
    ]
    bad = rows(b"", None, b"foreign", good[:-3], *long, good)
    assert [row.fault for row in bad.orderBy("delivery_offset").collect()] == [
        *["no reference of the known schema"] * 4,
        *["a range that is none"] * 2,
        "more messages than a delivery has",
        None,
    ]


def packed(topic, offsets, counts, deadlines=()):
    return packed_delivery.encode(
        topic,
        2,
        column("q", offsets),
        column("q", [17] * len(offsets)),
        column("I", counts),
        [b"value"] * len(offsets),
        deadlines_ms=column("q", deadlines),
        keys=[b"key"] * len(offsets),
    )


@pytest.mark.feature("D4")
def test_a_packed_delivery_hands_out_its_messages(spark):
    def rows(*values):
        heads = [("lapse-kind", b"packed"), ("lapse-subscription", b"s1"), ("lapse-lease-until-ms", b"99")]
        records = [("lapse.q.deliveries", 0, place, AT, None, value, heads) for place, value in enumerate(values)]
        return delivery.parse(local_rows.frame(spark, records, schema.RAW))

    good = packed("orders", [5, 6, 1 << 40], [1, 1, 3], [7, packed_delivery.NEVER, 1 << 40])
    read = rows(good, packed("t", range(300), [2] * 300))
    assert [row.fault for row in read.collect()] == [None, None]
    one, other = ([row for row in delivery.each(read).collect() if row.topic == name] for name in ("orders", "t"))
    facts = [(row.partition, row.offset, row.delivery_count, row.expires_at_ms, row.lease_until_ms) for row in one]
    assert facts == [(2, 5, 1, 7, 99), (2, 6, 1, None, 99), (2, 1 << 40, 3, 1 << 40, 99)]
    assert [(row.offset, row.delivery_count, row.expires_at_ms) for row in other] == [
        (offset, 2, None) for offset in range(300)
    ]

    bad = rows(b"", None, b"LD", good[:60], good[:2] + b"\x02" + good[3:], packed("t", [-1], [1]), good)
    assert [row.fault for row in bad.orderBy("delivery_offset").collect()] == [
        *["no packed delivery of the known version"] * 5,
        "a range that is none",
        None,
    ]


@pytest.mark.feature("X7")
def test_what_is_no_delivery_is_put_aside(deliveries):
    read = deliveries([], delivered(bookmark=b"orders:3"), delivered(kind=b"answer", bookmark=b""), delivered())
    good, aside = quarantine.split(read)
    assert sorted(row.kind for row in good.collect()) == ["answer", "delivery"]
    assert [row.fault for row in aside.orderBy("offset").collect()] == [
        "header lapse-kind is missing",
        "header lapse-bookmark is missing or unreadable",
    ]


def test_deliveries_of_an_overthrown_epoch_are_void(deliveries):
    epochs = (b"5", b"6", b"5", b"6", b"7", b"6")
    kept = delivery.valid(deliveries(*(delivered(epoch=epoch) for epoch in epochs)))
    assert sorted(row.delivery_offset for row in kept.collect()) == [0, 1, 3, 4]


@pytest.mark.feature("S8")
def test_the_state_of_a_sow_topic_is_the_latest_of_every_key(spark):
    def record(offset, key, value, seconds, partition=0, deadline=None):
        headers = None if deadline is None else [("lapse-expires-at-ms", deadline)]
        return ("lapse.sow.prices", partition, offset, AT + timedelta(seconds=seconds), key, value, headers)

    rows = [
        record(0, b"a", b"1", 0),
        record(1, b"b", b"2", 1),
        record(2, b"a", b"3", 2, deadline=b"5000"),
        record(3, b"b", None, 3),
        record(4, None, b"x", 4),
        record(5, b"c", b"4", 5, deadline=b"soon"),
        record(6, b"d", b"5", 6, deadline=b"9000"),
        record(0, b"d", b"6", 7, partition=1),
    ]
    updates = sow.parse(local_rows.frame(spark, rows, schema.RAW))
    assert {bytes(row.key): bytes(row.value) for row in sow.current(updates).collect()} == {b"a": b"3", b"d": b"6"}
    assert {bytes(row.key) for row in sow.current(updates, now_ms=5_000).collect()} == {b"d"}
    faults = {row.offset: row.fault for row in quarantine.split(updates)[1].collect()}
    assert faults == {4: "a record of a SOW topic without a key", 5: "header lapse-expires-at-ms is unreadable"}
