"""The archive: dead letters with all their bytes as Parquet or Delta, by day, and the deletion of old days (D1, D2).

All records of the topics are kept unchanged, copies included. `dead_letter.distinct` keeps one copy of each. By
default, missing offsets stop the job, because an archive with gaps should not look complete.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import Final

from pyspark import StorageLevel
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lapse_spark import jvm, quarantine, read, schema
from lapse_spark.connection import Connection
from lapse_spark.letters import delta
from lapse_spark.read import Span
from lapse_spark.stream.directory_lock import locked
from lapse_spark.stream.recreated_topics import RecreatedTopics
from lapse_spark.stream.stream import Standing, follow

_KEPT: Final = StructType([column for column in schema.DEAD_LETTER if column.name != "fault"])


def run(
    spark: SparkSession,
    connection: Connection,
    path: str,
    *,
    pattern: str = read.DEAD_LETTER_PATTERN,
    every: str | None = None,
    max_records_per_batch: int | None = None,
    fail_on_data_loss: bool = True,
    strict: bool = False,
    kind: delta.Kind | None = None,
    keeps_topics: bool = False,
    watch: Callable[[Standing], None] | None = None,
) -> Standing:
    """Archive dead letters from the checkpoint on, in the tables `letters` and `quarantine`.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        path: directory of the output.
        pattern: Java regular expression of the dead-letter topics.
        every: interval of batches (`10 minutes`) of a continuous run; None = take the present letters, and stop.
        max_records_per_batch: most records in a batch; None = no limit.
        fail_on_data_loss: whether to fail if Kafka has removed letters that were not archived yet.
        strict: whether to fail at the first record that is no dead letter.
        kind: `parquet` or `delta`; None = the present format, and Parquet for a new output.
        keeps_topics: whether topics that it has read are read on if the pattern does not match them any more.
        watch: called with the progress of the stream.

    Raises:
        ValueError: the output has another format or is another job's, or has lost its checkpoint; or the pattern does
            not match a topic any more that was read, and may not be left out.
        LapseError: another job with this directory is running.
    """
    output = delta.output(spark, path, kind)
    with locked(output):
        output.claim("archive")
        span = Span(streaming=True, fail_on_data_loss=fail_on_data_loss, max_records_per_batch=max_records_per_batch)
        recreated = RecreatedTopics(output, connection, allowed=not fail_on_data_loss)
        pattern = _whole_pattern(spark, path, pattern, recreated, fail_on_data_loss, keeps_topics)
        source = read.dead_letters(spark, connection, pattern=pattern, span=span)

        def write(batch: DataFrame, number: int) -> None:
            batch.persist(StorageLevel.MEMORY_AND_DISK)
            try:
                letters, aside = quarantine.split(batch)
                if strict:
                    quarantine.refuse_faults(aside)
                output.write("letters", letters.drop("fault"), F.col("letter_at"), number)
                output.write("quarantine", aside, F.col("timestamp"), number)
            finally:
                batch.unpersist()

        return follow(source, write, output, every=every, recreated=recreated, watch=watch)


def _whole_pattern(
    spark: SparkSession,
    path: str,
    pattern: str,
    recreated: RecreatedTopics,
    fail_on_data_loss: bool,
    keeps_topics: bool,
) -> str:
    """Return the pattern of the topics to read, with `keeps_topics` also those that were read, and match no more.

    Raises:
        ValueError: the pattern does not match a topic any more that was read, and may not be left out.
    """
    left = recreated.left_out(lambda name: jvm.matches(spark, pattern, name))
    if left and keeps_topics:
        return "|".join([pattern, *map(re.escape, left)])
    if left and fail_on_data_loss:  # Spark's own error would come at the first batch, and at all later ones
        raise ValueError(
            f"{path} has letters of {', '.join(left)}, and the pattern {pattern!r} does not match that any more: its "
            "next letters would be missing. Give a pattern that matches it, too, or a new directory. --allow-gaps "
            "leaves it out"
        )
    return pattern


def letters(spark: SparkSession, path: str) -> DataFrame | None:
    """Read an archive: `schema.DEAD_LETTER` and `day`, one row per letter, without copies; None if it is empty.

    Raises:
        ValueError: the directory is the output of another job.
    """
    output = delta.output(spark, path)
    output.check_made_by("archive")
    written = output.read("letters", columns=_KEPT)
    if written is None:
        return None
    copies = written.select(*_KEPT.names, "day").withColumn("fault", F.lit(None).cast("string"))
    place = F.struct("letter_topic", "letter_partition", "letter_offset")
    return copies.groupBy("id").agg(F.min_by(F.struct(*copies.columns), place).alias("_one")).select("_one.*")


def purge(spark: SparkSession, path: str, before: date, *, dry_run: bool = False) -> list[date]:
    """Delete the days before a date from an archive.

    Args:
        spark: the Spark session.
        path: directory of the archive.
        before: the first day that stays.
        dry_run: whether to delete nothing.

    Returns:
        The deleted days, oldest first.

    Raises:
        ValueError: the directory is the output of another job.
    """
    output = delta.output(spark, path)
    output.check_made_by("archive")
    gone: set[date] = set()
    for table in ("letters", "quarantine"):
        days = [day for day in output.days(table) if day < before]
        gone.update(days)
        if not dry_run:
            output.delete(table, days)
    return sorted(gone)
