import struct
from dataclasses import replace
from datetime import UTC, datetime

import pytest

from lapse.core.reason import Reason
from lapse.protocol import dead_letter as wire
from lapse.protocol.bookmark import Bookmark
from lapse_client.letters.dead_letter import parse_letter
from lapse_client.reading.replay import Replayed
from lapse_spark import local_rows, quarantine, schema
from lapse_spark.records import dead_letter
from support.kafka.other_letters import OTHERS, RECORDED

pytestmark = pytest.mark.spark

AT = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)


@pytest.fixture
def letters(spark):
    """Parses records with these headers, in this order; each stands at its own offset."""

    def parse(*headers):
        rows = [
            ("dlq.orders", 0, offset, AT, b"key", b"value", None if one is None else [(n, v) for n, v in one])
            for offset, one in enumerate(headers)
        ]
        return dead_letter.parse(local_rows.frame(spark, rows, schema.RAW))

    return parse


def lapse_headers(offset=7, *reasons, **facts):
    death = wire.Death(
        entity="orders",
        bookmark=Bookmark("orders", 3, offset),
        reasons=reasons or (Reason.TIME_LIMIT,),
        expired_at_ms=1_750_000_000_123,
        **facts,
    )
    return wire.headers(death, [])


def damaged(name, value):
    return [(one, value if one == name else was) for one, was in lapse_headers()]


@pytest.mark.feature("D2", "X7")
def test_no_damaged_number_or_id_ends_a_job_or_hides_another_letter(letters):
    """An instant behind the calendar's end, also in the east, offsets that no log has, and letters without an id."""
    read = letters(
        damaged("lapse-expired-at-ms", b"99999999999999999"),
        damaged("lapse-expired-at-ms", b"253402214400000"),
        damaged("lapse-expired-at-ms", b"253402214399999"),
        damaged("__dlq.errors.offset", b"9223372036854775807"),
        damaged("lapse-id", None),
        damaged("lapse-id", b""),
    )
    rows = sorted(read.collect(), key=lambda row: row.letter_offset)
    assert [(row.letter_offset, row.died_at == row.letter_at) for row in rows[:3]] == [(0, True), (1, True), (2, False)]
    assert rows[3].fault == "header __dlq.errors.offset is missing or unreadable"
    assert [row.id for row in rows[4:]] == ["dlq.orders:0:4", "dlq.orders:0:5"]
    assert dead_letter.distinct(read.where("letter_offset >= 4")).count() == 2


@pytest.mark.feature("D2", "D3")
def test_letter_of_lapse_is_read_whole(letters):
    headers = lapse_headers(
        7, Reason.TIME_LIMIT, Reason.MAX_DELIVERIES, expires_at_ms=1_750_000_000_100, delivery_count=4, cancel_count=2
    )
    row = letters(headers).head()
    assert row.fault is None
    assert (row.id, row.family, row.entity) == ("orders/orders:3:7/0", "lapse", "orders")
    assert (row.topic, row.partition, row.offset) == ("orders", 3, 7)
    assert row.reasons == ["time_limit", "max_deliveries"]
    assert (row.expires_at_ms, row.expired_at_ms) == (1_750_000_000_100, 1_750_000_000_123)
    assert (row.delivery_count, row.cancel_count, row.redriven_count) == (4, 2, 0)
    assert row.died_at.timestamp() == pytest.approx(1_750_000_000.123)
    assert (bytes(row.key), bytes(row.value), len(row.headers)) == (b"key", b"value", len(headers))


@pytest.mark.feature("D2")
def test_a_letter_without_a_deadline_has_none(letters):
    assert letters(lapse_headers()).head().expires_at_ms is None


@pytest.mark.feature("D2")
def test_the_other_families_are_recognised(letters):
    rows = letters(*OTHERS.values()).orderBy("letter_offset").collect()
    assert [row.family for row in rows] == list(OTHERS)
    for row in rows:
        assert row.fault is None
        assert (row.topic, row.partition, row.offset) == ("orders", 3, 7)
        assert (row.entity, row.reasons, row.message) == RECORDED[row.family]
        assert row.died_at.timestamp() == AT.timestamp()
        assert row.id == f"{row.family}/{row.entity}/orders:3:7"


@pytest.mark.feature("D2")
def test_the_first_of_several_origins_that_spring_has_piled_up_counts(letters):
    again = [
        ("kafka_dlt-original-topic", b"orders-retry-0"),
        ("kafka_dlt-original-partition", struct.pack(">i", 0)),
        ("kafka_dlt-original-offset", struct.pack(">q", 99)),
        ("kafka_dlt-original-consumer-group", b"group-1-retry"),
        ("kafka_dlt-exception-cause-fqcn", b"java.lang.ArithmeticException"),
        ("kafka_dlt-exception-message", b"at last"),
    ]
    row = letters([*OTHERS["spring"], *again]).head()
    assert (row.topic, row.partition, row.offset, row.entity) == ("orders", 3, 7, "group-1")
    assert (row.reasons, row.message) == (["java.lang.ArithmeticException"], "at last")


@pytest.mark.feature("X7")
def test_what_is_no_letter_is_put_aside_with_its_reason(letters):
    missing = [(name, value) for name, value in lapse_headers() if name != "__dlq.errors.offset"]
    no_number = [(n, b"seven" if n == "__dlq.errors.offset" else v) for n, v in lapse_headers()]
    too_large = [(n, b"99999999999" if n == "__dlq.errors.partition" else v) for n, v in lapse_headers()]
    no_reason = [(n, b"" if n == "lapse-reasons" else v) for n, v in lapse_headers()]
    narrow = [(n, b"\x07" if n.endswith("offset") else v) for n, v in OTHERS["spring"]]
    null = [(n, None if n == "__dlq.errors.topic" else v) for n, v in lapse_headers()]
    read = letters(None, [], [("a", b"b")], missing, no_number, too_large, no_reason, narrow, null, lapse_headers())
    good, aside = quarantine.split(read)
    assert good.count() == 1
    faults = [row.fault for row in aside.orderBy("offset").collect()]
    assert [fault.split(":")[0] for fault in faults[:3]] == ["no dead letter"] * 3
    assert faults[3] == faults[4] == "header __dlq.errors.offset is missing or unreadable"
    assert faults[5] == "header __dlq.errors.partition is missing or unreadable"
    assert faults[6] == "header lapse-reasons is missing or empty"
    assert faults[7] == "header kafka_dlt-original-offset is missing or unreadable"
    assert faults[8] == "header __dlq.errors.topic is missing or unreadable"
    assert aside.schema.names == schema.QUARANTINE.names
    with pytest.raises(quarantine.Quarantined, match=r"dlq\.orders:0:\d: .* Without --strict"):
        quarantine.refuse_faults(aside)


def test_the_last_header_of_a_name_counts(letters):
    row = letters([("lapse-cancel-count", b"1"), *lapse_headers(), ("lapse-cancel-count", b"9")]).head()
    assert row.cancel_count == 9


def test_text_that_is_not_utf8_is_shown_as_far_as_it_goes(letters):
    headers = [(n, b"bad \xff byte" if n == "__dlq.errors.message" else v) for n, v in lapse_headers()]
    assert letters(headers).head().message == "bad � byte"


@pytest.mark.feature("D3")
def test_copies_of_a_letter_count_once(letters):
    read = letters(lapse_headers(7), lapse_headers(8), lapse_headers(7))
    kept = dead_letter.distinct(read).orderBy("offset").collect()
    assert [(row.offset, row.letter_offset) for row in kept] == [(7, 0), (8, 1)]


@pytest.mark.feature("X7")
def test_an_empty_name_names_no_entity_and_no_topic_of_another_system(letters):
    """The client reads the same. Kafka Streams has no header for an entity, also none without a name."""
    spring = [(n, b"" if n == "kafka_dlt-original-consumer-group" else v) for n, v in OTHERS["spring"]]
    connect = [(n, b"" if n == "__connect.errors.topic" else v) for n, v in OTHERS["connect"]]
    written = (spring, connect, [("", b"x"), *OTHERS["streams"]])
    rows = letters(*written).orderBy("letter_offset").collect()
    assert [row.entity for row in rows] == ["orders", RECORDED["connect"][0], "orders"]
    assert [row.fault for row in rows] == [None, "header __connect.errors.topic is missing or unreadable", None]
    record = Replayed(bookmark=Bookmark("dlq.orders", 0, 0), key=b"", value=b"", timestamp_ms=0, headers=[])
    read = [parse_letter(replace(record, headers=headers)) for headers in written]
    assert [one.entity for one in read] == [row.entity for row in rows]


def test_columns_are_documented_and_typed(letters):
    read = letters(lapse_headers())
    assert [(f.name, f.dataType) for f in read.schema] == [(f.name, f.dataType) for f in schema.DEAD_LETTER]
    assert all(field.metadata["comment"] for field in read.schema)
