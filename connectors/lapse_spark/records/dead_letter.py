"""Converts Kafka records to dead letters, `schema.DEAD_LETTER`, for all families of writers (D2, D3)."""

from __future__ import annotations

from functools import reduce
from operator import or_

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.lifetime import EXPIRES_AT_MS
from lapse.protocol import header as names
from lapse.protocol import topic as topics
from lapse.protocol.letter_family import FAMILIES, LAPSE
from lapse.protocol.redrive import OF_SECOND
from lapse_spark import schema
from lapse_spark.collected import LAST_MS
from lapse_spark.records import facts, family, header


def parse(raw: DataFrame) -> DataFrame:
    """Parse dead letters from their headers.

    Args:
        raw: records from Spark's Kafka source with `includeHeaders` (`schema.RAW`), batch or stream.

    Returns:
        `schema.DEAD_LETTER`, one row per record. A record that is no dead letter has a `fault`.
    """
    record = raw.select(
        *(F.col(name).alias(alias) for name, alias in _LETTER.items()),
        *("key", "value", "headers"),
        header.split_headers(F.col("headers")).alias("_apart"),
    )
    headers = F.col("_apart")
    read = record.select("*", facts.compute_once(family.find_family(headers)).alias("_family")).select(
        *record.columns,
        *family.read_facts(headers, F.col("_family")),
        header.text(headers, names.LAPSE_ID).alias("lapse_id"),
        header.count(headers, names.DLQ_DELIVERY_COUNT).alias("delivery_count"),
        header.count(headers, names.CANCEL_COUNT).alias("cancel_count"),
        F.coalesce(header.count(headers, names.REDRIVEN_COUNT), F.lit(0)).alias("redriven_count"),
        header.number(headers, names.EXPIRED_AT_MS).alias("expired_at_ms"),
        # On other families' letters this is the lifetime of a record that lapse never saw. It is the deadline, too.
        F.when(
            # On a first letter that was redriven, it has another name (C54).
            header.present(headers, names.FIRST_EXPIRES_AT_MS) & ~header.present(headers, OF_SECOND),
            header.number(headers, names.FIRST_EXPIRES_AT_MS),
        )
        .otherwise(header.number(headers, EXPIRES_AT_MS))
        .alias("expires_at_ms"),
        header.number(headers, names.EPOCH).alias("epoch"),
    )
    # In other systems' letters an empty name is no name.
    stated = F.when((F.col("family") == LAPSE.name) | (F.col("entity") != ""), F.col("entity"))
    named = read.withColumn("fault", _fault()).withColumn(
        "entity", F.coalesce(stated, _without_prefix(F.col("letter_topic")))
    )
    decided = F.when(F.col("expired_at_ms") <= LAST_MS, F.timestamp_millis(F.col("expired_at_ms")))
    died_at = F.coalesce(decided, F.col("letter_at"))
    complete = named.withColumns({"id": _id(), "died_at": died_at})
    return schema.conform(complete, schema.DEAD_LETTER)


def reasons_text(reasons: Column) -> Column:
    """Return reasons as one text, such as `time_limit,max_deliveries`; `unstated` without reasons."""
    joined = F.array_join(reasons, ",")
    return F.when(F.coalesce(joined, F.lit("")) == "", "unstated").otherwise(joined)


def distinct(letters: DataFrame) -> DataFrame:
    """Keep the first copy of every letter in the log, because a crash may have written it twice (D3). Batch only."""
    place = F.struct("letter_topic", "letter_partition", "letter_offset")
    columns = F.struct(*letters.columns)
    return letters.groupBy("id").agg(F.min_by(columns, place).alias("_first")).select("_first.*")


_LETTER = {
    "topic": "letter_topic",
    "partition": "letter_partition",
    "offset": "letter_offset",
    "timestamp": "letter_at",
}


def _fault() -> Column:
    """Return what a letter of its family lacks; null if nothing."""
    markers = ", ".join(one.marker for one in FAMILIES)
    text = F.when(F.col("family").isNull(), F.lit(f"no dead letter: none of the headers {markers}"))
    for one in FAMILIES:
        faults = family.missing_headers(one)
        # Check first whether anything is missing, before texts are made: nearly all letters are complete.
        found = (F.col("family") == one.name) & reduce(or_, faults.values())
        text = text.when(found, F.concat_ws("; ", *(F.when(missing, fault) for fault, missing in faults.items())))
    return text


def _id() -> Column:
    bookmark = F.concat_ws(":", "topic", "partition", "offset")
    letter = F.concat_ws(":", "letter_topic", "letter_partition", "letter_offset")
    return (
        F.when(F.col("fault").isNotNull(), F.concat(F.lit("foreign/"), letter))
        # A damaged letter is named by its bookmark, as in the client.
        .when(F.col("family") == LAPSE.name, F.coalesce(F.nullif("lapse_id", F.lit("")), letter))
        .otherwise(F.concat_ws("/", "family", "entity", bookmark))
    )


def _without_prefix(letter_topic: Column) -> Column:
    return F.regexp_replace(letter_topic, f"^{topics.DEAD_LETTER_PREFIX.replace('.', '[.]')}", "")
