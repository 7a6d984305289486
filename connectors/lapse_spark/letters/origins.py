"""Checks which letters cannot return, because nobody would take them there (D5, C29)."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Mapping

import orjson
from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lapse.protocol.letter_family import LAPSE
from lapse.protocol.redrive import NO_ENTITY, NOT_READ, partition_fault

ASTRAY = "_astray"
"""The column that says why a letter cannot return to its origin; null if it can. It is missing where all can."""


def mark_unreachable(
    letters: DataFrame,
    places: Iterable[Row],
    topics: Mapping[str, int],
    is_removed: Callable[[str], bool],
    reads_others_only: Callable[[str, str], bool],
) -> DataFrame:
    """Add to letters why they cannot return to their origins, unless all of them can.

    Args:
        letters: `schema.DEAD_LETTER`.
        places: topic, partition and entity of the letters, and whether they are `foreign`: of another system.
        topics: numbers of partitions by topic.
        is_removed: whether a queue or SOW topic was deleted.
        reads_others_only: whether a queue or SOW topic is defined, and does not read a topic.
    """
    gone, faults = functools.cache(is_removed), []
    for name, number, entity, foreign in {(one.topic, one.partition, one.entity, one.foreign) for one in places}:
        why = partition_fault(name, number, topics)
        if not why and not foreign and entity and gone(entity):
            why = NO_ENTITY
        if not why and not foreign and entity and reads_others_only(entity, name):
            why = NOT_READ
        if why:
            faults.append({"topic": name, "partition": number, "entity": entity, "foreign": foreign, ASTRAY: why})
    if not faults:
        return letters
    kind = f"array<struct<topic:string,partition:int,entity:string,foreign:boolean,{ASTRAY}:string>>"
    known = letters.sparkSession.range(1).select(F.inline(F.from_json(F.lit(orjson.dumps(faults).decode()), kind)))
    marked = letters.withColumn("foreign", F.col("family") != LAPSE.name)
    on = ["topic", "partition", "entity", "foreign"]
    return marked.join(F.broadcast(known), on, "left").select(*letters.columns, ASTRAY)
