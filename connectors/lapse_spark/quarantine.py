"""Quarantine: records that do not belong on their topic are set aside with the fault, and never lost (X7)."""

from __future__ import annotations

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse_spark import schema


class Quarantined(RuntimeError):
    """A strict job has found a record that cannot be read."""


_PLACES = (
    ("letter_topic", "letter_partition", "letter_offset", "letter_at"),
    ("event_topic", "event_partition", "event_offset", "event_at"),
    ("delivery_topic", "delivery_partition", "delivery_offset", "delivered_at"),
    ("topic", "partition", "offset", "updated_at"),
)


def split(read: DataFrame) -> tuple[DataFrame, DataFrame]:
    """Split a reader's records into readable ones (with its columns) and the rest (`schema.QUARANTINE`)."""
    place = next(names for names in _PLACES if names[3] in read.columns)
    renamed = dict(zip(("topic", "partition", "offset", "timestamp"), place, strict=True))
    aside = read.where(F.col("fault").isNotNull()).select(
        *(F.col(renamed.get(name, name)).alias(name) for name in schema.QUARANTINE.names)
    )
    return read.where(F.col("fault").isNull()), schema.conform(aside, schema.QUARANTINE)


def without_bytes(read: DataFrame) -> DataFrame:
    """Drop value and headers of readable records, so that records are small to keep. `split` still works."""
    bad = F.col("fault").isNotNull()
    return read.withColumns({name: F.when(bad, F.col(name)) for name in ("value", "headers")})


def refuse_faults(aside: DataFrame) -> None:
    """Fail if there is a record in quarantine; batch only.

    Raises:
        Quarantined: there is a record; the text names it and its fault.
    """
    first = aside.select("topic", "partition", "offset", "fault").head(1)
    if first:
        topic, partition, offset, fault = first[0]
        raise Quarantined(
            f"{topic}:{partition}:{offset}: {fault}. Without --strict such records are put in quarantine and counted."
        )
