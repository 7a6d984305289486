"""Portions: the facts of a batch of the intake, cut to the log, as blocks of 64 offsets (D8)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse_spark import local_rows
from lapse_spark.account import account, generation, verdict
from lapse_spark.running import block, intake
from lapse_spark.running.intake import Reach

INSIDE, AHEAD, BEFORE, FAULTY, LETTERS = "inside", "ahead", "before", "faulty", "letters"
"""Parts: facts about messages in the log, beyond its end, and before its beginning; unreadable records; topics with
letters."""

REPORT_COLUMNS: Final = (*verdict.SAME, "at_ms")
"""The columns that distinguish statements."""

KEY: Final = (*block.PLACE, *REPORT_COLUMNS)
"""The key by which rows are merged. In rows about published messages, all of `TOLD` is null."""

MASKS: Final = ("ours", "elsewhere", "mask")
ROW: Final = (*KEY, *MASKS, "since_ms")
RANGE: Final = ("topic", "partition", "first", "last", *REPORT_COLUMNS, "since_ms")
"""Columns of facts beyond the log's end. They are added to each batch until the log has the messages."""


def portion(rows: DataFrame, logs: DataFrame, now_ms: int, ahead: DataFrame | None) -> DataFrame:
    """Cut and merge the facts of a batch: part, the columns of `ROW`, first, last, letter_topic, count.

    Args:
        rows: rows from `intake.stream`.
        logs: logs from `log_ranges`.
        now_ms: the batch's instant, ms since the epoch.
        ahead: facts beyond the log's end before this batch (`RANGE`); None = none.
    """
    reported = rows.where(F.col("kind") != intake.CLOCK).withColumn("since_ms", F.lit(now_ms).cast("bigint"))
    if ahead is not None:
        reported = reported.unionByName(
            ahead.select(*RANGE).withColumn("kind", F.lit(intake.REPORTED)), allowMissingColumns=True
        )
    begin, end = F.coalesce("begin", F.lit(0)), F.coalesce("end", F.lit(0))
    base = F.substring_index("topic", "~", 1)
    known = reported.withColumn("base", base).join(
        F.broadcast(logs),
        (F.col("base") == F.col("log_topic")) & (F.col("partition") == F.col("log_partition")),
        "left",
    )
    first, last = F.col("first"), F.col("last")
    # Rewound messages were in the log then. Their events count even if the log no longer has them.
    begin = F.when(generation.was_rewound(F.col("topic")), F.lit(0)).otherwise(begin)
    none = F.lit(None).cast("bigint")
    fault = F.col("kind") == intake.FAULT
    parts = F.array(
        _part(INSIDE, ~fault, F.greatest(first, begin), F.least(last, end - 1)),
        _part(AHEAD, ~fault, F.greatest(first, end), last),
        _part(BEFORE, ~fault & F.col("letter").isNull(), first, F.least(last, begin - 1)),
        F.when(fault, F.struct(F.lit(FAULTY).alias("part"), none.alias("first"), none.alias("last"))),
    )
    own = [name for name in known.columns if name not in ("first", "last", "base", *logs.columns)]
    there = F.filter(parts, lambda part: part.isNotNull() & (part["first"].isNull() | (part["first"] <= part["last"])))
    each = known.select(*own, F.inline(there))
    return _merge_parts(each)


def _part(name: str, condition: Column, first: Column, last: Column) -> Column:
    return F.when(condition, F.struct(F.lit(name).alias("part"), first.alias("first"), last.alias("last")))


def _merge_parts(each: DataFrame) -> DataFrame:
    """Merge rows of the same part with the same facts."""
    inside = F.col("part") == INSIDE
    ranges = each.withColumns(
        {
            "beyond_first": F.when(F.col("part") == AHEAD, F.col("first")),
            "beyond_last": F.when(F.col("part") == AHEAD, F.col("last")),
            "width": F.when(F.col("part") == BEFORE, F.col("last") - F.col("first") + 1).otherwise(1),
            "first": F.when(inside, F.col("first")),
            "last": F.when(inside, F.col("last")),
        }
    )
    message = F.col("kind") == intake.MESSAGE
    blocks = block.cover(ranges).withColumn("at_ms", F.when(~message, F.col("at_ms")))
    of_place = {place: F.when(message & (F.col("place") == place), F.col("mask")).otherwise(0) for place in _PLACES}
    return (
        blocks.groupBy("part", *KEY, "beyond_first", "beyond_last", "letter_topic")
        .agg(
            *(F.bit_or(of_place[place]).alias(name) for place, name in _PLACES.items()),
            F.bit_or(F.when(message, F.lit(0)).otherwise(F.coalesce("mask", F.lit(0)))).alias("mask"),
            F.min("since_ms").alias("since_ms"),
            F.sum(F.col("width").cast("decimal(20,0)")).alias("count"),
        )
        .withColumnsRenamed({"beyond_first": "first", "beyond_last": "last"})
    )


_PLACES: Final = {account.OURS: "ours", account.REDRIVEN: "elsewhere"}


def log_ranges(spark: SparkSession, reached: Reach) -> DataFrame:
    """Return the reach of the logs, one row per partition."""
    rows = [(topic, number, reached.begins[topic, number], end) for (topic, number), end in reached.ends.items()]
    return local_rows.frame(spark, rows, "log_topic string, log_partition int, begin bigint, end bigint")


def merge_rows(*parts: DataFrame) -> DataFrame:
    """Merge rows of blocks (`ROW`) with the same facts."""
    first, *rest = parts
    for part in rest:
        first = first.unionByName(part.select(*ROW))
    return first.groupBy(*KEY).agg(*(F.bit_or(name).alias(name) for name in MASKS), F.min("since_ms").alias("since_ms"))


def find_verdicts(rows: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Return the verdicts on blocks, and the messages whose fate one epoch reported at two instants.

    Args:
        rows: rows from `merge_rows`.

    Returns:
        The classes as from `verdict.verdicts`; and topic, partition, block, mask, difference, fates, reasons.
    """
    zero = F.lit(0).cast("bigint")
    blocks = rows.groupBy(*block.PLACE).agg(
        *(F.bit_or(name).alias(name) for name in ("ours", "elsewhere")),
        *(zero.alias(name) for name in ("early", "late")),
    )
    once = F.struct(zero.alias("once"), zero.alias("twice"))
    seen = F.aggregate(
        F.collect_list("mask"),
        once,
        lambda so_far, mask: F.struct(
            so_far["once"].bitwiseOR(mask).alias("once"),
            so_far["twice"].bitwiseOR(so_far["once"].bitwiseAND(mask)).alias("twice"),
        ),
    )
    statements = (
        rows.where(F.col("epoch").isNotNull())
        .groupBy(*block.PLACE, *verdict.SAME)
        .agg(F.bit_or("mask").alias("mask"), seen["twice"].alias("twice"))
    )
    statement = F.struct(*verdict.SAME, "mask").alias("statement")
    each = verdict.verdicts_of_statements(blocks, statements.select(*block.PLACE, statement))
    twice = statements.where(F.col("twice") != 0).select(
        *block.PLACE,
        F.col("twice").alias("mask"),
        F.lit(verdict.Difference.REPORTED_TWICE.value).alias("difference"),
        "fates",
        F.coalesce(F.nullif(F.col("letter"), F.lit(0)), F.col("reasons")).alias("reasons"),
    )
    return each, twice
