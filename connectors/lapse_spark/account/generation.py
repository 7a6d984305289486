"""Generations: messages that a rewind brought back, beside those that they were before (C61).

Events name them by positions: the offset, with the generation in the bits above. A ledger keeps the generations of a
partition apart as if they were topics of their own, `orders~1`, for each has a beginning and an end of its own.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.generation import FIRST_REWOUND, OFFSET_BITS, generation_of

_MARK: Final = "~"
"""What no topic's name has."""

_OFFSET: Final = FIRST_REWOUND - 1


def apart(ranges: DataFrame) -> DataFrame:
    """Ranges of positions (`first`, `last`) as offsets of a topic, or of one of its generations."""
    generation = F.shiftright("first", OFFSET_BITS)
    return ranges.withColumns(
        {
            "topic": named(F.col("topic"), generation),
            "first": F.col("first").bitwiseAND(F.lit(_OFFSET)),
            "last": F.col("last").bitwiseAND(F.lit(_OFFSET)),
        }
    )


def together(ranges: DataFrame) -> DataFrame:
    """What `apart` took apart, as positions again."""
    generation = F.coalesce(F.substring_index("topic", _MARK, -1).try_cast("bigint"), F.lit(0).cast("bigint"))
    above = F.when(F.contains(F.col("topic"), F.lit(_MARK)), generation * FIRST_REWOUND).otherwise(0)
    return ranges.withColumns(
        {
            "first": F.col("first") + above,
            "last": F.col("last") + above,
            "topic": F.substring_index("topic", _MARK, 1),
        }
    )


def named(topic: Column, generation: Column) -> Column:
    """The name of a topic's generation; 0 is the topic itself."""
    return F.when(generation > 0, F.concat_ws(_MARK, topic, generation.cast("string"))).otherwise(topic)


def name(topic: str, position: int) -> str:
    """The same of one message."""
    generation = generation_of(position)
    return f"{topic}{_MARK}{generation}" if generation else topic


def was_rewound(topic: Column) -> Column:
    """Whether the name is that of a generation."""
    return F.contains(topic, F.lit(_MARK))


def is_rewound(topic: str) -> bool:
    """The same of one name."""
    return _MARK in topic
