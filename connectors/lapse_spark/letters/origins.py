"""Checks which letters cannot return, because the topic or partition of their messages does not exist (D5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import orjson
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse.protocol.redrive import partition_fault

ASTRAY = "_astray"
"""The column that says why a letter cannot return to its origin; null if it can. It is missing where all can."""


def mark_unreachable(letters: DataFrame, places: Iterable[tuple[str, int]], topics: Mapping[str, int]) -> DataFrame:
    """Add to letters why they cannot return to their origins, unless all of them can.

    Args:
        letters: `schema.DEAD_LETTER`.
        places: topics and partitions of the letters' messages.
        topics: numbers of partitions by topic.
    """
    found = [(name, number, partition_fault(name, number, topics)) for name, number in set(places)]
    faults = [{"topic": name, "partition": number, ASTRAY: why} for name, number, why in found if why]
    if not faults:
        return letters
    rows = F.from_json(
        F.lit(orjson.dumps(faults).decode()), f"array<struct<topic:string,partition:int,{ASTRAY}:string>>"
    )
    known = letters.sparkSession.range(1).select(F.inline(rows))
    return letters.join(F.broadcast(known), ["topic", "partition"], "left").select(*letters.columns, ASTRAY)
