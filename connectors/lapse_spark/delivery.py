"""Deliveries as a DataFrame: headers of `lapse.<name>.deliveries` to `schema.DELIVERY` (D4)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import header as names
from lapse_spark import facts, header, schema

_BOOKMARK = r"^([A-Za-z0-9._-]{1,249}):([0-9]{1,10}):([0-9]{1,19})$"
_WITH_BOOKMARK = ("delivery", "barrier")


def parse(raw: DataFrame) -> DataFrame:
    """Read the headers of deliveries, answers and epochs.

    Args:
        raw: records as Spark's Kafka source gives them with `includeHeaders` (`schema.RAW`), batch or stream.

    Returns:
        `schema.DELIVERY`, one row per record; what is not lapse's has a `fault`.
    """
    headers = header.newest_first(F.col("headers"))
    read = raw.select(
        F.col("topic").alias("delivery_topic"),
        F.col("partition").alias("delivery_partition"),
        F.col("offset").alias("delivery_offset"),
        F.col("timestamp").alias("delivered_at"),
        "key",
        "value",
        "headers",
        facts.once(
            header.text(headers, names.KIND).alias("kind"),
            header.text(headers, names.SUBSCRIPTION).alias("subscription"),
            header.text(headers, names.BOOKMARK).alias("bookmark"),
            header.count(headers, names.DELIVERY_COUNT).alias("delivery_count"),
            header.number(headers, names.LEASE_UNTIL_MS).alias("lease_until_ms"),
            header.number(headers, EXPIRES_AT_MS).alias("expires_at_ms"),
            header.number(headers, names.TIMESTAMP_MS).alias("arrived_at_ms"),
            header.number(headers, names.EPOCH).alias("epoch"),
        ),
    ).withColumns(
        {
            "topic": _part(1),
            "partition": _part(2).try_cast("int"),
            "offset": _part(3).try_cast("bigint"),
        }
    )
    fault = F.when(F.col("kind").isNull(), f"header {names.KIND} is missing").when(
        F.col("kind").isin(*_WITH_BOOKMARK) & F.col("offset").isNull(),
        f"header {names.BOOKMARK} is missing or unreadable",
    )
    return schema.conform(read.withColumn("fault", fault), schema.DELIVERY)


def valid(deliveries: DataFrame) -> DataFrame:
    """Drop what a shard sent after another had taken over: records of an epoch below one seen before. Batch only."""
    seen = Window.partitionBy("delivery_topic", "delivery_partition").orderBy("delivery_offset")
    highest = F.max("epoch").over(seen.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    kept = deliveries.withColumn("_highest", highest)
    return kept.where(F.col("epoch").isNull() | (F.col("epoch") >= F.col("_highest"))).drop("_highest")


def _part(group: int) -> Column:
    return F.nullif(F.regexp_extract("bookmark", _BOOKMARK, group), F.lit(""))
