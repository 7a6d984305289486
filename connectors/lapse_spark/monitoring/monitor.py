"""The monitor: a stream that counts dead letters by entity, reason and window, each letter once (D3).

Copies of a letter, as a crash makes them, have the same id. Ids are compared with those already written, up to
`horizon` back by the letters' own timestamps. No letter is dropped because it is late, as a watermark would do. A
repeated batch overwrites itself, so a restart from the checkpoint counts nothing twice.

Tables of the output: `letters` (one row per letter, with its key and without its payload), `counts`, `quarantine`,
`partitions` (the offsets of each partition in each batch, and the number of missing offsets before them).
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StructField, StructType

from lapse_spark import quarantine, read
from lapse_spark.collected import LAST_MS
from lapse_spark.connection import Connection
from lapse_spark.monitoring.log_begin import without_markers
from lapse_spark.read import Span
from lapse_spark.records.dead_letter import distinct, reasons_text
from lapse_spark.schema import DEAD_LETTER
from lapse_spark.stream.directory_lock import locked
from lapse_spark.stream.output import Output
from lapse_spark.stream.recreated_topics import RecreatedTopics
from lapse_spark.stream.stream import Standing, follow

WINDOW: Final = "1 hour"
HORIZON: Final = timedelta(days=1)
"""How far back the monitor looks for the original of a copy. After a crash, a copy is minutes younger."""

_WINDOW_MS: Final = "window_ms"
"""The fact in the output's note that says how long its windows are, ms."""

_PAYLOAD = ("value", "headers", "fault")

# The columns that a batch needs of the tables. To find a table's columns in its files would be one more job each time.
_SEEN: Final = StructType([DEAD_LETTER["id"]])
_UNTIL: Final = StructType(
    [DEAD_LETTER["letter_topic"], DEAD_LETTER["letter_partition"], StructField("last_offset", LongType())]
)


def uncounted_letters(letters: DataFrame, seen: DataFrame | None) -> DataFrame:
    """Return letters that have not been counted yet, one copy of each, without payloads.

    Args:
        letters: readable letters, `schema.DEAD_LETTER`.
        seen: ids (column `id`) of letters that have been counted; None = none.
    """
    once = distinct(letters.drop(*_PAYLOAD))
    return once if seen is None else once.join(seen.select("id").distinct(), "id", "left_anti")


def counts(letters: DataFrame, window: str = WINDOW) -> DataFrame:
    """Count letters by entity, reasons and window of the time at which their messages left.

    Args:
        letters: letters from `uncounted_letters`.
        window: length of a window, such as `10 minutes`.

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
        F.least("window.end", F.timestamp_millis(F.lit(LAST_MS))).alias("window_end"),
        "letters",
        "first_at",
        "last_at",
    )


def by_reason(counted: DataFrame) -> DataFrame:
    """Return counts by single reason. A letter with two reasons counts in two rows."""
    return (
        counted.withColumn("reason", F.explode(F.split("reasons", ",")))
        .groupBy("entity", "family", "reason", "window_start", "window_end")
        .agg(F.sum("letters").alias("letters"))
    )


def partitions(batch: DataFrame, before: DataFrame | None) -> DataFrame:
    """Return the offsets of each partition in a batch, and the number of missing offsets before them.

    Offsets are missing if retention has removed unread letters, and also at the end of a transaction, of which
    `log_begin.without_markers` takes care.

    Args:
        batch: `schema.DEAD_LETTER`, as read.
        before: the table of earlier batches; None = none.
    """
    now = batch.groupBy("letter_topic", "letter_partition").agg(
        F.min("letter_offset").alias("first_offset"),
        F.max("letter_offset").alias("last_offset"),
        F.count("*").alias("records"),
        F.max("letter_at").alias("read_until"),
    )
    if before is None:
        return now.withColumn("missing_before", F.lit(0).cast("bigint"))
    # Offsets begin anew in a topic that was created again. Merged batches have one id, and timestamps may go back.
    latest = F.struct("batch_id", "last_offset")
    last = before.groupBy("letter_topic", "letter_partition").agg(F.max(latest)["last_offset"].alias("_last"))
    joined = now.join(last, ["letter_topic", "letter_partition"], "left")
    missing = F.greatest(F.coalesce(F.col("first_offset") - F.col("_last") - 1, F.lit(0)), F.lit(0))
    return joined.withColumn("missing_before", missing).drop("_last")


def totals(spark: SparkSession, path: str) -> DataFrame | None:
    """Return the sums of an output's counts over all batches; None before the first batch."""
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
    """Count dead letters from the checkpoint on.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        path: directory of the output.
        pattern: Java regular expression of the dead-letter topics.
        window: length of a window, such as `1 hour`.
        horizon: how far back to look for the original of a copy.
        every: interval of batches (`30 seconds`) of a continuous run; None = take the present letters, and stop.
        max_records_per_batch: most records in a batch; None = no limit.
        strict: whether to fail at the first record that is no dead letter.
        watch: called with the progress of the stream.

    Raises:
        ValueError: another job writes to the output, it has windows of another length, or it has lost its checkpoint.
        LapseError: another job with this directory is running.
    """
    output = Output(spark, path)
    window_ms = _length_ms(spark, window)
    span = Span(streaming=True, fail_on_data_loss=False, max_records_per_batch=max_records_per_batch)
    source = read.dead_letters(spark, connection, pattern=pattern, span=span)

    def write(batch: DataFrame, number: int) -> None:
        kept = quarantine.without_bytes(batch).persist(StorageLevel.MEMORY_AND_DISK)
        try:
            _write(output, connection, kept, number, window, horizon, strict)
        finally:
            kept.unpersist()

    with locked(output):
        output.claim("monitor", lambda: _checked_window(output, window_ms))
        recreated = RecreatedTopics(output, connection, allowed=True)
        return follow(source, write, output, every=every, recreated=recreated, watch=watch)


def _length_ms(spark: SparkSession, window: str) -> int:
    """Return the length of a window, which Spark's text can say in many ways, ms."""
    of_one = spark.sql("SELECT timestamp_millis(0) AS at").select(F.window("at", window).alias("window"))
    return int(of_one.select(F.unix_millis("window.end") - F.unix_millis("window.start")).collect()[0][0])


def _checked_window(output: Output, window_ms: int) -> dict[str, int]:
    """Return the length of a window as the output notes it.

    Raises:
        ValueError: the output has counts in windows of another length.
    """
    noted_ms, counted = output.noted(_WINDOW_MS), output.read("counts")
    if counted is not None and noted_ms is None:  # an earlier version has written them
        length = F.unix_millis("window_end") - F.unix_millis("window_start")
        noted_ms = counted.agg(F.max(length)).collect()[0][0]
    if counted is not None and noted_ms is not None and noted_ms != window_ms:
        raise ValueError(
            f"{output.path} counts in windows of {noted_ms:,} ms: windows of {window_ms:,} ms would mix with them. Go "
            f"on with --window {noted_ms}ms, or give a new directory, which counts all letters that are still in their "
            "topics"
        )
    return {_WINDOW_MS: window_ms}


def _write(
    output: Output,
    connection: Connection,
    kept: DataFrame,
    number: int,
    window: str,
    horizon: timedelta,
    strict: bool,
) -> None:
    """Write a batch's tables from `kept`, because each use of the batch itself would read Kafka again."""
    good = kept.where(F.col("fault").isNull())
    begin, faults = kept.agg(F.min("letter_at"), F.count("fault")).collect()[0]
    if begin is None:
        return
    if faults:
        _, aside = quarantine.split(kept)
        if strict:
            quarantine.refuse_faults(aside)
        output.write("quarantine", aside, F.col("timestamp"), number)
    seen = output.read("letters", _day_before(begin.date(), horizon), _SEEN)
    before = output.read("partitions", columns=_UNTIL)
    new = uncounted_letters(good, None if seen is None else seen.where(F.col("batch_id") < number)).persist()
    try:
        output.write("counts", counts(new, window).coalesce(1), F.col("window_start"), number)
        # The last use: Spark drops what is persisted if a table that it depends on is written.
        output.write("letters", new, F.col("letter_at"), number)
    finally:
        new.unpersist()
    earlier = None if before is None else before.where(F.col("batch_id") < number)
    reached = partitions(kept, earlier).coalesce(1).persist()
    try:
        output.write("partitions", without_markers(reached, connection), F.col("read_until"), number)
    finally:
        reached.unpersist()


def _day_before(day: date, horizon: timedelta) -> date:
    """Return the first day to read, one day early, because the driver's time zone may not be UTC."""
    return day - horizon - timedelta(days=1)
