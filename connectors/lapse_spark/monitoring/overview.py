"""The overview: a report of the monitor's counts and of ledgers."""

from __future__ import annotations

from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse_spark import anomaly, summary
from lapse_spark.account import statement
from lapse_spark.collected import in_utc
from lapse_spark.ledger import Ledger
from lapse_spark.monitoring import monitor
from lapse_spark.report import Report
from lapse_spark.stream.output import Output

_PLACES = 96
"""The most windows on the horizontal axis. The newest ones are shown."""


def build(spark: SparkSession, path: str, ledgers: Sequence[Ledger] = ()) -> Report:
    """Return the report of a monitor's output, and of ledgers.

    Args:
        spark: the Spark session.
        path: directory of the monitor's output.
        ledgers: ledgers to show below it.

    Raises:
        ValueError: the monitor has not run there.
    """
    output = Output(spark, path)
    output.check_made_by("monitor")
    letters, counted = output.read("letters"), monitor.totals(spark, path)
    if counted is None and not output.has_run:
        raise ValueError(f"{path}: no output of the monitor; run it first: lapse spark monitor {path}")
    aside, read = output.read("quarantine"), output.read("partitions")
    page = Report("Dead letters", subtitle="Counted by entity, reason and hour; every letter once.")
    page.figure("dead letters", 0 if counted is None else counted.agg(F.sum("letters")).collect()[0][0])
    page.figure("entities", 0 if counted is None else counted.select("entity").distinct().count())
    bad = 0 if aside is None else aside.count()
    page.figure("in quarantine", bad, state="bad" if bad else "plain")
    missing = 0 if read is None else read.agg(F.sum("missing_before")).collect()[0][0]
    page.figure("offsets missed", missing, note="removed before they were read", state="bad" if missing else "plain")
    if letters is not None and counted is not None:
        _add_letters(page, letters, counted)
    if aside is not None and bad:
        page.section("Quarantine", "Records on dead-letter topics that are no dead letters.")
        page.frame(aside.groupBy("topic", "fault").count().orderBy(F.desc("count")), title="By topic and fault")
    for ledger in ledgers:
        statement.add_ledger(page, ledger)
    return page


def _add_letters(page: Report, letters: DataFrame, counted: DataFrame) -> None:
    page.section("When and why")
    _charts_over_time(page, counted)
    page.frame(anomaly.unusual(counted), title="Windows with unusually many")
    page.section("Where")
    page.frame(summary.by_entity(letters), title="By entity and reasons")
    if "key" in letters.columns:
        page.frame(summary.poison(letters).limit(20), title="Keys that die again and again")
    page.section("How late", "How long after its deadline a message was removed. A lease protects a message beyond it.")
    page.frame(summary.lateness(letters), title="Lateness, ms")
    page.frame(summary.remaining(letters), title="Time to expire of what died before its deadline, ms")


def _charts_over_time(page: Report, counted: DataFrame) -> None:
    newest = counted.select("window_start").distinct().orderBy(F.desc("window_start")).limit(_PLACES)
    rows = (
        counted.join(newest, "window_start", "left_semi")
        .groupBy("window_start", "reasons")
        .agg(F.sum("letters").alias("letters"))
        .orderBy("window_start")
        .collect()
    )
    windows = sorted({row["window_start"] for row in rows})
    found = {(row["window_start"], row["reasons"]): float(row["letters"]) for row in rows}
    series = {
        reasons: [found.get((window, reasons), 0.0) for window in windows]
        for reasons in sorted({row["reasons"] for row in rows})
    }
    page.bars(
        [f"{in_utc(window):%m-%d %H:%M}" for window in windows], series, title="Dead letters by reason", unit="letters"
    )
