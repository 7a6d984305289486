"""The findings: what Spark computes from the topics alone, when everything is over."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final

from pyspark.sql import Column, DataFrame, Row, SparkSession
from pyspark.sql import functions as F  # noqa: N812  # as everyone writes PySpark

from lapse.demo.plan import Plan
from lapse.protocol import topic as topics
from lapse_spark import ledger as ledger_job
from lapse_spark import read, session
from lapse_spark.connection import Connection
from lapse_spark.ledger import Ledger
from lapse_spark.read import Span
from lapse_spark.records.dead_letter import distinct, reasons_text
from lapse_spark.session import COMMAND_SETTINGS

LATENESS_MS: Final = (1, 5, 10, 25, 50, 100, 250, 500, 1_000, 2_500, 5_000)
"""Upper ends of the classes of lateness, ms. The last class is open."""

_SETTINGS: Final = {
    **COMMAND_SETTINGS,
    "spark.driver.memory": "1g",
    # Compile quickly, not well. For a few seconds of work, that halves the time.
    "spark.driver.extraJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -XX:-UsePerfData",
}

_FLIGHT: Final = "carrier string, origin string, date string, hour int"


@dataclass(frozen=True, slots=True)
class Tally:
    """Flights of one kind, say by carrier: how many were published, and how many left by a dead letter, by reasons."""

    published: Counter[str] = field(default_factory=Counter)
    letters: dict[str, Counter[str]] = field(default_factory=dict)
    """By reasons, then by the kind's value."""

    def dead_letter_count(self, value: str) -> int:
        """Dead letters of one value."""
        return sum(counted[value] for counted in self.letters.values())

    def served_count(self, value: str) -> int:
        """Flights of one value that left no dead letter."""
        return self.published[value] - self.dead_letter_count(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """The results from the topics.

    Attributes:
        ledger: what became of every flight.
        carrier: flights by carrier.
        origin: flights by airport.
        hour: flights by scheduled hour, New York's time, `05`.
        date: flights by scheduled date, New York's, `2013-07-01`.
        lateness: flights that expired, by the time from their deadline: a number for each of `LATENESS_MS`, and one for
            later ones.
        late_ms: median, 99th percentile and maximum of these times, ms; empty if nothing expired.
    """

    ledger: Ledger
    carrier: Tally
    origin: Tally
    hour: Tally
    date: Tally
    lateness: list[int]
    late_ms: tuple[int, ...]

    def as_json(self) -> dict[str, Any]:
        """Return the findings for `orjson.dumps`."""
        groups = {"carrier": self.carrier, "origin": self.origin, "hour": self.hour}
        return {
            "ledger": self.ledger.as_json(),
            "lateness_ms": dict(zip((*map(str, LATENESS_MS), "more"), self.lateness, strict=True)),
            **{
                f"by_{name}": {
                    value: {"published": count, "dead_letters": tally.dead_letter_count(value)}
                    for value, count in sorted(tally.published.items())
                }
                for name, tally in groups.items()
            },
        }


def spark_session() -> SparkSession:
    """Start Spark in this process; about six seconds."""
    return session("lapse demo", config=_SETTINGS)


def compute_findings(spark: SparkSession, plan: Plan, expected_depth: int | None) -> Findings:
    """Compute all findings.

    Args:
        spark: the session.
        plan: the plan of the run.
        expected_depth: how many messages the queue itself reports.
    """
    cluster = Connection(plan.bootstrap_servers)
    ledger = ledger_job.run(spark, cluster, plan.queue, [plan.queue], expected_depth=expected_depth, strict=True)
    span = Span(fail_on_data_loss=False)
    published = _flights(read.records(spark, cluster, names=[plan.queue], span=span)).persist()
    raw = read.dead_letters(spark, cluster, names=[topics.dead_letters(plan.queue)], span=span)
    late = F.col("expired_at_ms") - F.col("expires_at_ms")
    expired = F.when(F.array_contains("reasons", "time_limit"), F.greatest(late, F.lit(0)))
    letters = _flights(
        distinct(raw.where(F.col("fault").isNull())),
        reasons_text(F.col("reasons")).alias("reasons"),
        expired.alias("late_ms"),
    ).persist()
    try:
        tallies = {name: Tally() for name in ("carrier", "origin", "hour", "date")}
        _count(tallies, published.groupBy("carrier", "origin", "hour").count().collect(), "carrier", "origin", "hour")
        _count(tallies, published.groupBy("date").count().collect(), "date")
        grouped = letters.groupBy("carrier", "origin", "hour", "reasons").count().collect()
        _count(tallies, grouped, "carrier", "origin", "hour", letters=True)
        _count(tallies, letters.groupBy("date", "reasons").count().collect(), "date", letters=True)
        lateness, late_ms = _lateness(letters)
        return Findings(ledger=ledger, lateness=lateness, late_ms=late_ms, **tallies)
    finally:
        published.unpersist()
        letters.unpersist()


def _flights(records: DataFrame, *more: Column) -> DataFrame:
    flight = F.from_json(F.col("value").cast("string"), _FLIGHT)
    return records.select(flight.alias("flight"), *more).select(
        "flight.carrier",
        "flight.origin",
        F.format_string("%02d", "flight.hour").alias("hour"),
        "flight.date",
        *(name for name in ("reasons", "late_ms") if more),
    )


def _count(tallies: dict[str, Tally], rows: Iterable[Row], *names: str, letters: bool = False) -> None:
    for row in rows:
        for name in names:
            tally = tallies[name]
            counted = tally.letters.setdefault(row["reasons"], Counter()) if letters else tally.published
            counted[row[name]] += row["count"]


def _lateness(letters: DataFrame) -> tuple[list[int], tuple[int, ...]]:
    place = F.lit(len(LATENESS_MS))
    for number in reversed(range(len(LATENESS_MS))):
        place = F.when(F.col("late_ms") <= LATENESS_MS[number], number).otherwise(place)
    late = letters.where(F.col("late_ms").isNotNull())
    counted = [0] * (len(LATENESS_MS) + 1)
    for row in late.groupBy(place.alias("place")).count().collect():
        counted[row["place"]] = row["count"]
    quantiles = F.percentile("late_ms", F.array(F.lit(0.5), F.lit(0.99), F.lit(1.0)))
    found = late.agg(quantiles.alias("quantiles")).collect()[0]["quantiles"]
    return counted, tuple(round(value) for value in found or ())
