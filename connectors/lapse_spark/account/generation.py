"""Generations: messages that a rewind brought back are apart from their earlier ones (C61).

Events name them by positions: the offset, with the generation in the bits above. A ledger treats the generations of
a partition like topics of their own, such as `orders~1`, because each has its own first and last offset.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.generation import FIRST_REWOUND, OFFSET_BITS, generation_of

_MARK: Final = "~"
"""The separator of the generation. No topic's name has this character."""

_OFFSET: Final = FIRST_REWOUND - 1


def split_positions(ranges: DataFrame) -> DataFrame:
    """Convert ranges of positions (`first`, `last`) to offsets of a topic or generation."""
    generation = F.shiftright("first", OFFSET_BITS)
    return ranges.withColumns(
        {
            "topic": name_column(F.col("topic"), generation),
            "first": F.col("first").bitwiseAND(F.lit(_OFFSET)),
            "last": F.col("last").bitwiseAND(F.lit(_OFFSET)),
        }
    )


def join_positions(ranges: DataFrame) -> DataFrame:
    """Convert the result of `split_positions` back to positions."""
    generation = F.coalesce(F.substring_index("topic", _MARK, -1).try_cast("bigint"), F.lit(0).cast("bigint"))
    above = F.when(F.contains(F.col("topic"), F.lit(_MARK)), generation * FIRST_REWOUND).otherwise(0)
    return ranges.withColumns(
        {
            "first": F.col("first") + above,
            "last": F.col("last") + above,
            "topic": F.substring_index("topic", _MARK, 1),
        }
    )


def name_column(topic: Column, generation: Column) -> Column:
    """Return the name of a topic's generation; the topic itself for 0."""
    return F.when(generation > 0, F.concat_ws(_MARK, topic, generation.cast("string"))).otherwise(topic)


def name(topic: str, position: int) -> str:
    """Return the name of a topic's generation for one message's position."""
    generation = generation_of(position)
    return f"{topic}{_MARK}{generation}" if generation else topic


def was_rewound(topic: Column) -> Column:
    """Return whether a column has the name of a generation."""
    return F.contains(topic, F.lit(_MARK))


def is_rewound(topic: str) -> bool:
    """Return whether a name is that of a generation."""
    return _MARK in topic
