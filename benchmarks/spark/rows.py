"""The rows of the Spark jobs."""

from __future__ import annotations

from benchmarks.comparison.load import Load
from benchmarks.comparison.row import Column, Contestant, Goal, Row, figure, ratio


def ledger(load: Load) -> Row:
    """Return the row of a queue's ledger, by its size."""
    less, most = load.ledger // 10, load.ledger
    small, great = f"{less:,} messages", f"{most:,} messages"
    return Row(
        "ledger",
        "The ledger of a queue, from its topics, by Spark in one process",
        [Contestant(small, "spark.ledger", {"messages": less}), Contestant(great, "spark.ledger", {"messages": most})],
        [
            Column("seconds", "in all, s"),
            Column("per_million_s", "a million, s", 2),
            Column("cpu_us", "Spark CPU, µs/message", 2),
            Column("peak_mib", "Spark, most memory, MiB", 0),
            Column("ranges", "ranges in events", 0),
            Column("letters", "letters", 0),
        ],
        [
            Goal(great, figure(great, "seconds"), 600, False, "s"),
            Goal(f"a message of {great} / of {small}", ratio(great, small, "per_million_s"), 1.3, False),
            Goal("most memory", figure(great, "peak_mib"), 8192, False, "MiB"),
        ],
        most_repeats=1,
        timeout_s=1800.0,
    )


def letters(load: Load) -> Row:
    """Return the row of dead letters, beside a hand-written query."""
    reader = "letters, read by Spark"
    questions = {"count": "counted", "by_reason": "by reason", "whole": "all columns", "readable": "readable ones"}
    columns = [
        Column(f"{key}_{way}", f"{name}, {unit}", 0)
        for key, name in questions.items()
        for way, unit in (("reader", "letters/CPU s"), ("by_hand", "by hand"))
    ]
    return Row(
        "letters",
        "Dead letters read by Spark, beside a query on the topic written by hand",
        [Contestant(reader, "spark.letters", {"letters": load.ledger // 10})],
        columns,
        [
            Goal(f"{name}: reader / by hand", figure(reader, f"{key}_ratio"), 0.6, True, "")
            for key, name in questions.items()
        ],
        most_repeats=1,
        timeout_s=1800.0,
    )


def running_ledger(load: Load) -> Row:
    """Return the row of the ledger that goes on while messages flow (D8)."""
    name = "10,000 messages/s"
    return Row(
        "running-ledger",
        "The running ledger of a queue by Spark on two cores, in batches of ten seconds",
        [Contestant(name, "spark.running_ledger", {"seconds": 20 * load.seconds})],
        [
            Column("messages", "messages", 0),
            Column("batches", "batches", 0),
            Column("most_between_s", "longest time between batches, s"),
            Column("most_lag_s", "unread at a batch's start, at most, s of publishing"),
            Column("records_s", "records/s", 0),
            Column("cpu_us", "Spark CPU, µs/message"),
        ],
        [Goal("unread at a batch's start, at most", figure(name, "most_lag_s"), 20, False, "s of publishing")],
        most_repeats=1,
        timeout_s=900.0,
    )
