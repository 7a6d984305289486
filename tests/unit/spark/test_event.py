import io
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime

import fastavro
import pytest

from lapse.protocol import codec
from lapse.protocol import event as wire
from lapse.protocol import schema as avro
from lapse.protocol.bookmark import Bookmark, BookmarkRange
from lapse.protocol.event import Event, EventKind
from lapse_spark import lives, local_rows, quarantine, schema
from lapse_spark.records import event

pytestmark = pytest.mark.spark

AT = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
RECORDED = Event(
    entity="orders",
    event=EventKind.DEAD_LETTERED,
    at_ms=1_750_000_000_123,
    partition=3,
    epoch=9,
    messages=(BookmarkRange("orders", 3, 5, 9), BookmarkRange("orders", 3, 12, 12)),
    reasons=("time_limit", "max_cancels"),
    subscription="s1",
    key=b"\x00\xff",
    expires_at_ms=7,
    delivery_count=2,
    dead_letter_topic="dlq.orders",
    detail="late",
)


@pytest.fixture
def events(spark):
    def parse(*values, written_with=()):
        rows = [
            (
                "lapse.events.orders",
                0,
                offset,
                AT,
                None,
                value if isinstance(value, bytes | None) else wire.encode(value),
                None,
            )
            for offset, value in enumerate(values)
        ]
        return event.parse(local_rows.frame(spark, rows, schema.RAW), written_with)

    return parse


@pytest.mark.feature("D4", "X7")
def test_lengths_that_no_event_has_take_no_memory(events):
    """Java would make room for two billion characters or ranges, and the job would end for lack of memory."""
    head, number = codec.header("event"), codec.packed_long
    upto = number(1) + b"q" + number(1) + b"x" + number(1) + number(0) + number(0)
    bombs = [
        head + number(2**31 - 20),
        head + number(10**9),
        head + upto + number(10**9),
        head + upto + number(2**31 - 9),
    ]
    read = events(*(bomb + b"q" * 20 for bomb in bombs), RECORDED).orderBy("event_offset").collect()
    assert [row.fault for row in read] == [*["the Avro body is damaged"] * 4, None]


@pytest.mark.feature("D4", "X7")
def test_an_event_about_messages_that_no_log_has_is_put_aside(events):
    """A ledger made messages of ranges that end before they begin, and of billions that were said to be rewound."""
    cases = [
        (EventKind.ACKNOWLEDGED, 5, 2),
        (EventKind.ACKNOWLEDGED, -3, -1),
        (EventKind.REWOUND, 0, (1 << 48) + 3),
        (EventKind.REWOUND, 5, 2),
        (EventKind.REWOUND, (1 << 48) + 5, (1 << 48) + 9),
        (EventKind.ACKNOWLEDGED, 1000, (1 << 48) + 5),
        (EventKind.ACKNOWLEDGED, 0, 2**63 - 1),
        (EventKind.ACKNOWLEDGED, 0, (1 << 48) - 1),  # a ledger cuts it to the log
    ]
    written = [replace(RECORDED, event=kind, messages=(BookmarkRange("orders", 3, *ends),)) for kind, *ends in cases]
    rows = events(*written).orderBy("event_offset").collect()
    assert [row.fault for row in rows] == [*["a range that is none"] * 4, None, *["a range that is none"] * 2, None]


@pytest.mark.feature("D6", "X7")
def test_lives_leave_out_a_range_that_no_step_of_a_queue_has(events):
    """Kafka may remove a billion unread records (C80), or somebody forge as many. One row each filled the memory."""
    ranges = [(1_000, 9_191), (0, 10**9), (2**48 - 10**9, 2**48 - 1), (2**62, 2**62 + 9)]
    ends = [replace(RECORDED, event=EventKind.EXPIRED, messages=(BookmarkRange("orders", 0, *one),)) for one in ranges]
    found = lives.lives(events(*ends)).collect()
    assert sorted(row.offset for row in found) == [*range(1_000, 9_192), *range(2**62, 2**62 + 10)]


@pytest.mark.feature("D4")
def test_event_is_decoded_whole(events):
    row = events(RECORDED).head()
    assert row.fault is None
    assert (row.entity, row.event, row.at_ms, row.shard, row.epoch) == (
        "orders",
        "dead_lettered",
        1_750_000_000_123,
        3,
        9,
    )
    assert [tuple(part) for part in row.messages] == [("orders", 3, 5, 9), ("orders", 3, 12, 12)]
    assert row.reasons == ["time_limit", "max_cancels"]
    assert (row.subscription, bytes(row.message_key), row.expires_at_ms) == ("s1", b"\x00\xff", 7)
    assert (row.delivery_count, row.cancel_count, row.dead_letter_topic, row.detail) == (2, None, "dlq.orders", "late")
    assert (row.event_topic, row.event_offset) == ("lapse.events.orders", 0)


@pytest.mark.feature("X7")
def test_what_is_no_event_is_put_aside_with_its_reason(events):
    whole = wire.encode(RECORDED)
    old = codec.MARKER + bytes(8) + whole[10:]
    read = events(None, b"", b"hello", old, whole[:14], RECORDED)
    good, aside = quarantine.split(read)
    assert good.count() == 1
    faults = [row.fault for row in aside.orderBy("offset").collect()]
    assert faults[0] == "no event: the record has no value"
    assert all(fault.startswith("no event of a known schema: it begins with") for fault in faults[1:4])
    assert "C301000000" in faults[3]
    assert codec.header("event").hex().upper() in faults[3]
    assert faults[4] == "the Avro body is damaged"


def other_version(change):
    """`event.avsc` as another version may have it, and the event of `RECORDED` as it writes it."""
    text = json.loads(avro.text("event"))
    text["fields"] = change(text["fields"])
    parsed = fastavro.parse_schema(text)
    out = io.BytesIO()
    names = {one["name"] for one in text["fields"]}
    record = {name: value for name, value in {**asdict(RECORDED), "host": "w1"}.items() if name in names}
    fastavro.schemaless_writer(out, parsed, record)
    return json.dumps(text), codec.header_of(parsed) + out.getvalue()


@pytest.mark.feature("D4", "X7")
def test_events_of_other_versions_are_read_by_their_schemas(events):
    """A newer worker tells one thing more, in another place; an older one does not tell epochs and details."""
    host = {"name": "host", "type": "string"}
    newer, by_newer = other_version(lambda fields: [host, *fields])
    older, by_older = other_version(lambda fields: [one for one in fields if one["name"] not in ("epoch", "detail")])
    values = (by_newer, by_older, wire.encode(RECORDED))
    assert [row.fault is None for row in events(*values).collect()] == [False, False, True]
    read = events(*values, written_with=[newer, older, newer])
    rows = read.orderBy("event_offset").collect()
    assert [row.fault for row in rows] == [None] * 3
    assert [(row.epoch, row.detail) for row in rows] == [(9, "late"), (0, ""), (9, "late")]
    same = [name for name in read.columns if name not in ("epoch", "detail", "value", "event_offset")]
    assert len({str([row[name] for name in same]) for row in rows}) == 1
    assert rows[0].messages[0].first == 5
    with pytest.raises(ValueError, match="no schema of events"):
        events(written_with=['{"type": "record"}'])


def happened(kind, at_ms, *ranges, **facts):
    return Event(
        entity="orders",
        event=kind,
        at_ms=at_ms,
        partition=0,
        messages=tuple(BookmarkRange("orders", 0, first, last) for first, last in ranges),
        **facts,
    )


LIFE = [
    happened(EventKind.CANCELLED, 10, (3, 3), subscription="a"),
    happened(EventKind.LEASE_RETURNED, 20, (2, 4), subscription="b"),
    happened(EventKind.LEASE_RETURNED, 20, (2, 4), subscription="b"),  # told again after a crash
    happened(EventKind.ACKNOWLEDGED, 30, (1, 3), subscription="c"),
    happened(EventKind.EXPIRED, 40, (4, 4), reasons=("time_limit",)),
]


@pytest.mark.feature("D6")
def test_the_life_of_one_message_in_order(events):
    rows = lives.timeline(events(*LIFE), Bookmark("orders", 0, 3)).collect()
    assert [(row.at_ms, row.event, row.subscription) for row in rows] == [
        (10, "cancelled", "a"),
        (20, "lease_returned", "b"),
        (30, "acknowledged", "c"),
    ]


@pytest.mark.feature("D6")
def test_the_lives_of_all_messages(events, spark):
    messages = local_rows.frame(spark, [("orders", 0, 3, 5)], "topic string, partition int, offset long, at_ms long")
    found = lives.lives(events(*LIFE), messages)
    shown = ("offset", "fate", "fate_at_ms", "cancels", "returns", "reasons", "lived_ms")
    # Not assertDataFrameEqual: PySpark 4.0.0's imports pandas names that pandas 3 no longer has.
    assert [tuple(row) for row in found.orderBy("offset").select(*shown).collect()] == [
        (1, "acknowledged", 30, 0, 0, "", None),
        (2, "acknowledged", 30, 0, 1, "", None),
        (3, "acknowledged", 30, 1, 1, "", 25),
        (4, "expired", 40, 0, 1, "time_limit", None),
    ]


@pytest.mark.feature("D6")
def test_what_lifetime_would_have_been_enough(events, spark):
    ends = [happened(EventKind.ACKNOWLEDGED, 1_000 + 10 * place, (place, place)) for place in range(100)]
    late = happened(EventKind.DEAD_LETTERED, 9_000, (100, 104), reasons=("time_limit",))
    purged = happened(EventKind.EXPIRED, 9_500, (105, 105), reasons=("purged",))
    messages = spark.range(107).selectExpr("'orders' AS topic", "0 AS partition", "id AS offset", "1000L AS at_ms")
    row = lives.handling_times(lives.lives(events(*ends, late, purged), messages)).head()
    assert (row.handled, row.half_ms, row.p90_ms, row.p99_ms, row.most_ms) == (100, 490, 890, 980, 990)
    assert (row.timed_out, row.lived_ms) == (5, 8_000)
