"""Summaries of dead letters: by entity and reasons, by lateness, and by suspicious keys."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse_spark.records.dead_letter import reasons_text


def by_entity(letters: DataFrame) -> DataFrame:
    """Return letters by entity and reasons: number, first and last instant, and the last one's text.

    Args:
        letters: `schema.DEAD_LETTER` without faults, or the table `letters` of the monitor.
    """
    return (
        letters.groupBy("entity", reasons_text(F.col("reasons")).alias("reasons"))
        .agg(
            F.count("*").alias("letters"),
            F.min("died_at").alias("first_died_at"),
            F.max("died_at").alias("last_died_at"),
            F.max_by("message", "died_at").alias("last_message"),
        )
        .orderBy(F.desc("letters"), "entity", "reasons")
    )


def lateness(letters: DataFrame) -> DataFrame:
    """Return the time from deadline to removal, by entity, in ms: percentiles, and the maximum.

    Large values come from leases that outlasted the deadline (Q10), or from a worker that was down.
    """
    late = F.col("expired_at_ms") - F.col("expires_at_ms")
    return _percentiles(letters.where(F.array_contains("reasons", "time_limit")), late)


def remaining(letters: DataFrame) -> DataFrame:
    """Return the remaining lifetime of messages removed for other reasons, by entity, in ms: percentiles and maximum.

    If much of it is left, a redrive with the original lifetime comes in time.
    """
    left = F.col("expires_at_ms") - F.col("expired_at_ms")
    return _percentiles(letters.where(~F.array_contains("reasons", "time_limit")), left)


def _percentiles(letters: DataFrame, time_ms: Column) -> DataFrame:
    shares = {"median_ms": 0.5, "p90_ms": 0.9, "p99_ms": 0.99}
    return (
        letters.where(time_ms.isNotNull())
        .groupBy("entity")
        .agg(
            F.count("*").alias("letters"),
            *(F.percentile(time_ms, F.lit(share)).cast("bigint").alias(name) for name, share in shares.items()),
            F.max(time_ms).alias("most_ms"),
        )
        .orderBy("entity")
    )


def poison(letters: DataFrame, at_least: int = 3) -> DataFrame:
    """Return keys with several dead letters, or with letters of redriven messages: a redrive will probably not help.

    Messages without a key have nothing in common. Of these, each letter of a redriven message is a row of its own.

    Args:
        letters: `schema.DEAD_LETTER` without faults, with keys.
        at_least: the least number of letters that makes a key suspicious.

    Returns:
        entity, key (as text; in hexadecimal, as `0xff`, if it is not UTF-8; null without one), letter (the id of a
        letter without key, else null), letters, redriven, last_message.
    """
    return (
        letters.groupBy("entity", "key", F.when(F.col("key").isNull(), F.col("id")).alias("letter"))
        .agg(
            F.count("*").alias("letters"),
            F.max("redriven_count").alias("redriven"),
            F.max_by("message", "died_at").alias("last_message"),
        )
        .where((F.col("key").isNotNull() & (F.col("letters") >= at_least)) | (F.col("redriven") > 0))
        .withColumn("key", _text(F.col("key")))
        .orderBy(F.desc("letters"), "entity", "key", "letter")
    )


def _text(key: Column) -> Column:
    """Return a key as text that differs from that of every other key."""
    return F.coalesce(F.try_validate_utf8(key.cast("string")), F.concat(F.lit("0x"), F.lower(F.hex(key))))
