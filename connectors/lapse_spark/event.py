"""Events as a DataFrame: Avro single objects from `lapse.events.<name>` to `schema.EVENT` (D4)."""

from __future__ import annotations

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from lapse.protocol import codec
from lapse.protocol import schema as avro
from lapse_spark import facts, schema


def parse(raw: DataFrame) -> DataFrame:
    """Decode events.

    Args:
        raw: records as Spark's Kafka source gives them (`schema.RAW`), batch or stream.

    Returns:
        `schema.EVENT`, one row per record; what is no event of the known schema has a `fault`.
    """
    known = F.substring("value", 1, codec.HEADER_BYTES) == F.lit(codec.header("event"))
    # PERMISSIVE: a damaged body becomes null, not the end of the job.
    told = from_avro(
        F.when(known, F.expr(f"substring(value, {codec.HEADER_BYTES + 1})")), avro.text("event"), {"mode": "PERMISSIVE"}
    )
    read = raw.select(
        F.col("topic").alias("event_topic"),
        F.col("partition").alias("event_partition"),
        F.col("offset").alias("event_offset"),
        F.col("timestamp").alias("event_at"),
        F.col("key").alias("record_key"),
        "value",
        "headers",
        F.coalesce(known, F.lit(False)).alias("known"),
        facts.fields(told),
    )
    renamed = read.withColumnsRenamed({"partition": "shard", "key": "message_key"}).withColumnRenamed(
        "record_key", "key"
    )
    return schema.conform(renamed.withColumn("fault", _fault()), schema.EVENT)


def ranges(events: DataFrame) -> DataFrame:
    """One row per range of bookmarks that an event names: the columns of `events`, then topic, partition, first, last.

    An event may be told again after a crash; it names the same bookmarks then.
    """
    return events.select(*(F.col(name) for name in events.columns if name != "messages"), F.inline("messages"))


def _fault() -> Column:
    shown = F.hex(F.substring("value", 1, codec.HEADER_BYTES))
    return (
        F.when(F.col("value").isNull(), "no event: the record has no value")
        .when(
            ~F.col("known"),
            F.concat(F.lit("no event of the known schema: it begins with "), shown, F.lit(f", expected {_expected()}")),
        )
        .when(F.col("event").isNull() | F.col("entity").isNull(), "the Avro body is damaged")
    )


def _expected() -> str:
    return codec.header("event").hex().upper()
