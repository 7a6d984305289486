"""Converts records of `lapse.<name>.deliveries` to `schema.DELIVERY` (D4)."""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from lapse.core.generation import FIRST_REWOUND, MOST_GENERATIONS
from lapse.core.lifetime import EXPIRES_AT_MS, NEVER
from lapse.protocol import codec
from lapse.protocol import header as names
from lapse.protocol import schema as avro
from lapse_spark import schema
from lapse_spark.records import facts, header, packed_delivery

_BOOKMARK = r"^([A-Za-z0-9._-]{1,249}):([0-9]{1,10}):([0-9]{1,19})(?:~([1-9][0-9]{0,4}))?$"
_WITH_BOOKMARK = ("delivery", "barrier")
_MOST_MESSAGES: Final = 1 << 20
"""The most messages of a valid record. One with more is damaged, and would fill the memory."""


def parse(raw: DataFrame) -> DataFrame:
    """Parse deliveries, answers and epochs.

    Args:
        raw: records from Spark's Kafka source with `includeHeaders` (`schema.RAW`), batch or stream.

    Returns:
        `schema.DELIVERY`, one row per record. A record that is not lapse's has a `fault`.
    """
    record = raw.select(
        F.col("topic").alias("delivery_topic"),
        F.col("partition").alias("delivery_partition"),
        F.col("offset").alias("delivery_offset"),
        F.col("timestamp").alias("delivered_at"),
        "key",
        "value",
        "headers",
        header.split_headers(F.col("headers")).alias("_apart"),
    )
    headers = F.col("_apart")
    with_headers = record.select(
        "*",
        facts.compute_once(header.text(headers, names.KIND)).alias("kind"),
        facts.compute_once(header.text(headers, names.BOOKMARK)).alias("bookmark"),
        header.text(headers, names.SUBSCRIPTION).alias("subscription"),
        header.count(headers, names.DELIVERY_COUNT).alias("delivery_count"),
        header.number(headers, names.LEASE_UNTIL_MS).alias("lease_until_ms"),
        header.number(headers, EXPIRES_AT_MS).alias("expires_at_ms"),
        header.number(headers, names.TIMESTAMP_MS).alias("arrived_at_ms"),
        header.number(headers, names.EPOCH).alias("epoch"),
    )
    read = with_headers.select(
        "*",
        facts.compute_once(F.when(F.col("kind") == "reference", _referred())).alias("body"),
        facts.compute_once(F.when(F.col("kind") == "packed", packed_delivery.packed_messages(F.col("value")))).alias(
            "packed"
        ),
    ).withColumns(
        {
            "topic": F.coalesce(F.col("body.topic"), F.col("packed.topic"), _part(1)),
            "partition": F.coalesce(F.col("body.partition"), F.col("packed.partition"), _part(2).try_cast("int")),
            "offset": facts.compute_once(_position()),
            "deadlines_ms": F.coalesce(
                F.when(F.col("body").isNotNull(), _deadlines(F.col("body.deadlines_ms"))), F.col("packed.deadlines_ms")
            ),
        }
    )
    one = F.struct(F.col("offset").alias("first"), F.col("offset").alias("last"), "delivery_count")
    ranges = F.coalesce(F.col("body.ranges"), F.col("packed.ranges"), F.when(F.col("offset").isNotNull(), F.array(one)))
    read = read.withColumn("ranges", facts.compute_once(ranges.cast(schema.DELIVERY["ranges"].dataType)))
    return schema.conform(read.withColumn("fault", _fault()), schema.DELIVERY)


def _fault() -> Column:
    """Return why a parsed record is not a delivery, answer or epoch of lapse's; null if it is one."""
    damaged = F.exists(
        "ranges",
        lambda few: (
            few["first"].isNull()
            | (few["first"] < 0)
            | (few["last"] < few["first"])
            | (few["last"] - few["first"] >= _MOST_MESSAGES)
        ),
    )
    messages = F.aggregate("ranges", F.lit(0).cast("bigint"), lambda sum_of, few: sum_of + _messages(few))
    return (
        F.when(F.col("kind").isNull(), f"header {names.KIND} is missing")
        .when(
            F.col("kind").isin(*_WITH_BOOKMARK) & F.col("offset").isNull(),
            f"header {names.BOOKMARK} is missing or unreadable",
        )
        .when((F.col("kind") == "reference") & F.col("body.topic").isNull(), "no reference of the known schema")
        .when((F.col("kind") == "packed") & F.col("packed").isNull(), "no packed delivery of the known version")
        .when(damaged, "a range that is none")
        .when(messages > _MOST_MESSAGES, "more messages than a delivery has")
    )


def _messages(few: Column) -> Column:
    return few["last"] - few["first"] + 1


def each(deliveries: DataFrame) -> DataFrame:
    """Return one row for every delivered message, packed or by reference included, without the two array columns.

    Args:
        deliveries: readable deliveries, `schema.DELIVERY`. Answers and epochs are dropped.
    """
    named = F.transform(
        "ranges",
        lambda few: F.transform(
            F.sequence(few["first"], few["last"]),
            lambda offset: F.struct(offset.alias("offset"), few["delivery_count"].alias("delivery_count")),
        ),
    )
    others = [F.col(name) for name in deliveries.columns if name not in ("ranges", "deadlines_ms")]
    rows = deliveries.select("deadlines_ms", *others, F.posexplode(F.flatten(named)).alias("_place", "_one"))
    return rows.withColumns(
        {
            "offset": F.col("_one.offset"),
            "delivery_count": F.col("_one.delivery_count"),
            "expires_at_ms": F.coalesce(F.get("deadlines_ms", F.col("_place")), F.col("expires_at_ms")),
        }
    ).drop("_place", "_one", "deadlines_ms")


def valid(deliveries: DataFrame) -> DataFrame:
    """Drop records that an earlier owner of a shard sent after a take-over: those of lower epochs. Batch only."""
    seen = Window.partitionBy("delivery_topic", "delivery_partition").orderBy("delivery_offset")
    highest = F.max("epoch").over(seen.rowsBetween(Window.unboundedPreceding, Window.currentRow))
    kept = deliveries.withColumn("_highest", highest)
    return kept.where(F.col("epoch").isNull() | (F.col("epoch") >= F.col("_highest"))).drop("_highest")


def _part(group: int) -> Column:
    return F.nullif(F.regexp_extract("bookmark", _BOOKMARK, group), F.lit(""))


def _position() -> Column:
    """Return the position that a bookmark names: the offset, with the generation of a rewound message above (C61)."""
    offset, generation = _part(3).try_cast("bigint"), _part(4).cast("bigint")
    rewound = (offset < FIRST_REWOUND) & (generation <= MOST_GENERATIONS)
    return F.when(generation.isNull(), offset).when(rewound, offset + generation * FIRST_REWOUND)


def _referred() -> Column:
    """Return the decoded body of a reference; null for other records."""
    known = F.substring("value", 1, codec.HEADER_BYTES) == F.lit(codec.header("reference"))
    body = F.when(known, F.expr(f"substring(value, {codec.HEADER_BYTES + 1})"))
    return from_avro(body, avro.text("reference"), {"mode": "PERMISSIVE"})


def _deadlines(packed: Column) -> Column:
    """Return deadlines from little-endian 64-bit numbers; null for `NEVER`."""
    places = F.when(F.length(packed) >= 8, F.sequence(F.lit(0), (F.length(packed) / 8).cast("int") - 1))

    def number(place: Column) -> Column:
        return F.nullif(packed_delivery.number(packed, 8 * place, 8), F.lit(NEVER))

    return F.coalesce(F.transform(places, number), F.array().cast("array<bigint>"))
