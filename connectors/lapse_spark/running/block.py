"""Blocks: 64 consecutive offsets of a partition as the bits of one number.

A ledger over twenty million messages is computed over three hundred thousand blocks. The bits are collected while the
records are read, before any shuffle, and rows have a fixed size.
"""

from __future__ import annotations

from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

WIDTH: Final = 64
"""The number of offsets in a block: the bits of Spark's `bigint`."""

_SHIFT: Final = 6
_LAST: Final = WIDTH - 1
_ALL: Final = -1

PLACE: Final = ("topic", "partition", "block")
"""The columns that name a block."""


def number(offset: Column) -> Column:
    """Return the number of an offset's block."""
    return F.shiftright(offset, _SHIFT)


def bit(offset: Column) -> Column:
    """Return the offset's bit in its block."""
    return _shifted("shiftleft", F.lit(1).cast("bigint"), _within(offset))


def all_bits() -> Column:
    """Return a mask with all bits of a block."""
    return F.lit(_ALL).cast("bigint")


def cover(ranges: DataFrame) -> DataFrame:
    """Convert ranges of offsets to blocks: the other columns, `block` and `mask`, one row per range and block.

    Args:
        ranges: ranges with `first` and `last`, both included, with 0 ≤ `first` ≤ `last`. If they are null, so are
            `block` and `mask`.
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
    """Return the offsets whose bits are set in a mask, as an ascending array."""
    places = F.filter(
        F.sequence(F.lit(0), F.lit(_LAST)),
        lambda place: _shifted("shiftright", mask, place).bitwiseAND(F.lit(1)) == 1,
    )
    return F.transform(places, lambda place: block * WIDTH + place)


def without(mask: Column, other: Column) -> Column:
    """Return the bits of a mask that another one does not have."""
    return mask.bitwiseAND(F.bitwise_not(other))


def _within(offset: Column) -> Column:
    return offset.bitwiseAND(F.lit(_LAST)).cast("int")


def _shifted(function: str, value: Column, by: Column) -> Column:
    # PySpark's own functions accept only a plain number.
    return F.call_function(function, value, by)
