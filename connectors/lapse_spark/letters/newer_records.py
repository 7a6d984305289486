"""Checks which dead letters of SOW topics are older than the topic's present record of their key (C84)."""

from __future__ import annotations

import re
from collections.abc import Sequence

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse.protocol import header as names
from lapse.protocol import topic as topics
from lapse.protocol.letter_family import LAPSE
from lapse_spark import read
from lapse_spark.connection import Connection
from lapse_spark.read import Span
from lapse_spark.records import header

NEWER = "_newer"
"""The column that says whether the SOW topic has a later record of the letter's key; false for other entities.

It is missing where no letter is of a SOW topic."""

_OVER = ":"
"""Before a topic it means all SOW topics over it. No entity's name begins so."""

_PLACE = r"^(.+):(\d{1,10}):(\d{1,19})$"


def records(spark: SparkSession, connection: Connection, entities: Sequence[str]) -> DataFrame:
    """Return the present keys of SOW topics: entity, key, place in the underlying topic, instant."""
    pattern = "|".join(re.escape(topics.sow(entity)) for entity in entities)
    raw = read.records(spark, connection, pattern=pattern, span=Span(fail_on_data_loss=False))
    place = F.struct("timestamp", "partition", "offset")
    latest = raw.groupBy("topic", "key").agg(F.max_by(F.struct("value", "headers", "timestamp"), place).alias("_last"))
    headers = header.newest_first(F.col("_last.headers"))
    mark = header.text(headers, names.BOOKMARK)
    stamp = F.coalesce(header.number(headers, names.TIMESTAMP_MS), F.unix_millis("_last.timestamp"))
    return latest.where(F.col("_last.value").isNotNull()).select(
        F.substring("topic", len(topics.sow("")) + 1, 1 << 20).alias("_entity"),
        F.col("key").alias("_key"),
        F.regexp_extract(mark, _PLACE, 1).alias("_topic"),
        F.regexp_extract(mark, _PLACE, 2).try_cast("int").alias("_partition"),
        F.regexp_extract(mark, _PLACE, 3).try_cast("bigint").alias("_offset"),
        stamp.alias("_at_ms"),
    )


def mark_superseded(letters: DataFrame, known: DataFrame, elsewhere: str = "", foreign: bool = False) -> DataFrame:
    """Add to letters whether a SOW topic that takes them has a newer record of their key.

    A letter of lapse goes to its entity alone (C29). If it goes elsewhere, or is of another system, it goes to all SOW
    topics over its target, and the latest of their records counts.

    Args:
        letters: `schema.DEAD_LETTER`.
        known: keys from `records`.
        elsewhere: the target topic; empty = each letter's origin.
        foreign: whether some letters are of other systems.
    """
    own = F.lit(False) if elsewhere else F.col("family") == LAPSE.name
    target = F.lit(elsewhere) if elsewhere else F.col("topic")
    entity = F.when(own, F.col("entity")).otherwise(F.concat(F.lit(_OVER), target))
    if elsewhere or foreign:
        place = F.struct("_at_ms", "_partition", "_offset")
        facts = [F.max_by(name, place).alias(name) for name in ("_partition", "_offset", "_at_ms")]
        over = known.groupBy("_topic", "_key").agg(*facts).withColumn("_entity", F.concat(F.lit(_OVER), "_topic"))
        known = over if elsewhere else known.unionByName(over)
    stated = header.value(header.newest_first(F.col("headers")), names.RECORD_KEY)
    named = letters.withColumns({"_goes_to": entity, "_letter_key": F.coalesce(stated, F.col("key"))})
    both = named.join(known, (F.col("_goes_to") == F.col("_entity")) & (F.col("_letter_key") == F.col("_key")), "left")
    same_log = F.coalesce(
        (F.col("_topic") == F.col("topic")) & (F.col("_partition") == F.col("partition")), F.lit(False)
    )
    later = F.when(same_log, F.col("_offset") > F.col("offset")).otherwise(F.col("_at_ms") > F.unix_millis("died_at"))
    return both.withColumn(NEWER, F.coalesce(later, F.lit(False))).drop("_goes_to", "_letter_key", *known.columns)
