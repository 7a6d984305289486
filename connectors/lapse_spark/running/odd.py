"""What does not add up after a batch, and how it is told (D8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lapse_spark.account.verdict import Difference
from lapse_spark.running import block, doubt


@dataclass(frozen=True, slots=True)
class Odd:
    """What does not add up after a batch.

    Attributes:
        doubts: from `doubt.carried`.
        kinds: how many messages of them are of which difference, told or not, and since when.
        ahead: what is told of messages beyond the log's end; None = nothing.
        beyond: of those what has lasted for the grace.
    """

    doubts: DataFrame
    kinds: Sequence[Row]
    ahead: DataFrame | None
    beyond: DataFrame | None

    @classmethod
    def of(cls, doubts: DataFrame, ahead: DataFrame | None, lasting_since_ms: int) -> Odd:
        """Count what is in doubt.

        Args:
            doubts: from `doubt.carried`.
            ahead: ranges beyond the log's end.
            lasting_since_ms: those that have been there since then count, ms since the epoch.
        """
        kinds = doubts.groupBy("told", "difference").agg(
            F.sum(F.bit_count("mask")).alias("messages"), F.min("since_ms").alias("since_ms")
        )
        return cls(doubts, kinds.collect(), ahead, beyond(ahead, lasting_since_ms))

    @property
    def in_doubt(self) -> int:
        """How many messages are in doubt, and not told yet."""
        return sum(row["messages"] for row in self.kinds if not row["told"])

    @property
    def is_on_list(self) -> bool:
        """Whether the queue's own list says otherwise than the topics."""
        return any(row["difference"] in doubt.BY_LIST for row in self.kinds)

    def since_ms(self) -> list[int]:
        """Since when something does not add up by the topics, ms since the epoch."""
        found = [row["since_ms"] for row in self.kinds if row["difference"] not in doubt.BY_LIST]
        if self.ahead is not None:
            found.append(self.ahead.agg(F.min("since_ms")).collect()[0][0])
        return found

    def told(self) -> Counter[str]:
        """How many messages differ in which way, of what is told."""
        found: Counter[str] = Counter()
        for row in self.kinds:
            found[row["difference"]] += row["messages"] if row["told"] else 0
        if self.beyond is not None:
            # Decimal: damaged ranges may name more offsets than 64 bits can count.
            width = (F.col("last") - F.col("first") + 1).cast("decimal(20,0)")
            found[Difference.NOT_PUBLISHED.value] += int(self.beyond.agg(F.sum(width)).collect()[0][0] or 0)
        return +found

    def named(self, shown: int) -> list[dict[str, str]]:
        """The first of what is told, with bookmarks."""
        rows = doubt.named(self.doubts.where("told"))
        if self.beyond is not None:
            rows = rows.unionByName(self.beyond)
        first = rows.orderBy("topic", "partition", "first").limit(shown)
        return [row.asDict() for row in doubt.in_words(first).collect()]

    def first_offsets(self) -> dict[tuple[str, int], int]:
        """The first message of each underlying partition about which something does not add up."""
        if not self.kinds:
            return {}
        first = F.element_at(block.offsets(F.col("block"), F.col("mask")), 1)
        base = F.substring_index("topic", "~", 1).alias("topic")
        rows = self.doubts.groupBy(base, "partition").agg(F.min(first).alias("first")).collect()
        return {(row["topic"], row["partition"]): row["first"] for row in rows}

    def news(self, doubted: DataFrame | None, was: DataFrame | None) -> DataFrame | None:
        """What is told for the first time, and what is withdrawn; None = nothing.

        Args:
            doubted: the doubts of the last batch.
            was: what had been ahead of the log's end for the grace then.
        """
        parts = []
        if self.kinds or doubted is not None:
            parts.append(doubt.news(self.doubts, doubted))
        for some, others, what in ((self.beyond, was, doubt.FOUND), (was, self.beyond, doubt.WITHDRAWN)):
            if some is not None:
                rest = some if others is None else some.subtract(others)
                parts.append(rest.withColumn("news", F.lit(what)))
        if not parts:
            return None
        found, *rest_of = parts
        for part in rest_of:
            found = found.unionByName(part)
        return doubt.in_words(found)


def beyond(ahead: DataFrame | None, since_ms: int) -> DataFrame | None:
    """What has been ahead of the log's end since an instant, or longer."""
    return None if ahead is None else doubt.unpublished(ahead.where(F.col("since_ms") <= since_ms))
