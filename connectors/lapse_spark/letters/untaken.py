"""Checks which letters their topic would refuse, so that none of them stops a run that sends others (D5, X7)."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final

import orjson
from confluent_kafka import KafkaException
from confluent_kafka.admin import ConfigResource, ResourceType  # type: ignore[attr-defined]  # it lists no names
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse_spark.connection import Connection
from lapse_spark.letters import redriven
from lapse_spark.records import facts

UNTAKEN: Final = "_untaken"
"""The column that says why a topic would refuse a letter's record; null if it would not, or if that is unknown."""
RECORD: Final = "_record"
"""The column with the record of a letter: topic, partition, key, value, headers."""

_SIZE: Final = "_size"
_PATIENCE_S: Final = 30
_BATCH: Final = 61
"""Size of a RecordBatch's header, in bytes."""
_ESTIMATE: Final = 32
"""By how many bytes Java's client overestimates a record at most."""


def mark_untaken(letters: DataFrame, connection: Connection, topics: Iterable[str]) -> tuple[DataFrame, int]:
    """Add to letters the column `UNTAKEN` for their records.

    Args:
        letters: letters with the column `RECORD`.
        connection: connection to the cluster.
        topics: the topics of the records.

    Returns:
        The letters, and the smallest batch limit of the topics, in bytes.
    """
    settings, fewest = _settings(letters.sparkSession, connection, topics)
    # A size is used five times to find that of its length field, and the reason by all that is counted.
    once = letters.withColumn(RECORD, facts.compute_once(F.col(RECORD)))
    known = once.join(F.broadcast(settings), F.col(f"{RECORD}.topic") == F.col("_target"), "left")
    sized = known.withColumn(_SIZE, facts.compute_once(_body(F.col(RECORD))))
    reason = facts.compute_once(_untaken_reason(F.col(RECORD), F.col(_SIZE)))
    return sized.select(*letters.columns, reason.alias(UNTAKEN)), fewest


def mark_untaken_by_id(letters: DataFrame, records: DataFrame, connection: Connection) -> tuple[DataFrame, int]:
    """Add to letters the column `UNTAKEN` for the records that a hook returned.

    Args:
        letters: `schema.DEAD_LETTER`.
        records: records from the hook, which are matched by their message ids.
        connection: connection to the cluster.

    Returns:
        See `mark_untaken`.
    """
    topics = [row.topic for row in records.select("topic").distinct().collect()]
    made = records.select(F.struct("topic", "key", "value", "headers").alias(RECORD))
    marked, fewest = mark_untaken(made, connection, topics)
    letter = redriven.letter_in(F.col(f"{RECORD}.headers")).alias("id")
    found = marked.where(F.col(UNTAKEN).isNotNull()).groupBy(letter)
    known = letters.join(found.agg(F.min(UNTAKEN).alias(UNTAKEN)), "id", "left")
    return known.select(*letters.columns, UNTAKEN), fewest


def _untaken_reason(record: Column, body: Column) -> Column:
    size = _BATCH + _with_length(body)
    return F.when(size > F.col("_most"), "too large for the topic").when(
        F.col("_keyed") & record["key"].isNull(), "no key for a compacted topic"
    )


def _body(record: Column) -> Column:
    """Return the size of a record that is alone in its batch, without its length field, in bytes."""
    headers = F.coalesce(record["headers"], F.array().cast("array<struct<key:string,value:binary>>"))
    size = F.aggregate(
        headers,
        F.lit(0),
        lambda total, one: total + _length_of_field(one["key"]) + _length_of_field(one["value"]),
        lambda total: total,
    )
    fixed = 3  # attributes, timestamp delta and offset delta
    return fixed + _length_of_field(record["key"]) + _length_of_field(record["value"]) + _varint(F.size(headers)) + size


def _length_of_field(field: Column) -> Column:
    return F.when(field.isNull(), 1).otherwise(_with_length(F.octet_length(field)))


def _with_length(size: Column) -> Column:
    return _varint(size) + size


def _varint(number: Column) -> Column:
    """Return the size of a non-negative number in Kafka's varint encoding, in bytes."""
    width = F.when(number < 1 << 6, 1)
    for more in range(2, 5):
        width = width.when(number < 1 << (7 * more - 1), more)
    return width.otherwise(5)


def _settings(spark: SparkSession, connection: Connection, topics: Iterable[str]) -> tuple[DataFrame, int]:
    """Return the limits of topics: name, most bytes of a batch, whether a key is needed; without unknown topics."""
    found = [name for name in topics if name]
    own = int(connection.writing()["kafka.max.request.size"])
    limits = _topic_limits(found, connection) if found else []
    fewest = min((own - _ESTIMATE, *(most for _, most, _ in limits)))
    listed = [{"_target": name, "_most": min(most, own - _ESTIMATE), "_keyed": keyed} for name, most, keyed in limits]
    rows = F.from_json(
        F.lit(orjson.dumps(listed).decode()), "array<struct<_target:string,_most:bigint,_keyed:boolean>>"
    )
    return spark.range(1).select(F.inline(rows)), fewest


def _topic_limits(topics: Sequence[str], connection: Connection) -> list[tuple[str, int, bool]]:
    try:
        admin = connection.of_lapse().admin()
    except ValueError:  # options that only Java's client has
        return []
    resources = [ConfigResource(ResourceType.TOPIC, name) for name in topics]
    found = []
    for resource, answer in admin.describe_configs(resources, request_timeout=_PATIENCE_S).items():
        try:
            settings = answer.result()
        except KafkaException:  # a user who may write need not be allowed to ask
            continue
        compacted = "compact" in (settings["cleanup.policy"].value or "")
        found.append((resource.name, int(settings["max.message.bytes"].value), compacted))
    return found
