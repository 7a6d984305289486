"""Columns out of record headers, without Python on the executors.

The last header of a name counts, as in Kafka's own `lastHeader`. What cannot be read becomes null, never an error.
A reader takes the headers of a record apart once, with `apart`, and looks names up in what that returns.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from lapse_spark.records import facts


def newest_first(headers: Column) -> Column:
    """Reverse the headers, so that the functions below find the last one of a name."""
    return F.reverse(headers)


def apart(headers: Column) -> Column:
    """Take headers apart once per row, the newest first: names and values, for many look-ups by the functions below.

    To be used in a `select` of its own, before that of the look-ups.
    """
    return facts.once(F.struct(F.reverse(headers["key"]).alias("key"), F.reverse(headers["value"]).alias("value")))


def oldest_first(headers: Column) -> Column:
    """Turn what `apart` returned round: the functions below find the first one of a name."""
    return F.struct(F.reverse(headers["key"]).alias("key"), F.reverse(headers["value"]).alias("value"))


def present(headers: Column, name: str) -> Column:
    """Whether a header of the name is there; false for a record without headers."""
    return F.coalesce(F.array_contains(headers["key"], name), F.lit(False))


def value(headers: Column, name: str | Column) -> Column:
    """Its bytes; null where the header is missing.

    Args:
        headers: as `newest_first` or `apart` returns them.
        name: of the header; null is the name of none.
    """
    # `get` counts from 0 and gives null beyond the ends, `array_position` counts from 1 and gives 0 for none.
    return F.get(headers["value"], F.array_position(headers["key"], name).cast("int") - 1)


def text(headers: Column, name: str | Column) -> Column:
    """Its bytes as UTF-8 text; what is not UTF-8 becomes U+FFFD."""
    return F.make_valid_utf8(value(headers, name).cast("string"))


def number(headers: Column, name: str | Column) -> Column:
    """Its decimal text as a 64-bit number; null where it has anything but 1 to 19 ASCII digits, or does not fit."""
    return F.regexp_extract(value(headers, name).cast("string"), r"^[0-9]{1,19}\z", 0).try_cast("bigint")


def count(headers: Column, name: str | Column) -> Column:
    """Its decimal text as a 32-bit number; null where it cannot be read or does not fit."""
    return number(headers, name).try_cast("int")


def big_endian(headers: Column, name: str | Column, width: int) -> Column:
    """Its binary number, not negative, as Spring writes them; null where it has another width than `width` bytes."""
    found = value(headers, name)
    return F.when(F.length(found) == width, F.conv(F.hex(found), 16, 10).try_cast("bigint"))
