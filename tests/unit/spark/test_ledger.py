import pytest

from lapse.core.queue.arrival.arrival import transfer_of
from lapse.core.reason import Reason
from lapse.protocol.event import TERMINAL, EventKind
from lapse_spark import ledger, local_rows
from lapse_spark.account import account

pytestmark = [pytest.mark.spark, pytest.mark.feature("D3", "D4")]

DEAD, ACKNOWLEDGED, EXPIRED = (
    1 << account.FATES.index(kind) for kind in (EventKind.DEAD_LETTERED, EventKind.ACKNOWLEDGED, EventKind.EXPIRED)
)
TIME, CANCELS = (1 << account.REASONS.index(reason) for reason in (Reason.TIME_LIMIT, Reason.MAX_CANCELS))


@pytest.fixture
def reckon(spark):
    """Takes messages (partition, offset), fates (partition, first, last, fate, reasons), letters (…, reasons)."""

    def run(messages, fates=(), letters=(), since_ms=None, until_ms=None, **options):
        published = local_rows.frame(
            spark,
            [("t", *row, 0, 1) if len(row) == 2 else ("t", *row) for row in messages],
            "topic string, partition int, offset long, at_ms long, place int",
        )
        known = local_rows.frame(
            spark,
            [("t", *row) if len(row) == 6 else ("t", *row, 1) for row in fates],
            "topic string, partition int, first long, last long, fates int, reasons int, epoch long",
        )
        copies = local_rows.frame(
            spark,
            [
                ("t", row[0], row[1], *row[1:]) if len(row) == 4 else ("t", row[0], row[1], *row[1:], None)
                for row in letters
            ],
            "topic string, partition int, first long, last long, letter int, epoch long",
        )
        return ledger.compute_ledger(
            "q", account.gather_blocks(published, since_ms, until_ms), known, copies, **options
        )[0]

    return run


def test_every_kind_that_ends_a_stay_is_a_fate():
    assert set(account.FATES) == TERMINAL


def test_the_equation_holds_with_gaps_in_the_offsets_and_everything_written_twice(reckon):
    messages = [(0, offset) for offset in range(100) if offset % 10 != 9] + [(1, offset) for offset in range(5)]
    # 9, 19, 29, … are transaction markers: no messages.
    fates = [(0, first, first + 8, ACKNOWLEDGED, 0) for first in (0, 10, 20, 30, 40, 40)]
    fates += [(0, 60, 62, DEAD, TIME), (1, 0, 0, EXPIRED, CANCELS)]
    letters = [(0, 60, TIME), (0, 61, TIME), (0, 61, TIME), (0, 62, TIME)]
    found = reckon(messages, fates, letters)
    assert found.published == 95
    assert {kind: number for kind, number in found.fates.items() if number} == {
        "acknowledged": 45,
        "dead_lettered": 3,
        "expired": 1,
    }
    assert (found.dead_lettered, found.expired) == ({"time_limit": 3}, {"max_cancels": 1})
    assert found.still_queued == 46
    assert found.balanced
    assert found.published == sum(found.fates.values()) + found.still_queued


def test_the_highest_epoch_counts(reckon):
    """Each message's fate was told by epoch 1, and told otherwise, or again, by epoch 2; letters bear their epoch."""
    found = reckon(
        [(0, offset) for offset in range(70)],
        [
            (0, 0, 63, DEAD, TIME, 1),  # a worker that had lost the shard
            (0, 0, 9, ACKNOWLEDGED, 0, 2),
            (0, 10, 63, DEAD, TIME, 2),
            (0, 64, 69, ACKNOWLEDGED, 0, 2),
            (0, 64, 69, ACKNOWLEDGED, 0, 1),  # the order of reading does not matter
            (0, 68, 68, EXPIRED, TIME, 2),
        ],
        [(0, offset, TIME, 1) for offset in range(40)]
        + [(0, offset, TIME, 2) for offset in range(30, 63)]
        + [(0, 20, CANCELS, 2), (0, 21, CANCELS, 3)],
    )
    assert (found.fates["acknowledged"], found.fates["dead_lettered"]) == (15, 51)
    assert found.superseded == 10 + 1  # 21 is told by nobody but the letter of epoch 3
    assert [(row["bookmark"], row["difference"]) for row in found.differences] == [
        ("t:0:20", "reasons_differ"),
        ("t:0:21", "event_missing"),
        ("t:0:63", "letter_missing"),
        ("t:0:68", "several_fates"),
    ]


def test_any_span_of_time_balances(reckon):
    messages = [(0, offset, 10 * offset, 1) for offset in range(10)]
    fates, letters = [(0, 0, 5, ACKNOWLEDGED, 0), (0, 6, 6, DEAD, TIME)], [(0, 6, TIME), (0, 1, TIME)]
    found = reckon(messages, fates, letters, since_ms=30, until_ms=80)
    assert (found.published, found.fates["acknowledged"], found.fates["dead_lettered"], found.still_queued) == (
        5,
        3,
        1,
        1,
    )
    assert found.balanced


def test_an_empty_queue_balances(reckon):
    found = reckon([])
    assert found.balanced
    assert (found.published, found.still_queued) == (0, 0)


def test_every_difference_is_found_and_named(reckon):
    found = reckon(
        [(0, offset) for offset in range(10)] + [(0, 10, 0, 2)],
        [
            (0, 1, 2, ACKNOWLEDGED, 0),
            (0, 2, 2, EXPIRED, TIME),  # a second fate
            (0, 3, 3, DEAD, TIME),  # no letter
            (0, 4, 4, ACKNOWLEDGED, 0),  # and a letter
            (0, 6, 6, DEAD, TIME),  # letter with another reason
            (0, 10, 10, ACKNOWLEDGED, 0),  # redriven to another queue
            (0, 12, 20, ACKNOWLEDGED, 0),  # never published
            (7, 0, 0, ACKNOWLEDGED, 0),  # nor this
        ],
        [(0, 4, TIME), (0, 5, CANCELS), (0, 6, CANCELS), (0, 11, TIME)],
    )
    assert not found.balanced
    assert {row["bookmark"]: row["difference"] for row in found.differences} == {
        "t:0:2": "several_fates",
        "t:0:3": "letter_missing",
        "t:0:4": "several_fates",
        "t:0:5": "event_missing",
        "t:0:6": "reasons_differ",
        "t:0:10": "not_for_this_queue",
        "t:0:11": "not_published",
        "t:0:12-20": "not_published",
        "t:7:0": "not_published",
    }
    unpublished = {row["bookmark"]: (row["fates"], row["reasons"]) for row in found.differences[-3:]}
    assert unpublished == {
        "t:0:11": ("", "time_limit"),
        "t:0:12-20": ("acknowledged", ""),
        "t:7:0": ("acknowledged", ""),
    }
    assert found.difference_counts["not_published"] == 1 + 9 + 1
    assert found.contradictory == 5
    assert found.published == sum(found.fates.values()) + found.still_queued + found.contradictory


def test_a_damaged_range_does_not_grow(reckon):
    found = reckon([(0, 0)], [(0, 0, 1 << 62, ACKNOWLEDGED, 0)])
    assert found.fates["acknowledged"] == 1
    assert found.difference_counts == {"not_published": 1 << 62}


def test_what_the_log_has_no_more_is_counted_apart(reckon):
    found = reckon(
        [(0, offset) for offset in range(100, 110)], [(0, 90, 104, ACKNOWLEDGED, 0), (0, 95, 95, DEAD, TIME)]
    )
    assert (found.fates["acknowledged"], found.still_queued, found.before_log_start) == (5, 5, 11)
    assert found.balanced


def test_differences_are_listed_up_to_a_limit_and_counted_all(reckon):
    found = reckon([(0, offset) for offset in range(50)], letters=[(0, offset, TIME) for offset in range(50)], shown=3)
    assert (len(found.differences), found.difference_counts) == (3, {"event_missing": 50})


def test_messages_after_the_cut_are_left_out_unless_they_have_a_fate(reckon):
    found = reckon([(0, 0, 10, 1), (0, 1, 20, 1), (0, 2, 20, 1)], [(0, 1, 1, ACKNOWLEDGED, 0)], until_ms=15)
    assert (found.published, found.still_queued, found.fates["acknowledged"]) == (2, 1, 1)


def test_the_queues_own_figure_is_compared():
    figures = {"queue": "q", "published": 5, "fates": {"acknowledged": 2}, "dead_lettered": {}, "expired": {}}
    assert ledger.Ledger(**figures, still_queued=3, expected_depth=3).balanced
    assert not ledger.Ledger(**figures, still_queued=3, expected_depth=2).balanced
    assert not ledger.Ledger(**figures, still_queued=4).balanced
    assert ledger.Ledger(**figures, still_queued=3, quarantined=1).balanced
    assert not ledger.Ledger(**figures, still_queued=3, quarantined=1, strict=True).balanced


@pytest.mark.feature("Q17", "C29")
def test_what_was_handed_over_or_redriven_to_another_queue_is_not_this_ones(spark):
    headers = [
        [],
        [("lapse-transfer", b"q/t")],
        [("lapse-transfer", b"other/t")],
        [("lapse-transfer", b"no queue")],
        [("lapse-redrive-queue", b"other")],
        [("lapse-redrive-queue", b"other"), ("kafka_dlt-original-topic", b"t")],
        [("kafka_dlt-original-topic", b"t"), ("lapse-transfer", b"other/t")],
        [("lapse-redrive-queue", b"other"), ("lapse-id", b"q/1"), ("lapse-message-id", b"forward/t:0:1")],
        [("lapse-redrive-queue", b"other"), ("lapse-id", b"q/1"), ("lapse-message-id", b"own"), ("x", None)],
        [("lapse-redrive-queue", b"other"), ("lapse-message-id", b"forward/t:0:1"), ("lapse-id", b"q/1")],
        [("lapse-redrive-queue", b"other"), ("lapse-id", b"q/1"), ("lapse-message-id", None)],
    ]
    raw = local_rows.frame(
        spark,
        [("t", 0, offset, some) for offset, some in enumerate(headers)],
        "topic string, partition int, offset long, headers array<struct<key: string, value: binary>>",
    ).selectExpr("*", "timestamp_millis(1000) AS timestamp")
    rows = account.published_messages(raw, "q").orderBy("offset").collect()
    ours = [row["place"] == account.OURS for row in rows]
    assert ours == [True, True, False, True, False, True, False, False, True, True, True]
    assert ours == [transfer_of(some, "q") is not None for some in headers]
