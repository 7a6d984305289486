"""A SOW topic as of an instant, and what compaction leaves open of it (D7)."""

from datetime import UTC, datetime, timedelta

import pytest

from lapse_spark import local_rows, schema
from lapse_spark.instant import as_of, queue_as_of
from lapse_spark.records import sow
from unit.spark.bad_instants import CASES, Case

pytestmark = pytest.mark.feature("D7")

AT = datetime(2026, 3, 1, 12, 0, 0, tzinfo=UTC)
AT_MS = int(AT.timestamp() * 1000)
DAY_MS = 86_400_000


@pytest.fixture
def updates(spark):
    def parse(*rows):
        """Rows of partition, offset, seconds after `AT`, key, value and deadline in seconds after `AT`."""
        records = []
        for partition, offset, second, key, value, deadline in rows:
            headers = [] if deadline is None else [("lapse-expires-at-ms", b"%d" % (AT_MS + 1000 * deadline))]
            records.append(
                ("lapse.sow.x", partition, offset, AT + timedelta(seconds=second), key, value, headers or None)
            )
        return sow.parse(local_rows.frame(spark, records, schema.RAW))

    return parse


def at(read, second):
    return {bytes(row["key"]): bytes(row["value"]) for row in as_of.records(read, AT_MS + 1000 * second).collect()}


def test_each_instant_has_its_records(updates):
    read = updates(
        (0, 0, 0, b"a", b"1", None),
        (0, 1, 1, b"b", b"1", 5),
        (0, 2, 3, b"a", b"2", None),
        (0, 3, 4, b"a", None, None),
        (0, 4, 9, b"b", None, None),  # the tombstone is later than the deadline
        (0, 5, 10, b"a", b"3", None),
    )
    assert at(read, -1) == {}
    assert at(read, 0) == {b"a": b"1"}
    assert at(read, 3) == {b"a": b"2", b"b": b"1"}
    assert at(read, 4) == {b"b": b"1"}
    assert at(read, 5) == {}
    assert at(read, 10) == {b"a": b"3"}
    found = as_of.gaps(read, AT_MS + 3000, AT_MS + 30 * DAY_MS)
    assert (found.removed, found.complete, found.sentence) == (0, True, "")


def test_what_compaction_has_removed_is_said(updates):
    read = updates(
        (0, 3, 0, b"kept", b"1", None),
        (0, 5, 8, b"moved", b"2", None),
        (1, 0, 8, b"whole", b"1", None),  # nothing is missing before it: it was new
        (1, 7, 9, b"whole", b"2", None),
    )
    found = as_of.gaps(read, AT_MS + 1000, AT_MS + DAY_MS)
    assert (found.removed, found.unclear_keys, found.complete) == (4, 1, False)
    assert "removed 4 records" in found.sentence
    assert "tombstone" not in found.sentence
    assert as_of.gaps(read, AT_MS + 8000, AT_MS + DAY_MS).complete, "each key has a record then, or was new"
    assert as_of.gaps(read, AT_MS + 20_000, AT_MS + 30 * DAY_MS).complete, "nothing came later"
    old = as_of.gaps(read, AT_MS + 8000, AT_MS + 8 * DAY_MS)
    assert (old.removed, old.unclear_keys, old.complete) == (6, 0, False)
    assert "left no tombstone" in old.sentence


@pytest.mark.feature("X7")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.shown)
def test_what_cannot_be_asked_is_refused_in_words(case: Case) -> None:
    assert case.message
    assert "Traceback" not in case.message


def test_the_journal_of_a_queue_is_found_by_its_name():
    there = {"app-orders-changelog", "lapse.orders.commands", "x-app-orders-changelog", "lapse.app-orders.commands"}
    assert queue_as_of.journal("orders", "app", there) == "app-orders-changelog"
    assert queue_as_of.journal("orders", "other", there) is None
    assert queue_as_of.journal("jobs", None, there) is None
    assert queue_as_of.journal("app-orders", None, there) == "x-app-orders-changelog"
    alone = {"my-app-orders-changelog", "lapse.orders.commands"}
    assert queue_as_of.journal("orders", None, alone) == "my-app-orders-changelog"
