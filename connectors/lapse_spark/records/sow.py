"""Converts the compacted topic `lapse.sow.<name>` to `schema.SOW`, the state of a SOW topic (S8)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse.core.lifetime import EXPIRES_AT_MS
from lapse_spark import schema
from lapse_spark.records import facts, header


def parse(raw: DataFrame) -> DataFrame:
    """Parse every update and tombstone of the topic, in no order.

    Args:
        raw: records from Spark's Kafka source with `includeHeaders` (`schema.RAW`), batch or stream.

    Returns:
        `schema.SOW`, one row per record. A record without a key, or with an unreadable deadline, has a `fault`.
    """
    headers = F.col("_apart")
    read = raw.select("*", header.split_headers(F.col("headers")).alias("_apart")).select(
        "*",
        facts.compute_once(header.number(headers, EXPIRES_AT_MS)).alias("expires_at_ms"),
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
    """Return the latest record of every key, without tombstones and expired records. Batch only.

    The latest record has the latest timestamp, then the highest partition, then the highest offset (C46).

    Args:
        updates: updates from `parse`. Records with a fault are dropped.
        now_ms: the instant by which deadlines are judged, ms since the epoch; None = keep expired records that are not
            removed yet.
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
