"""Doubts: differences about messages that may be temporary, with their beginning (D8).

An event may be on its way while its letter is read. So a difference is in doubt first. It is reported when it has
lasted for the grace. A reported difference that disappears later is withdrawn.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse_spark.account import account, generation, verdict
from lapse_spark.account.verdict import Difference
from lapse_spark.running import block

BY_LIST: Final = (Difference.LOST.value, Difference.STILL_HELD.value)
"""Differences that only the queue's own list shows. Two lists, with the grace between them, must agree on them."""

FOUND, WITHDRAWN = "found", "withdrawn"

_SAME: Final = (*block.PLACE, "difference")
COLUMNS: Final = (*_SAME, "mask", "fates", "reasons", "since_ms", "reported")


def carry_differences(
    found: DataFrame, before: DataFrame | None, now_ms: int, grace_ms: int, *, listed: bool
) -> DataFrame:
    """Return the present differences, with the instant of their beginning, and whether they are reported.

    Args:
        found: topic, partition, block, mask, difference, fates, reasons.
        before: this function's result for the last batch; None = first batch.
        now_ms: the batch's instant, ms since the epoch.
        grace_ms: how long a difference must last to be reported, in ms.
        listed: whether the queue has returned its list in this batch.
    """
    each = found.groupBy(*_SAME, "fates", "reasons").agg(F.bit_or("mask").alias("mask"))
    new = F.struct(F.lit(now_ms).cast("bigint").alias("since_ms"), F.lit(False).alias("reported"))
    if before is None:
        return _decided(
            each.select("*", new.alias("_new")).select("*", "_new.*").drop("_new"), now_ms, grace_ms, listed
        )
    earlier = before.groupBy(*_SAME).agg(
        F.collect_list(F.struct("since_ms", "reported", "mask")).alias("earlier"), F.bit_or("mask").alias("known")
    )
    joined = each.withColumnRenamed("mask", "now").join(earlier, list(_SAME), "left")
    rest = block.without(F.col("now"), F.coalesce("known", F.lit(0).cast("bigint")))
    first = F.array(F.struct(new["since_ms"].alias("since_ms"), new["reported"].alias("reported"), rest.alias("mask")))
    lasting = F.transform(
        "earlier",
        lambda one: F.struct(
            one["since_ms"].alias("since_ms"),
            one["reported"].alias("reported"),
            one["mask"].bitwiseAND(F.col("now")).alias("mask"),
        ),
    )
    pieces = F.concat(F.coalesce(lasting, F.array().cast(_PIECES)), first)
    parts = joined.select(*_SAME, "fates", "reasons", F.inline(pieces)).where(F.col("mask") != 0)
    return _decided(parts, now_ms, grace_ms, listed)


_PIECES: Final = "array<struct<since_ms:bigint,reported:boolean,mask:bigint>>"


def _decided(parts: DataFrame, now_ms: int, grace_ms: int, listed: bool) -> DataFrame:
    lasted = F.col("since_ms") <= now_ms - grace_ms
    if not listed:
        lasted = lasted & ~F.col("difference").isin(*BY_LIST)
    return parts.withColumn("reported", F.col("reported") | lasted).select(*COLUMNS)


def find_changes(now: DataFrame, before: DataFrame | None) -> DataFrame:
    """Return newly reported and withdrawn differences, in the columns of `to_messages`, with `news`.

    Args:
        now: differences from `carry_differences`.
        before: the differences of the last batch; None = first batch.
    """
    reported = F.col("reported")
    if before is None:
        return to_messages(now.where(reported)).withColumn("news", F.lit(FOUND))
    new = _rows_without(now.where(reported), before.where(reported))
    gone = _rows_without(before.where(reported), now)
    return (
        to_messages(new)
        .withColumn("news", F.lit(FOUND))
        .unionByName(to_messages(gone).withColumn("news", F.lit(WITHDRAWN)))
    )


def _rows_without(some: DataFrame, others: DataFrame) -> DataFrame:
    known = others.groupBy(*_SAME).agg(F.bit_or("mask").alias("known"))
    rest = block.without(F.col("mask"), F.coalesce("known", F.lit(0).cast("bigint")))
    return some.join(known, list(_SAME), "left").withColumn("mask", rest).where(F.col("mask") != 0).drop("known")


def to_messages(doubts: DataFrame) -> DataFrame:
    """Return one row per message: topic, partition, first, last, difference, fates, reasons."""
    offset = F.explode(block.offsets(F.col("block"), F.col("mask"))).alias("first")
    each = doubts.select("topic", "partition", offset, "difference", "fates", "reasons")
    return each.select("topic", "partition", "first", F.col("first").alias("last"), "difference", "fates", "reasons")


def differences_beyond_log(ranges: DataFrame) -> DataFrame:
    """Return differences, in the columns of `to_messages`, for ranges beyond the log's end."""
    return ranges.select(
        *("topic", "partition", "first", "last"),
        F.lit(Difference.NOT_PUBLISHED.value).alias("difference"),
        "fates",
        F.coalesce("letter", "reasons").alias("reasons"),
    ).distinct()


def to_words(rows: DataFrame) -> DataFrame:
    """Convert rows of `to_messages` to bookmarks, with fates and reasons as words."""
    whole = generation.join_positions(rows)
    ends = F.when(F.col("first") == F.col("last"), F.col("first").cast("string")).otherwise(
        F.concat_ws("-", F.col("first").cast("string"), F.col("last").cast("string"))
    )
    return whole.select(
        F.concat_ws(":", "topic", F.col("partition").cast("string"), ends).alias("bookmark"),
        "difference",
        _mask_in_words("fates", tuple(kind.value for kind in account.FATES)).alias("fates"),
        _mask_in_words("reasons", account.REASONS).alias("reasons"),
        *(name for name in rows.columns if name == "news"),
    )


def _mask_in_words(column: str, words: tuple[str, ...]) -> Column:
    return account.mask_to_text(F.coalesce(column, F.lit(0)), words)


def differences_in_verdicts(each: DataFrame, twice: DataFrame, forgotten: DataFrame | None) -> DataFrame:
    """Return differences between the topics: topic, partition, block, mask, difference, fates, reasons.

    Args:
        each: classes from `portion.find_verdicts`.
        twice: fates that were reported twice, from `portion.find_verdicts`.
        forgotten: topic, partition, and `below`: closed blocks below it may be forgotten.
    """
    columns = (*block.PLACE, "mask", "difference", "fates", "reasons")
    odd = each.where(F.col("difference").isNotNull()).select(*columns)
    if forgotten is not None:
        known = odd.join(F.broadcast(forgotten), ["topic", "partition"], "left")
        old = (F.col("difference") == Difference.NOT_PUBLISHED.value) & (F.col("block") < F.col("below"))
        odd = known.withColumn(
            "difference", F.when(old, Difference.FORGOTTEN.value).otherwise(F.col("difference"))
        ).select(*columns)
    return odd.unionByName(twice.select(*columns))


def differences_from_list(each: DataFrame, held: DataFrame) -> DataFrame:
    """Return differences between the account and the queue's own list.

    Args:
        each: classes from `portion.find_verdicts`.
        held: topic, partition, block, and masks: `listed` has the messages in the list, `excused` also those that the
            queue has not read yet.
    """
    ours = each.where((F.col("place") == account.OURS) & F.col("difference").isNull()).join(
        held, list(block.PLACE), "left"
    )
    zero = F.lit(0).cast("bigint")
    queued = F.col("state") == verdict.STILL_QUEUED
    lost = block.without(F.col("mask"), F.coalesce("excused", zero))
    still = F.col("mask").bitwiseAND(F.coalesce("listed", zero))
    both = ours.withColumns(
        {
            "difference": F.when(queued, Difference.LOST.value).otherwise(Difference.STILL_HELD.value),
            "mask": F.when(queued, lost).otherwise(still),
        }
    )
    return both.where(F.col("mask") != 0).select(*block.PLACE, "mask", "difference", "fates", "reasons")


def lasting_list_differences(each: DataFrame, before: DataFrame) -> DataFrame:
    """Return those differences of the last list that can still be true."""
    queued = each.where((F.col("place") == account.OURS) & (F.col("state") == verdict.STILL_QUEUED))
    masks = queued.groupBy(*block.PLACE).agg(F.bit_or("mask").alias("queued"))
    reported = before.where(F.col("difference").isin(*BY_LIST)).join(masks, list(block.PLACE), "left")
    open_still = F.col("mask").bitwiseAND(F.coalesce("queued", F.lit(0).cast("bigint")))
    lost = F.col("difference") == Difference.LOST.value
    return (
        reported.withColumn("mask", F.when(lost, open_still).otherwise(F.col("mask")))
        .where(F.col("mask") != 0)
        .select(*block.PLACE, "mask", "difference", "fates", "reasons")
    )
