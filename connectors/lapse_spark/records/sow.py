"""The state of a SOW topic as a DataFrame: the compacted topic `lapse.sow.<name>` to `schema.SOW` (S8)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse.core.lifetime import EXPIRES_AT_MS
from lapse_spark import schema
from lapse_spark.records import facts, header


def parse(raw: DataFrame) -> DataFrame:
    """Read every update and tombstone of the topic, in no order.

    Args:
        raw: records as Spark's Kafka source gives them with `includeHeaders` (`schema.RAW`), batch or stream.

    Returns:
        `schema.SOW`, one row per record; what has no key has a `fault`.
    """
    headers = F.col("_apart")
    read = raw.select("*", header.apart(F.col("headers")).alias("_apart")).select(
        "*",
        facts.once(header.number(headers, EXPIRES_AT_MS)).alias("expires_at_ms"),
        header.present(headers, EXPIRES_AT_MS).alias("has_deadline"),
    )
    fault = F.when(F.col("key").isNull(), "a record of a SOW topic without a key").when(
        F.col("has_deadline") & F.col("expires_at_ms").isNull(), f"header {EXPIRES_AT_MS} is unreadable"
    )
    complete = read.withColumns(
        {"deleted": F.col("value").isNull(), "updated_at": F.col("timestamp"), "fault": fault},
    )
    return schema.conform(complete, schema.SOW)


def current(updates: DataFrame, now_ms: int | None = None) -> DataFrame:
    """The latest record of every key: without tombstones, and without what has expired. Batch only.

    The latest is that with the later timestamp, then partition, then offset (C46).

    Args:
        updates: as `parse` returns them; records with a fault are left out.
        now_ms: the instant to judge deadlines by, ms since the epoch; None = expired records that have not been
            removed yet are kept.
    """
    place = F.struct("updated_at", "partition", "offset")
    newest = (
        updates.where(F.col("fault").isNull())
        .groupBy(F.col("topic").alias("_topic"), F.col("key").alias("_key"))
        .agg(F.max_by(F.struct(*updates.columns), place).alias("_newest"))
        .select("_newest.*")
        .where(~F.col("deleted"))
    )
    if now_ms is not None:
        newest = newest.where(F.col("expires_at_ms").isNull() | (F.col("expires_at_ms") > now_ms))
    return schema.conform(newest, schema.SOW)
