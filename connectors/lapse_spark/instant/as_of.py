"""A SOW topic as of an instant: the records that it had then, from the topic of its state alone (D7)."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse_client.reading.instant import shown
from lapse_spark.records import sow

TOMBSTONES_KEPT_MS = 7 * 86_400_000
"""Kafka keeps the tombstones of a SOW topic's state at least so long, ms (`delete.retention.ms`)."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """What Kafka has removed from the topic of the state, and what that leaves open.

    Attributes:
        removed: records at or before the instant that are no longer in the topic, over all partitions.
        unclear_keys: keys whose first record that is left is later than the instant, where records were removed. They
            may have had another record then.
        tombstones_kept: whether a key that was deleted since has left its tombstone for certain.
    """

    removed: int
    unclear_keys: int
    tombstones_kept: bool

    @property
    def complete(self) -> bool:
        """Whether the records are all that there were."""
        return not self.removed or (not self.unclear_keys and self.tombstones_kept)

    @property
    def sentence(self) -> str:
        """What is missing, in words; empty when nothing is."""
        if self.complete:
            return ""
        older = "" if self.tombstones_kept else ", and so may keys that were deleted since and left no tombstone"
        return (
            f"Kafka's compaction has removed {self.removed:,} records at or before this instant; {self.unclear_keys:,} "
            f"keys may have had a record then that is not told{older}. Ask for a later instant."
        )


def records(updates: DataFrame, at_ms: int, acts: bool = True) -> DataFrame:
    """The records of a SOW topic as of an instant (`schema.SOW`).

    An update counts from the instant at which Kafka stored it in the topic of the state. What has expired by the
    instant does not count, though its tombstone may be later.

    Args:
        updates: as `sow.parse` returns them.
        at_ms: the instant, ms since the epoch.
        acts: whether the SOW topic acted on lifetimes then; if not, records past their deadlines were there (L6, L9).
    """
    return sow.current(_until(updates, at_ms), at_ms if acts else None)


def gaps(updates: DataFrame, at_ms: int, now_ms: int) -> Gaps:
    """What has been removed of the updates until an instant. Each partition begins at offset 0.

    Args:
        updates: as `sow.parse` returns them.
        at_ms: the instant, ms since the epoch.
        now_ms: the broker's time, ms since the epoch.
    """
    later = F.unix_millis("updated_at") > at_ms
    by_partition = updates.groupBy("partition").agg(
        F.min(F.when(later, F.col("offset"))).alias("_end"), F.count(F.when(~later, 1)).alias("_left")
    )
    # Where nothing came later, each record that was removed had a later one until the instant.
    removed = by_partition.select("partition", (F.col("_end") - F.col("_left")).alias("removed")).where("removed > 0")
    first = updates.where(F.col("fault").isNull()).groupBy("partition", "key").agg(F.min("updated_at").alias("_first"))
    unclear = first.where(F.unix_millis("_first") > at_ms).join(F.broadcast(removed), "partition", "left_semi")
    total = removed.agg(F.coalesce(F.sum("removed"), F.lit(0)).alias("total")).collect()[0]["total"]
    return Gaps(int(total), unclear.count() if total else 0, at_ms > now_ms - TOMBSTONES_KEPT_MS)


def check(at_ms: int, now_ms: int) -> None:
    """Refuse an instant that has not come; `now_ms` is the broker's time, both in ms since the epoch.

    Raises:
        ValueError: it has not.
    """
    if at_ms > now_ms:
        raise ValueError(f"--at {shown(at_ms)} is in the future: the broker's time is {shown(now_ms)} (UTC)")


def _until(updates: DataFrame, at_ms: int) -> DataFrame:
    return updates.where(F.unix_millis("updated_at") <= at_ms)
