from datetime import UTC, datetime, timedelta

import pytest
from pyspark.sql import functions

from lapse_spark import collected, local_rows, summary
from lapse_spark.monitoring import monitor

pytestmark = pytest.mark.spark

NOON = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
COLUMNS = (
    "id string, family string, entity string, reasons array<string>, message string, died_at timestamp, key binary, "
    "expires_at_ms long, expired_at_ms long, redriven_count int, letter_topic string, letter_partition int, "
    "letter_offset long, letter_at timestamp"
)


@pytest.fixture
def letters(spark):
    def make(*described):
        rows = []
        for place, (name, minutes, reasons, late_ms, redriven) in enumerate(described):
            at, deadline = NOON + timedelta(minutes=minutes), None if late_ms is None else 1_000
            expired = None if late_ms is None else 1_000 + late_ms
            key = None if name.startswith("-") else name[:1].encode()
            rows.append(
                (name, "lapse", "q", reasons, f"m{place}", at, key, deadline, expired, redriven, "dlq.q", 0, place, at)
            )
        return local_rows.frame(spark, rows, COLUMNS)

    return make


@pytest.mark.feature("D3")
def test_a_letter_is_fresh_once(letters, spark):
    read = letters(*((name, 0, ["time_limit"], 1, 0) for name in ("a1", "b1", "a1", "c1")))
    assert sorted(row.id for row in monitor.uncounted_letters(read, None).collect()) == ["a1", "b1", "c1"]
    seen = local_rows.frame(spark, [("b1",), ("b1",)], "id string")
    assert sorted(row.id for row in monitor.uncounted_letters(read, seen).collect()) == ["a1", "c1"]


@pytest.mark.feature("C22")
def test_a_letter_with_two_reasons_is_one_letter_and_in_both_rows(letters):
    read = letters(
        ("a1", 0, ["time_limit"], 1, 0),
        ("a2", 59, ["time_limit", "max_cancels"], 1, 0),
        ("a3", 60, ["max_cancels"], None, 0),
        ("a4", 61, [], None, 0),
    )
    counted = monitor.counts(read)
    assert {
        (row.reasons, row.window_start.minute + 60 * row.window_start.hour): row.letters for row in counted.collect()
    }
    assert sorted((row.reasons, row.letters) for row in counted.collect()) == [
        ("max_cancels", 1),
        ("time_limit", 1),
        ("time_limit,max_cancels", 1),
        ("unstated", 1),
    ]
    single = monitor.by_reason(counted).groupBy("reason").sum("letters").collect()
    assert {row[0]: row[1] for row in single} == {"time_limit": 2, "max_cancels": 2, "unstated": 1}


@pytest.mark.feature("X7")
@pytest.mark.parametrize("window", ["1 hour", "7 days"])
def test_a_letter_of_the_calendars_last_hour_ends_no_report(letters, window):
    last = functions.timestamp_millis(functions.lit(collected.LAST_MS))
    (row,) = monitor.counts(letters(("a1", 0, ["purged"], None, 0)).withColumn("died_at", last), window).collect()
    assert row.letters == 1


def test_binary_keys_are_different_keys(letters):
    """Half of all 8-byte numbers are no UTF-8."""
    read = letters(*((f"a{number}", 0, ["purged"], None, 0) for number in range(6)))
    numbered = read.withColumn("key", functions.expr("unhex(lpad(hex(200 + letter_offset DIV 3), 16, '0'))"))
    assert [(row.key, row.letters) for row in summary.poison(numbered).collect()] == [
        ("0x00000000000000c8", 3),
        ("0x00000000000000c9", 3),
    ]
    assert summary.poison(numbered, at_least=4).collect() == []


def test_a_message_without_a_key_has_nothing_in_common_with_another(letters):
    read = letters(
        *((f"a{number}", number, ["max_cancels"], None, 1) for number in range(2)),
        *((f"-{number}", 2 + number, ["max_cancels"], None, number % 2) for number in range(4)),
    ).withColumn("key", functions.expr("CASE WHEN id LIKE 'a%' THEN key END"))
    found = summary.poison(read)
    assert [(row.key, row.letter, row.letters, row.redriven) for row in found.collect()] == [
        ("a", None, 2, 1),
        (None, "-1", 1, 1),
        (None, "-3", 1, 1),
    ]


def test_missing_offsets_are_reported(letters, spark):
    read = letters(*((f"a{number}", 0, ["purged"], None, 0) for number in range(3))).selectExpr(
        "* EXCEPT (letter_offset)", "letter_offset + 10 AS letter_offset"
    )
    before = local_rows.frame(
        spark,
        [("dlq.q", 0, 99, 0, NOON), ("dlq.q", 0, 3, 1, NOON), ("dlq.q", 0, 6, 2, NOON), ("dlq.q", 1, 99, 2, NOON)],
        "letter_topic string, letter_partition int, last_offset long, batch_id long, read_until timestamp",
    )  # after the first batch the topic was created again
    row = monitor.partitions(read, before).head()
    assert (row.first_offset, row.last_offset, row.records, row.missing_before) == (10, 12, 3, 3)
    again = monitor.partitions(read, before.where("batch_id = 0 OR letter_partition = 1")).head()
    assert (again.first_offset, again.missing_before) == (10, 0)
    merged = before.selectExpr(
        "* EXCEPT (batch_id, read_until)",
        "7L AS batch_id",
        "read_until - make_interval(0, 0, 0, 0, last_offset) AS read_until",
    )
    assert monitor.partitions(read, merged.where("last_offset < 9")).head().missing_before == 3, "a compacted output"
    assert monitor.partitions(read, None).head().missing_before == 0


def test_summaries_tell_lateness_and_what_dies_again(letters):
    read = letters(
        ("a1", 0, ["time_limit"], 10, 0),
        ("a2", 1, ["time_limit"], 30, 0),
        ("a3", 2, ["time_limit"], 20, 0),
        ("b1", 3, ["max_cancels"], 9_999, 1),
        ("c1", 4, ["time_limit"], None, 0),
        *((f"-{number}", 5, ["time_limit"], None, 0) for number in range(3)),  # of messages without a key
    )
    late = summary.lateness(read).head()
    assert (late.letters, late.median_ms, late.most_ms) == (3, 20, 30)
    assert [(row.key, row.letters, row.redriven) for row in summary.poison(read).collect()] == [
        ("a", 3, 0),
        ("b", 1, 1),
    ]
    first = summary.by_entity(read).head()
    assert (first.entity, first.reasons, first.letters, first.last_message) == ("q", "time_limit", 7, "m7")
