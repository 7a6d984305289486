"""Quarantine: records that are not what their topic should hold are put aside with the reason, never lost (X7)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse_spark import schema


class Quarantined(RuntimeError):
    """A job was asked to be strict and met records that cannot be read."""


_PLACES = (
    ("letter_topic", "letter_partition", "letter_offset", "letter_at"),
    ("event_topic", "event_partition", "event_offset", "event_at"),
    ("delivery_topic", "delivery_partition", "delivery_offset", "delivered_at"),
    ("topic", "partition", "offset", "updated_at"),
)


def split(read: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Part what a reader returned into readable records (its own columns) and the rest (`schema.QUARANTINE`)."""
    place = next(names for names in _PLACES if names[3] in read.columns)
    renamed = dict(zip(("topic", "partition", "offset", "timestamp"), place, strict=True))
    aside = read.where(F.col("fault").isNotNull()).select(
        *(F.col(renamed.get(name, name)).alias(name) for name in schema.QUARANTINE.names)
    )
    return read.where(F.col("fault").isNull()), schema.conform(aside, schema.QUARANTINE)


def without_bytes(read: DataFrame) -> DataFrame:
    """Leave out value and headers of readable records: small to keep, and enough for `split`."""
    bad = F.col("fault").isNotNull()
    return read.withColumns({name: F.when(bad, F.col(name)) for name in ("value", "headers")})


def refuse(aside: DataFrame) -> None:
    """End a strict job at the first record in quarantine; batch only.

    Raises:
        Quarantined: there is one; the message names it and its fault.
    """
    first = aside.select("topic", "partition", "offset", "fault").head(1)
    if first:
        topic, partition, offset, fault = first[0]
        raise Quarantined(
            f"{topic}:{partition}:{offset}: {fault}. Without --strict such records are put in quarantine and counted."
        )
