"""A SOW topic as of an instant: its records at that time, from its compacted topic alone (D7)."""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from lapse.core.shard.event import EventKind
from lapse_client.reading.instant import shown
from lapse_spark.records import event, sow

TOMBSTONES_KEPT_MS = 7 * 86_400_000
"""How long Kafka keeps the tombstones of a SOW topic's compacted topic at least, in ms (`delete.retention.ms`)."""


@dataclass(frozen=True, slots=True)
class Gaps:
    """The records that Kafka has removed from the compacted topic, and what is unknown because of that.

    Attributes:
        removed: number of records at or before the instant that are no longer in the topic, over all partitions.
        unclear_keys: number of keys whose first remaining record is later than the instant, in partitions with removed
            records. They may have had another record then.
        tombstones_kept: whether the tombstones of all keys that were deleted since are certainly kept.
    """

    removed: int
    unclear_keys: int
    tombstones_kept: bool

    @property
    def complete(self) -> bool:
        """Whether the records are complete."""
        return not self.removed or (not self.unclear_keys and self.tombstones_kept)

    @property
    def sentence(self) -> str:
        """A text that says what is missing; empty if nothing is."""
        if self.complete:
            return ""
        older = "" if self.tombstones_kept else ", and so may keys that were deleted since and left no tombstone"
        return (
            f"Kafka's compaction has removed {self.removed:,} records at or before this instant; {self.unclear_keys:,} "
            f"keys may have had a record then that is not shown{older}. Ask for a later instant."
        )


def records(updates: DataFrame, at_ms: int, acts: bool = True) -> DataFrame:
    """Return the records of a SOW topic as of an instant (`schema.SOW`).

    An update counts from the instant at which Kafka stored it in the compacted topic. A record whose deadline has
    passed by the instant does not count, even if its tombstone is later.

    Args:
        updates: updates from `sow.parse`.
        at_ms: the instant, ms since the epoch.
        acts: whether the SOW topic enforced lifetimes then. If not, records past their deadlines count (L6, L9).
    """
    return sow.current(_updated_until(updates, at_ms), at_ms if acts else None)


def gaps(updates: DataFrame, at_ms: int, now_ms: int) -> Gaps:
    """Return what has been removed of the updates until an instant. Each partition began at offset 0.

    Args:
        updates: updates from `sow.parse`.
        at_ms: the instant, ms since the epoch.
        now_ms: the broker's time, ms since the epoch.
    """
    later = F.unix_millis("updated_at") > at_ms
    by_partition = updates.groupBy("partition").agg(
        F.min(F.when(later, F.col("offset"))).alias("_end"), F.count(F.when(~later, 1)).alias("_left")
    )
    # If nothing came later, each removed record was replaced by one before the instant.
    removed = by_partition.select("partition", (F.col("_end") - F.col("_left")).alias("removed")).where("removed > 0")
    first = updates.where(F.col("fault").isNull()).groupBy("partition", "key").agg(F.min("updated_at").alias("_first"))
    unclear = first.where(F.unix_millis("_first") > at_ms).join(F.broadcast(removed), "partition", "left_semi")
    total = removed.agg(F.coalesce(F.sum("removed"), F.lit(0)).alias("total")).collect()[0]["total"]
    return Gaps(int(total), unclear.count() if total else 0, at_ms > now_ms - TOMBSTONES_KEPT_MS)


def deletion(raw: DataFrame, at_ms: int) -> str:
    """Return a text that says when the entity was deleted after an instant; empty if it never was.

    If it was created again since, its journal and its compacted topic begin only then.

    Args:
        raw: records of the entity's events topic (`schema.RAW`), at least those from the instant on.
        at_ms: the instant, ms since the epoch.
    """
    # Most events have another kind. Their bytes lack its name, so they are not decoded. Usually all of them do.
    named = raw.where(F.contains("value", F.lit(EventKind.DELETED.value.encode())))
    if not named.select("offset").head(1):
        return ""
    events = event.parse(named)
    of_the_entity = (F.col("event") == EventKind.DELETED.value) & (F.coalesce(F.size("messages"), F.lit(0)) <= 0)
    later = events.where(of_the_entity & (F.col("at_ms") > at_ms))
    first_ms = later.agg(F.min("at_ms").alias("first_ms")).collect()[0]["first_ms"]
    if first_ms is None:
        return ""
    return f"it was deleted at {shown(first_ms)}, and what it had before that is gone. Ask for a later instant."


def check(at_ms: int, now_ms: int) -> None:
    """Refuse an instant in the future. `now_ms` is the broker's time; both are ms since the epoch.

    Raises:
        ValueError: the instant is in the future.
    """
    if at_ms > now_ms:
        raise ValueError(f"--at {shown(at_ms)} is in the future: the broker's time is {shown(now_ms)} (UTC)")


def _updated_until(updates: DataFrame, at_ms: int) -> DataFrame:
    return updates.where(F.unix_millis("updated_at") <= at_ms)
