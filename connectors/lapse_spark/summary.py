"""Summaries of dead letters: what died where and why, how late, and which keys die again and again."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse_spark.records.dead_letter import reasons_text


def by_entity(letters: DataFrame) -> DataFrame:
    """Letters by entity and reasons: how many, from when to when, and the last one's text.

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
    """How long after its deadline a message was removed, by entity, in ms: percentiles, and the most.

    Large values are leases that outlasted the deadline (Q10), or a worker that was down.
    """
    late = F.col("expired_at_ms") - F.col("expires_at_ms")
    return _percentiles(letters.where(F.array_contains("reasons", "time_limit")), late)


def remaining(letters: DataFrame) -> DataFrame:
    """How long a message had to live still when it died for another reason, by entity, in ms: percentiles, the most.

    Much of it left means that a redrive with the original lifetime comes in time.
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
    """Keys with several dead letters, and letters that died again after a redrive: what a redrive will not mend.

    Messages without a key have nothing in common: of them only what died again counts.

    Args:
        letters: `schema.DEAD_LETTER` without faults, with its keys.
        at_least: how many letters make a key suspicious.
    """
    return (
        letters.groupBy("entity", F.make_valid_utf8(F.col("key").cast("string")).alias("key"))
        .agg(
            F.count("*").alias("letters"),
            F.max("redriven_count").alias("redriven"),
            F.max_by("message", "died_at").alias("last_message"),
        )
        .where((F.col("key").isNotNull() & (F.col("letters") >= at_least)) | (F.col("redriven") > 0))
        .orderBy(F.desc("letters"), "entity", "key")
    )
