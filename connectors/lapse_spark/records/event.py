"""Converts Avro single objects from `lapse.events.<name>` to `schema.EVENT` (D4)."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Final

import fastavro
from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.avro.functions import from_avro

from lapse.core.generation import OFFSET_BITS
from lapse.protocol import codec
from lapse.protocol import schema as avro
from lapse.protocol.event import EventKind
from lapse_spark import schema
from lapse_spark.records import facts

MOST_IN_A_RANGE: Final = 1 << 24
"""The longest range whose messages are counted one by one, in offsets. Steps of a queue have far fewer messages.

Only an event about records that Kafka has removed unread (C80) may have a longer one, which a ledger cuts to the log.
"""

_AT_ONCE: Final = 4_096
"""How many offsets of a range are in one array. An array of a whole range could fill the memory."""


def parse(raw: DataFrame, written_with: Sequence[str] = ()) -> DataFrame:
    """Decode events.

    Args:
        raw: records from Spark's Kafka source (`schema.RAW`), batch or stream.
        written_with: further schemas that workers of other versions write with, as the text of their `event.avsc`.
            By Avro's rules of schema evolution, unknown fields are dropped, and missing fields have their defaults.

    Returns:
        `schema.EVENT`, one row per record. A record that is no event of a known schema has a `fault`.

    Raises:
        ValueError: a schema is not valid, or its events cannot be read as this version's.
    """
    begin = F.substring("value", 1, codec.HEADER_BYTES)
    body = F.expr(f"substring(value, {codec.HEADER_BYTES + 1})")
    known, body_read = F.lit(False), F.lit(None)
    for written in dict.fromkeys((avro.text("event"), *written_with)):
        same = begin == F.lit(_header(written))
        # PERMISSIVE: a damaged body becomes null, and does not fail the job.
        options = {"mode": "PERMISSIVE", "avroSchema": avro.text("event")}
        known, body_read = known | same, F.coalesce(body_read, from_avro(F.when(same, body), written, options))
    read = raw.select(
        F.col("topic").alias("event_topic"),
        F.col("partition").alias("event_partition"),
        F.col("offset").alias("event_offset"),
        F.col("timestamp").alias("event_at"),
        F.col("key").alias("record_key"),
        "value",
        "headers",
        F.coalesce(known, F.lit(False)).alias("known"),
        facts.compute_once(body_read).alias("_facts"),
    )
    renamed = (
        read.select("*", "_facts.*")
        .withColumnsRenamed({"partition": "shard", "key": "message_key"})
        .withColumnRenamed("record_key", "key")
    )
    return schema.conform(renamed.withColumn("fault", _fault()), schema.EVENT)


def ranges(events: DataFrame) -> DataFrame:
    """Return one row per range of bookmarks in events: the columns of `events`, and topic, partition, first, last.

    After a crash an event may come twice, with the same bookmarks.
    """
    return events.select(*(F.col(name) for name in events.columns if name != "messages"), F.inline("messages"))


def each_message(ranges: DataFrame) -> DataFrame:
    """Return one row per message of ranges: `offset`, and the other columns without `first` and `last`.

    Ranges of more than `MOST_IN_A_RANGE` offsets are left out.

    Args:
        ranges: ranges with `first` and `last`, both included, with `first` ≤ `last`.
    """
    first, last = F.col("first"), F.col("last")
    short = ranges.where(F.try_subtract(last, first) < MOST_IN_A_RANGE)
    parts = short.withColumn("first", F.explode(F.sequence(first, last, F.lit(_AT_ONCE))))
    until = first + F.least(last - first, F.lit(_AT_ONCE - 1))
    return parts.withColumn("offset", F.explode(F.sequence(first, until))).drop("first", "last")


def _header(written: str) -> bytes:
    try:
        return codec.header_of(fastavro.parse_schema(json.loads(written)))
    except (ValueError, KeyError, TypeError, fastavro.schema.SchemaParseException) as error:
        raise ValueError(f"no schema of events, as event.avsc is one: {error}") from error


def _fault() -> Column:
    shown = F.hex(F.substring("value", 1, codec.HEADER_BYTES))
    return (
        F.when(F.col("value").isNull(), "no event: the record has no value")
        .when(
            ~F.col("known"),
            F.concat(F.lit("no event of a known schema: it begins with "), shown, F.lit(f", expected {_expected()}")),
        )
        .when(F.col("event").isNull() | F.col("entity").isNull(), "the Avro body is damaged")
        .when(F.exists("messages", _is_damaged), "a range that is none")
    )


def _is_damaged(messages: Column) -> Column:
    """Return whether a range is none of one generation. Rewound ones are counted one by one, so they must be short."""
    first, last = messages["first"], messages["last"]
    apart = F.shiftright(first, OFFSET_BITS) != F.shiftright(last, OFFSET_BITS)
    too_long = F.coalesce(F.try_subtract(last, first) >= MOST_IN_A_RANGE, F.lit(True))
    return (first < 0) | (last < first) | apart | ((F.col("event") == EventKind.REWOUND.value) & too_long)


def _expected() -> str:
    return codec.header("event").hex().upper()
