"""Where the logs of partitions begin, which tells what retention has removed from what was never a record (D3)."""

from __future__ import annotations

from collections.abc import Collection
from typing import Final

from confluent_kafka import KafkaException, TopicPartition
from confluent_kafka.admin import OffsetSpec  # type: ignore[attr-defined]
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse_client.error import LapseError
from lapse_spark import local_rows
from lapse_spark.connection import Connection

_PATIENCE_S: Final = 10.0


def log_begins(connection: Connection, places: Collection[tuple[str, int]]) -> list[tuple[str, int, int]]:
    """Return topic, partition and first offset of logs, without those of which no broker tells it.

    Args:
        connection: connection to the cluster. With options that only Java's client has, nothing is told.
        places: topics and partitions.
    """
    if not places:
        return []
    earliest = OffsetSpec.earliest()  # type: ignore[no-untyped-call]
    try:
        admin = connection.of_lapse().admin()  # it must live until it has answered
    except (ValueError, LapseError):
        return []
    asked = {TopicPartition(*place): earliest for place in places}
    answers = admin.list_offsets(asked, request_timeout=_PATIENCE_S)
    found = []
    for place, answer in answers.items():
        try:
            found.append((place.topic, place.partition, answer.result().offset))
        except KafkaException:  # the topic is gone, or hidden from this user
            continue
    return found


def without_markers(partitions: DataFrame, connection: Connection) -> DataFrame:
    """Do not count offsets as missing that the log still has: the ends of transactions, and aborted records.

    Args:
        partitions: rows from `monitor.partitions`.
        connection: connection to the cluster.
    """
    place, missing = ["letter_topic", "letter_partition"], F.col("missing_before")
    lacking = partitions.where(missing > 0).select(*place).collect()
    begins = log_begins(connection, [(row[0], row[1]) for row in lacking])
    if not begins:
        return partitions
    known = local_rows.frame(
        partitions.sparkSession, begins, "letter_topic string, letter_partition int, _begin bigint"
    )
    after = F.greatest(F.col("first_offset") - F.coalesce("_begin", "first_offset"), F.lit(0))
    left = F.greatest(missing - after, F.lit(0))
    return partitions.join(F.broadcast(known), place, "left").withColumn("missing_before", left).drop("_begin")
