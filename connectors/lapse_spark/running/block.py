"""Blocks: 64 consecutive offsets of a partition as the bits of one number.

A ledger over twenty million messages is reckoned over three hundred thousand blocks. The bits are gathered while the
records are read, before anything is shuffled, and no number of messages makes a row wider.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

WIDTH: Final = 64
"""Offsets in a block: the bits of Spark's `bigint`."""

_SHIFT: Final = 6
_LAST: Final = WIDTH - 1
_ALL: Final = -1

PLACE: Final = ("topic", "partition", "block")
"""The columns that name a block."""


def number(offset: Column) -> Column:
    """The block that an offset is in."""
    return F.shiftright(offset, _SHIFT)


def bit(offset: Column) -> Column:
    """The offset's bit in its block."""
    return _shifted("shiftleft", F.lit(1).cast("bigint"), _within(offset))


def all_bits() -> Column:
    """A mask with every bit of a block."""
    return F.lit(_ALL).cast("bigint")


def cover(ranges: DataFrame) -> DataFrame:
    """Ranges of offsets as blocks: the other columns of `ranges`, then `block` and `mask`, a row per range and block.

    Args:
        ranges: with `first` and `last`, both included, `first` at most `last`, none below 0; where they are null, so
            are `block` and `mask`.
    """
    first, last, found = F.col("first"), F.col("last"), F.col("block")
    low = F.when(number(first) == found, _within(first)).otherwise(F.lit(0))
    high = F.when(number(last) == found, _within(last)).otherwise(F.lit(_LAST))
    mask = _shifted("shiftleft", all_bits(), low).bitwiseAND(
        _shifted("shiftrightunsigned", all_bits(), F.lit(_LAST) - high)
    )
    blocks = ranges.withColumn("block", F.explode_outer(F.sequence(number(first), number(last))))
    return blocks.withColumn("mask", mask).drop("first", "last")


def offsets(block: Column, mask: Column) -> Column:
    """The offsets whose bits are set in a mask, ascending, as an array."""
    places = F.filter(
        F.sequence(F.lit(0), F.lit(_LAST)),
        lambda place: _shifted("shiftright", mask, place).bitwiseAND(F.lit(1)) == 1,
    )
    return F.transform(places, lambda place: block * WIDTH + place)


def without(mask: Column, other: Column) -> Column:
    """The bits of a mask that another one does not have."""
    return mask.bitwiseAND(F.bitwise_not(other))


def _within(offset: Column) -> Column:
    return offset.bitwiseAND(F.lit(_LAST)).cast("int")


def _shifted(function: str, value: Column, by: Column) -> Column:
    # PySpark's own functions take a plain number only.
    return F.call_function(function, value, by)
