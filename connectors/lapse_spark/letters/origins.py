"""Checks which letters cannot return, because the topic or partition of their messages does not exist (D5)."""

from __future__ import annotations

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse.protocol.redrive import partition_fault
from lapse_spark.connection import Connection

ASTRAY = "_astray"
"""The column that says why a letter cannot return to its origin; null if it can."""


def mark_unreachable(letters: DataFrame, connection: Connection) -> DataFrame:
    """Add to letters why they cannot return to their origins.

    Args:
        letters: `schema.DEAD_LETTER`.
        connection: connection to the cluster.

    Raises:
        LapseError: the cluster cannot be reached.
    """
    try:
        topics = connection.of_lapse().partitions()
    except ValueError:  # with options that only Java's client has, the sink reports the error
        return letters
    places = letters.select("topic", "partition").distinct().collect()
    found = [(place.topic, place.partition, partition_fault(place.topic, place.partition, topics)) for place in places]
    text = orjson.dumps([{"topic": name, "partition": number, ASTRAY: why} for name, number, why in found if why])
    rows = F.from_json(F.lit(text.decode()), f"array<struct<topic:string,partition:int,{ASTRAY}:string>>")
    known = letters.sparkSession.range(1).select(F.inline(rows))
    return letters.join(F.broadcast(known), ["topic", "partition"], "left").select(*letters.columns, ASTRAY)
