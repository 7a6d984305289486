"""Columns from record headers, without Python on the executors.

The last header of a name counts, as in Kafka's own `lastHeader`. Unreadable values become null, never an error. A
reader separates the headers of a record once, with `split_headers`, and looks up names in its result.
"""

from __future__ import annotations

from pyspark.sql import Column
from pyspark.sql import functions as F

from lapse_spark.records import facts


def newest_first(headers: Column) -> Column:
    """Reverse the headers, so that the functions below find the last one of a name."""
    return F.reverse(headers)


def split_headers(headers: Column) -> Column:
    """Separate headers into names and values, the newest first, for many look-ups by the functions below.

    Use it in a `select` of its own, before that of the look-ups.
    """
    return facts.compute_once(
        F.struct(F.reverse(headers["key"]).alias("key"), F.reverse(headers["value"]).alias("value"))
    )


def oldest_first(headers: Column) -> Column:
    """Reverse the result of `split_headers`, so that the functions below find the first header of a name."""
    return F.struct(F.reverse(headers["key"]).alias("key"), F.reverse(headers["value"]).alias("value"))


def present(headers: Column, name: str) -> Column:
    """Return whether a record has a header of the name; false for a record without headers."""
    return F.coalesce(F.array_contains(headers["key"], name), F.lit(False))


def value(headers: Column, name: str | Column) -> Column:
    """Return the bytes of a header; null if it is missing.

    Args:
        headers: headers from `newest_first` or `split_headers`.
        name: name of the header; null matches no header.
    """
    # `get` counts from 0 and returns null beyond the ends; `array_position` counts from 1 and returns 0 for none.
    return F.get(headers["value"], F.array_position(headers["key"], name).cast("int") - 1)


def text(headers: Column, name: str | Column) -> Column:
    """Return a header as UTF-8 text. Bytes that are not UTF-8 become U+FFFD."""
    return F.make_valid_utf8(value(headers, name).cast("string"))


def number(headers: Column, name: str | Column) -> Column:
    """Return a header's decimal text as a 64-bit number; null unless it has 1 to 19 ASCII digits, and fits."""
    return F.regexp_extract(value(headers, name).cast("string"), r"^[0-9]{1,19}\z", 0).try_cast("bigint")


def count(headers: Column, name: str | Column) -> Column:
    """Return a header's decimal text as a 32-bit number; null if it cannot be read or does not fit."""
    return number(headers, name).try_cast("int")


def big_endian(headers: Column, name: str | Column, width: int) -> Column:
    """Return a header's non-negative binary number, as Spring writes it; null unless it has `width` bytes."""
    found = value(headers, name)
    return F.when(F.length(found) == width, F.conv(F.hex(found), 16, 10).try_cast("bigint"))
