import json
import re
from datetime import UTC, datetime, timedelta
from types import SimpleNamespace

import pytest
from confluent_kafka import KafkaError, Message

from lapse.core.reason import Reason
from lapse.protocol.event import EventKind
from lapse_spark import Connection, local_rows
from lapse_spark.account import account, inventory, ledger_command
from lapse_spark.account.journal import Journal, NoJournal
from lapse_spark.account.verdict import IN_TIME, OVERDUE
from lapse_spark.running import intake
from lapse_spark.running.intake import Reach
from lapse_spark.running.memory import NEWS, Memory, Note
from lapse_spark.running.running_ledger import Rule, RunningLedger
from lapse_spark.running.settling import Settling
from unit.spark.bad_ledgers import CASES, Case

pytestmark = pytest.mark.feature("D8")

ACKNOWLEDGED = 1 << account.FATES.index(EventKind.ACKNOWLEDGED)
DEAD = 1 << account.FATES.index(EventKind.DEAD_LETTERED)
EXPIRED = 1 << account.FATES.index(EventKind.EXPIRED)
TIME = 1 << account.REASONS.index(Reason.TIME_LIMIT)
NOON_MS = int(datetime(2026, 3, 1, 12, tzinfo=UTC).timestamp() * 1000)
DAY_MS = 86_400_000
GRACE_MS = 60_000


@pytest.mark.feature("X7")
@pytest.mark.parametrize("case", CASES, ids=lambda case: case.options)
def test_options_that_do_not_go_together_are_refused_by_name(case: Case):
    assert case.message
    assert "Traceback" not in case.message


def journal(*polled):
    """A journal of one shard with five offsets, whose consumer polls these messages."""
    left = iter(polled)
    consumer = SimpleNamespace(
        get_watermark_offsets=lambda *_, **__: (0, 5),
        assign=lambda _: None,
        poll=lambda _: next(left),
        consume=lambda *_: [],
        close=lambda: None,
    )
    topics = {"lapse-orders-changelog": 1}
    connection = SimpleNamespace(partitions=lambda _: topics, consumer=lambda **_: consumer)
    return Journal(connection, "orders", "lapse")


def test_a_journal_is_read_without_a_right_to_a_group():
    """librdkafka looks for the coordinator of every consumer's group."""
    refused = Message(error=KafkaError(KafkaError.GROUP_AUTHORIZATION_FAILED))
    end = Message("lapse-orders-changelog", 0, 5, error=KafkaError(KafkaError._PARTITION_EOF))
    assert journal(refused, end).read() == []
    hidden = Message("lapse-orders-changelog", 0, error=KafkaError(KafkaError.TOPIC_AUTHORIZATION_FAILED))
    with pytest.raises(NoJournal, match="Have Read on it granted"):
        journal(refused, hidden).read()


def messages(first, last, name="t"):
    return {"kind": intake.MESSAGE, "topic": name, "first": first, "last": last, "place": account.OURS}


def event(first, last, fates=ACKNOWLEDGED, at_ms=1, epoch=1, name="t"):
    report = {
        "kind": intake.REPORTED,
        "topic": name,
        "first": first,
        "last": last,
        "reasons": TIME if fates == DEAD else 0,
    }
    return {**report, "epoch": epoch, "fates": fates, "at_ms": at_ms}


def letter(offset):
    report = {
        "kind": intake.REPORTED,
        "topic": "t",
        "first": offset,
        "last": offset,
        "letter": TIME,
        "at_ms": 1,
        "epoch": 1,
    }
    return {**report, "fates": 0, "reasons": 0}


class Account:
    """A ledger that is given its batches by hand: the end of the log, the instant, and rows."""

    def __init__(self, spark, path):
        self.spark, self.memory, self.number = spark, Memory(spark, str(path)), 0

    def settle(self, end, at_ms, *rows, listed=None, grace_ms=GRACE_MS):
        columns = ", ".join(f"{name} {kind}" for name, kind in intake.COLUMNS.items())
        whole = [tuple({"partition": 0, **row}.get(name) for name in intake.COLUMNS) for row in rows]
        batch = local_rows.frame(self.spark, whole, columns)
        before = self.memory.note(self.number - 1) or Note(queue="q", at_ms=0)
        reached = Reach({("t", 0): 0}, {("t", 0): end}, NOON_MS + at_ms)
        settling = Settling(self.spark, self.memory, self.number, reached, before, timedelta(milliseconds=grace_ms))
        if listed is not None:
            settling.compare_with_list(listed, "")
        note = settling.settle(batch, shown=20, horizon=timedelta(days=1))
        self.number += 1
        return note.account

    def news(self):
        """What the last batch has found or withdrawn."""
        found = self.memory.table(self.number - 1, NEWS)
        return [] if found is None else sorted(json.loads(row.value)["state"] for row in found.collect())


def odd(balance):
    return {row["bookmark"]: row["difference"] for row in balance["differences"]}


@pytest.mark.spark
def test_a_second_fate_is_found_as_long_as_the_first_one_is_remembered(spark, tmp_path):
    ledger = Account(spark, tmp_path)
    ledger.settle(194, 0, messages(0, 193), event(0, 69), event(128, 191), event(70, 70, DEAD))
    closed = ledger.settle(194, GRACE_MS, letter(70))
    assert (closed["balanced"], closed["in_doubt"], closed["fates"]["acknowledged"]) == (True, 0, 134)
    assert ledger.memory.latest().closed  # the first and the third block are not open any more
    later = ledger.settle(194, 2 * GRACE_MS, event(5, 5), event(6, 6, at_ms=2), event(7, 7, epoch=2, at_ms=3))
    assert (later["in_doubt"], later["balanced"], later["fates"]["acknowledged"]) == (1, True, 134)
    results = ledger.settle(194, 3 * DAY_MS)  # what was closed on the first day is forgotten
    assert odd(results) == {"t:0:6": "reported_twice"}
    assert results["balanced_up_to_ms"] == NOON_MS + GRACE_MS
    assert [one["offset"] for one in results["balanced_up_to"]] == [6]

    ledger.settle(194, 3 * DAY_MS + 1, event(137, 137))
    results = ledger.settle(194, 3 * DAY_MS + 1 + GRACE_MS)
    assert odd(results) == {"t:0:6": "reported_twice", "t:0:137": "forgotten"}
    assert (results["published"], results["fates"]["acknowledged"], results["fates"]["dead_lettered"]) == (194, 134, 1)


@pytest.mark.spark
def test_a_finding_beyond_the_log_is_published_although_the_grace_has_become_shorter_meanwhile(spark, tmp_path):
    """It counted as published before, since it had lasted for the grace of now. So nobody learned of it."""
    ledger = Account(spark, tmp_path)
    ledger.settle(10, 0, messages(0, 9), event(20, 20), grace_ms=DAY_MS)
    ledger.settle(10, 2 * GRACE_MS, grace_ms=DAY_MS)
    assert ledger.news() == []
    assert odd(ledger.settle(10, 3 * GRACE_MS)) == {"t:0:20": "not_published"}
    assert ledger.news() == ["found"]
    assert ledger.settle(10, 4 * GRACE_MS, grace_ms=DAY_MS)["differences"] == []
    assert ledger.news() == ["withdrawn"]


def journaled(first, last, how, epoch=1):
    return event(first, last, how, at_ms=0, epoch=epoch)


@pytest.mark.long
@pytest.mark.spark
def test_an_event_that_tells_another_end_than_the_journal_is_swapped(spark, tmp_path):
    ledger = Account(spark, tmp_path)
    expired = {**event(10, 19, EXPIRED), "reasons": TIME}
    ledger.settle(100, 0, messages(0, 99), event(0, 9), expired)
    # Of 30 to 32 the event is still to come, and the journal makes no fate void. Of 40 an owner that was over told.
    rows = [journaled(0, 8, IN_TIME), journaled(9, 9, OVERDUE), journaled(10, 18, OVERDUE), journaled(19, 19, IN_TIME)]
    rows += [journaled(30, 32, IN_TIME, 2), {**expired, "first": 40, "last": 40}, journaled(40, 40, IN_TIME, 2)]
    found = ledger.settle(100, 1, *rows)
    assert (found["in_doubt"], found["still_queued"], found["superseded"]) == (3, 79, 0)
    results = ledger.settle(100, 1 + GRACE_MS, event(30, 32, epoch=2), event(40, 40, epoch=2))
    assert odd(results) == {"t:0:9": "swapped", "t:0:19": "swapped"}
    assert (results["fates"]["acknowledged"], results["fates"]["expired"], results["contradictory"]) == (13, 9, 2)


@pytest.mark.long
@pytest.mark.spark
def test_two_lists_with_the_grace_between_them_name_what_is_lost_or_still_held(spark, tmp_path):
    ledger = Account(spark, tmp_path)

    def listed(*ranges, read_to=100):
        return inventory.Inventory(
            sum(last - first + 1 for first, last in ranges), [("t", 0, *one) for one in ranges], {("t", 0): read_to}
        )

    first = ledger.settle(100, 0, messages(0, 99), event(0, 63), listed=listed((70, 89), read_to=90))
    assert (first["in_doubt"], first["balanced"], first["lost"]) == (6, True, 0)  # 90 to 99 are not read yet
    assert first["balanced_up_to_ms"] == 0
    second = ledger.settle(100, 1000, event(64, 67))  # their events came; no list
    assert (second["in_doubt"], second["lost"]) == (2, 0)
    third = ledger.settle(100, GRACE_MS, listed=listed((3, 3), (70, 99)))
    assert (third["lost"], odd(third), third["in_doubt"]) == (2, {"t:0:68": "lost", "t:0:69": "lost"}, 1)
    fourth = ledger.settle(100, 2 * GRACE_MS, event(69, 69), listed=listed((3, 3), (70, 99)))
    assert odd(fourth) == {"t:0:3": "still_held", "t:0:68": "lost"}
    assert (fourth["still_queued"], fourth["fates"]["acknowledged"], fourth["lost"]) == (30, 69, 1)


@pytest.mark.spark
@pytest.mark.feature("C61")
def test_what_a_rewind_brought_back_has_a_fate_of_its_own(spark, tmp_path):
    ledger = Account(spark, tmp_path)
    ledger.settle(64, 0, messages(0, 63), event(0, 63))
    ledger.settle(64, GRACE_MS, messages(10, 19, "t~1"))
    results = ledger.settle(64, 2 * GRACE_MS, event(10, 15, name="t~1"), event(20, 20, name="t~1"))
    assert (results["published"], results["rewound"], results["fates"]["acknowledged"], results["still_queued"]) == (
        64,
        10,
        70,
        4,
    )
    results = ledger.settle(64, 3 * GRACE_MS)
    (found,) = results["differences"]
    assert found["difference"] == "not_published"
    assert found["bookmark"] != "t:0:20"


def test_a_ledger_of_a_pattern_goes_on_with_the_topics_that_it_knows_while_no_broker_answers():
    queue, nobody = intake.Followed(name="q", underlying=[], matching=re.compile("t.*")), Connection("127.0.0.1:1")
    assert queue.present_topics(nobody, {"t1"}) == {"t1"}
    assert intake.Followed(name="q", underlying=["t"]).present_topics(nobody) == {"t"}


@pytest.mark.spark
def test_a_batch_that_is_repeated_in_the_same_process_has_what_the_journal_said_before(spark, tmp_path, monkeypatch):
    """The journal was read on, and not from there again. So a swapped fate was never found."""
    said = [[("t", 0, 0, 9, 1, OVERDUE, 0, 0)], []]
    ledger = RunningLedger.__new__(RunningLedger)
    ledger._spark, ledger._rule, ledger._journaled = spark, Rule(ask_every=None), []
    ledger._queue = intake.Followed(name="q", underlying=["t"])
    ledger._memory, ledger._journal = Memory(spark, str(tmp_path)), SimpleNamespace(read=lambda _: said.pop(0))
    ledger._connection, ledger._there = SimpleNamespace(), set()
    reached = Reach({("t", 0): 0}, {("t", 0): 10}, NOON_MS)
    monkeypatch.setattr(intake, "reach", lambda *_: reached)
    columns = ", ".join(f"{name} {kind}" for name, kind in intake.COLUMNS.items())
    rows = [
        tuple({"partition": 0, **row}.get(name) for name in intake.COLUMNS) for row in (messages(0, 9), event(0, 9))
    ]
    settled = Settling.settle

    def interrupted(*_, **__):
        raise InterruptedError("the stream ends; the next run does this batch")

    monkeypatch.setattr(Settling, "settle", interrupted)
    with pytest.raises(InterruptedError):
        ledger._add(local_rows.frame(spark, rows, columns), 0)
    monkeypatch.setattr(Settling, "settle", settled)
    note = ledger._add(local_rows.frame(spark, rows, columns), 0)
    assert (note.account["in_doubt"], note.account["fates"]["acknowledged"]) == (10, 10)
    assert ledger._journaled == []


@pytest.mark.spark
def test_a_ledger_that_asks_no_more_goes_on_with_its_balance(spark, tmp_path, monkeypatch):
    """What it balances up to stayed for good at the last list of the queue, which an earlier run had asked for."""
    ledger = RunningLedger.__new__(RunningLedger)
    ledger._spark, ledger._rule, ledger._journaled = spark, Rule(ask_every=None), []
    ledger._queue = intake.Followed(name="q", underlying=["t"])
    ledger._memory, ledger._journal = Memory(spark, str(tmp_path)), SimpleNamespace(read=lambda _: [])
    ledger._connection, ledger._there = SimpleNamespace(), set()
    noted = {"asked_at_ms": NOON_MS, "listed_at_ms": NOON_MS, "agreed_at_ms": NOON_MS, "listed": 0}
    ledger._memory.finish(0, Note(queue="q", at_ms=NOON_MS, **noted))
    reached = Reach({("t", 0): 0}, {("t", 0): 10}, NOON_MS + DAY_MS)
    monkeypatch.setattr(intake, "reach", lambda *_: reached)
    columns = ", ".join(f"{name} {kind}" for name, kind in intake.COLUMNS.items())
    rows = [tuple({"partition": 0, **messages(0, 9)}.get(name) for name in intake.COLUMNS)]
    note = ledger._add(local_rows.frame(spark, rows, columns), 1)
    assert note.account["balanced_up_to_ms"] == NOON_MS + DAY_MS - GRACE_MS


@pytest.mark.parametrize(
    ("written", "start"),
    [
        ('"orders:0:7"', ["orders:0:7"]),
        ('["orders:0:7", "orders:1:9"]', ["orders:0:7", "orders:1:9"]),
        ('"2026-03-01T12:00:00"', []),
        ('"2026-03-01T12:00:00Z"', []),
        ("2026-03-01T12:00:00Z", []),
        (str(NOON_MS), []),
        ('"end"', []),
    ],
)
def test_only_bookmarks_say_where_the_partitions_of_a_queue_begin(tmp_path, written, start):
    """An instant in ISO 8601 has colons as well."""
    file = tmp_path / "lapse.toml"
    file.write_text(f"[queue.orders]\nrecovery_point = {written}\n", encoding="utf-8")
    (one,) = ledger_command.all_queues(file)
    assert [str(mark) for mark in one.start] == start
