"""Decodes packed deliveries in Spark: which messages one hands out, without their payloads (D4)."""

from __future__ import annotations

from functools import reduce
from typing import Final

from pyspark.sql import Column
from pyspark.sql import functions as F

from lapse.core.lifetime import NEVER
from lapse.protocol.packed_delivery import HEAD, VERSION

_BEGIN: Final = b"LD" + bytes([VERSION])
_FIXED_BYTES: Final = 24
"""Bytes of fixed size per message: offset, timestamp, delivery count, and length of the value."""


def packed_messages(value: Column) -> Column:
    """Return the messages of a packed delivery as a struct of `topic`, `partition`, `ranges` and `deadlines_ms`.

    Args:
        value: value of the record.

    Returns:
        The struct; null if the value is no packed delivery of the known version, or is truncated.
    """
    known = (F.length(value) >= HEAD.size) & (F.substring(value, 1, len(_BEGIN)) == F.lit(_BEGIN))
    count, partition, name_bytes = number(value, 4, 4), number(value, 8, 4), number(value, 12, 2)
    expires = number(value, 3, 1).bitwiseAND(1) == 1
    columns = HEAD.size + name_bytes
    whole = known & (F.length(value) >= columns + count * (_FIXED_BYTES + F.when(expires, 8).otherwise(0)))
    topic = F.decode(F.substring(value, F.lit(HEAD.size + 1), name_bytes.cast("int")), "UTF-8")
    places = F.sequence(F.lit(0), (count - 1).cast("int"))

    def one(place: Column) -> Column:
        offset = number(value, columns + 8 * place, 8)
        times = number(value, columns + 16 * count + 4 * place, 4)
        return F.struct(offset.alias("first"), offset.alias("last"), times.cast("int").alias("delivery_count"))

    def deadline_ms(place: Column) -> Column:
        return F.nullif(number(value, columns + _FIXED_BYTES * count + 8 * place, 8), F.lit(NEVER))

    deadlines_ms = F.when(expires, F.transform(places, deadline_ms)).otherwise(F.array().cast("array<bigint>"))
    read = F.struct(
        topic.alias("topic"),
        partition.cast("int").alias("partition"),
        F.transform(places, one).alias("ranges"),
        deadlines_ms.alias("deadlines_ms"),
    )
    return F.when(whole & (count > 0), read)


def number(data: Column, first: Column | int, width: int) -> Column:
    """Return a little-endian number; null if it has more than 63 bits.

    Args:
        data: binary column.
        first: index of the number's first byte, from 0.
        width: size of the number, in bytes.
    """
    begin = first if isinstance(first, Column) else F.lit(first)
    digits = F.hex(F.substring(data, (begin + 1).cast("int"), F.lit(width)))
    octets = [F.substring(digits, 2 * octet - 1, 2) for octet in range(width, 0, -1)]
    return F.conv(reduce(F.concat, octets), 16, 10).try_cast("bigint")
