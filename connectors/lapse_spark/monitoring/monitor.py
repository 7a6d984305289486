"""The monitor: dead letters counted by entity, reason and window while they come, each letter once (D3).

A letter that a crash wrote twice has the same id. Ids are compared with those already written, `horizon` back by the
letters' own timestamps; no letter is ever dropped for being late, as a watermark would do. A batch that is repeated
overwrites itself, so a restart from the checkpoint counts nothing twice.

Tables of the output: `letters` (one row per letter, with its key and without its payload), `counts`, `quarantine`,
`partitions` (what of which partition each batch read, and how many offsets are missing before it).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse_spark import quarantine, read
from lapse_spark.connection import Connection
from lapse_spark.read import Span
from lapse_spark.records.dead_letter import distinct, reasons_text
from lapse_spark.stream.output import Output
from lapse_spark.stream.stream import Standing, follow

WINDOW: Final = "1 hour"
HORIZON: Final = timedelta(days=1)
"""How far back a copy of a letter is looked for; a crash's copy is minutes younger than its original."""

_PAYLOAD = ("value", "headers", "fault")


def fresh(letters: DataFrame, seen: DataFrame | None) -> DataFrame:
    """Letters that have not been seen, one copy of each, without their payload.

    Args:
        letters: readable ones, `schema.DEAD_LETTER`.
        seen: ids (column `id`) of letters that have been counted.
    """
    once = distinct(letters.drop(*_PAYLOAD))
    return once if seen is None else once.join(seen.select("id").distinct(), "id", "left_anti")


def counts(letters: DataFrame, window: str = WINDOW) -> DataFrame:
    """Count letters by entity, reasons and window of their time of death.

    Args:
        letters: from `fresh`.
        window: its length, `10 minutes`.

    Returns:
        entity, family, reasons (`time_limit,max_cancels`: the sum over all rows is the number of letters),
        window_start, window_end, letters, first_at, last_at.
    """
    grouped = letters.groupBy(
        "entity", "family", reasons_text(F.col("reasons")).alias("reasons"), F.window("died_at", window).alias("window")
    )
    return grouped.agg(
        F.count("*").alias("letters"), F.min("died_at").alias("first_at"), F.max("died_at").alias("last_at")
    ).select(
        "entity",
        "family",
        "reasons",
        F.col("window.start").alias("window_start"),
        F.col("window.end").alias("window_end"),
        "letters",
        "first_at",
        "last_at",
    )


def by_reason(counted: DataFrame) -> DataFrame:
    """Counts with one row per single reason: a letter with two reasons is in both rows."""
    return (
        counted.withColumn("reason", F.explode(F.split("reasons", ",")))
        .groupBy("entity", "family", "reason", "window_start", "window_end")
        .agg(F.sum("letters").alias("letters"))
    )


def partitions(batch: DataFrame, before: DataFrame | None) -> DataFrame:
    """What a batch read of each partition, and how many offsets are missing between the last batch and this one.

    Offsets are missing where retention has removed letters that were not read yet; also where a transaction ended.

    Args:
        batch: `schema.DEAD_LETTER`, as read.
        before: the same table of earlier batches.
    """
    now = batch.groupBy("letter_topic", "letter_partition").agg(
        F.min("letter_offset").alias("first_offset"),
        F.max("letter_offset").alias("last_offset"),
        F.count("*").alias("records"),
        F.max("letter_at").alias("read_until"),
    )
    if before is None:
        return now.withColumn("missing_before", F.lit(0).cast("bigint"))
    last = before.groupBy("letter_topic", "letter_partition").agg(F.max("last_offset").alias("_last"))
    joined = now.join(last, ["letter_topic", "letter_partition"], "left")
    missing = F.coalesce(F.col("first_offset") - F.col("_last") - 1, F.lit(0))
    return joined.withColumn("missing_before", missing).drop("_last")


def totals(spark: SparkSession, path: str) -> DataFrame | None:
    """All counts of an output, added up over its batches; None before the first one."""
    written = Output(spark, path).read("counts")
    if written is None:
        return None
    return written.groupBy("entity", "family", "reasons", "window_start", "window_end").agg(
        F.sum("letters").alias("letters"), F.min("first_at").alias("first_at"), F.max("last_at").alias("last_at")
    )


def run(
    spark: SparkSession,
    connection: Connection,
    path: str,
    *,
    pattern: str = read.DEAD_LETTER_PATTERN,
    window: str = WINDOW,
    horizon: timedelta = HORIZON,
    every: str | None = None,
    max_records_per_batch: int | None = None,
    strict: bool = False,
    watch: Callable[[Standing], None] | None = None,
) -> Standing:
    """Count dead letters from where the checkpoint says.

    Args:
        spark: the session.
        connection: the cluster.
        path: of the output.
        pattern: Java regular expression of the dead-letter topics.
        window: length of a window, `1 hour`.
        horizon: how far back copies of a letter are looked for.
        every: begin a batch so often (`30 seconds`), and go on; None = take what there is now, and end.
        max_records_per_batch: most records taken at once; None = all there are.
        strict: end at the first record that is no dead letter.
        watch: is told where the stream stands.
    """
    output = Output(spark, path)
    span = Span(streaming=True, fail_on_data_loss=False, max_records_per_batch=max_records_per_batch)
    source = read.dead_letters(spark, connection, pattern=pattern, span=span)

    def write(batch: DataFrame, number: int) -> None:
        kept = quarantine.without_bytes(batch).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            _write(output, kept, number, window, horizon, strict)
        finally:
            kept.unpersist()

    return follow(source, write, output, every=every, watch=watch)


def _write(output: Output, kept: DataFrame, number: int, window: str, horizon: timedelta, strict: bool) -> None:
    """Write a batch's tables. All of them come from `kept`: a look at the batch itself reads Kafka once more."""
    good = kept.where(F.col("fault").isNull())
    begin, faults = kept.agg(F.min("letter_at"), F.count("fault")).collect()[0]
    if begin is None:
        return
    if faults:
        _, aside = quarantine.split(kept)
        if strict:
            quarantine.refuse(aside)
        output.write("quarantine", aside, F.col("timestamp"), number)
    seen = output.read("letters", _day_before(begin.date(), horizon))
    before = output.read("partitions")
    new = fresh(good, None if seen is None else seen.where(F.col("batch_id") < number)).persist()
    try:
        output.write("letters", new, F.col("letter_at"), number)
        output.write("counts", counts(new, window).coalesce(1), F.col("window_start"), number)
    finally:
        new.unpersist()
    earlier = None if before is None else before.where(F.col("batch_id") < number)
    output.write("partitions", partitions(kept, earlier).coalesce(1), F.col("read_until"), number)


def _day_before(day: date, horizon: timedelta) -> date:
    """A whole day more: the driver's time zone may be another than UTC."""
    return day - horizon - timedelta(days=1)
