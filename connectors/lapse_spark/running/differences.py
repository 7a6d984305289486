"""The differences after a batch, and their reports (D8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame, Row
from pyspark.sql import functions as F

from lapse_spark.account.verdict import Difference
from lapse_spark.running import block, doubt


@dataclass(frozen=True, slots=True)
class Differences:
    """The differences after a batch.

    Attributes:
        doubts: differences from `doubt.carry_differences`.
        kinds: number of messages by partition, difference, and whether it is reported, with the earliest beginning and
            the first offset.
        ahead: facts about messages beyond the log's end; None = none.
        beyond: those of `ahead` that have lasted for the grace.
    """

    doubts: DataFrame
    kinds: Sequence[Row]
    ahead: DataFrame | None
    beyond: DataFrame | None

    @classmethod
    def of(cls, doubts: DataFrame, ahead: DataFrame | None, lasting_since_ms: int) -> Differences:
        """Count the differences.

        Args:
            doubts: differences from `doubt.carry_differences`.
            ahead: ranges beyond the log's end; None = none.
            lasting_since_ms: ranges that exist since this instant, ms since the epoch, count as lasting.
        """
        base = F.substring_index("topic", "~", 1).alias("topic")
        first = F.element_at(block.offsets(F.col("block"), F.col("mask")), 1)
        kinds = doubts.groupBy("reported", "difference", base, "partition").agg(
            F.sum(F.bit_count("mask")).alias("messages"),
            F.min("since_ms").alias("since_ms"),
            F.min(first).alias("first"),
        )
        return cls(doubts, kinds.collect(), ahead, lasting_beyond_log(ahead, lasting_since_ms))

    @property
    def has_reported(self) -> bool:
        """Whether any difference is reported."""
        return any(row["reported"] for row in self.kinds)

    @property
    def in_doubt(self) -> int:
        """The number of messages in doubt that are not reported yet."""
        return sum(row["messages"] for row in self.kinds if not row["reported"])

    @property
    def is_on_list(self) -> bool:
        """Whether the queue's own list differs from the topics."""
        return any(row["difference"] in doubt.BY_LIST for row in self.kinds)

    def since_ms(self) -> list[int]:
        """Return when differences between the topics began, ms since the epoch."""
        found = [row["since_ms"] for row in self.kinds if row["difference"] not in doubt.BY_LIST]
        if self.ahead is not None:
            found.append(self.ahead.agg(F.min("since_ms")).collect()[0][0])
        return found

    def messages_by_difference(self) -> Counter[str]:
        """Return the number of messages by reported difference."""
        found: Counter[str] = Counter()
        for row in self.kinds:
            found[row["difference"]] += row["messages"] if row["reported"] else 0
        if self.beyond is not None:
            # Decimal, because damaged ranges may have more offsets than 64 bits can count.
            width = (F.col("last") - F.col("first") + 1).cast("decimal(20,0)")
            found[Difference.NOT_PUBLISHED.value] += int(self.beyond.agg(F.sum(width)).collect()[0][0] or 0)
        return +found

    def first_reported(self, shown: int) -> list[dict[str, str]]:
        """Return the first `shown` reported differences, with bookmarks."""
        rows = doubt.to_messages(self.doubts.where("reported"))
        if self.beyond is not None:
            rows = rows.unionByName(self.beyond)
        first = rows.orderBy("topic", "partition", "first").limit(shown)
        return [row.asDict() for row in doubt.to_words(first).collect()]

    def first_offsets(self) -> dict[tuple[str, int], int]:
        """Return the first offset with a difference in each underlying partition."""
        found: dict[tuple[str, int], int] = {}
        for row in self.kinds:
            place = row["topic"], row["partition"]
            found[place] = min(row["first"], found.get(place, row["first"]))
        return found

    def find_changes(self, doubted: DataFrame | None, was: DataFrame | None) -> DataFrame | None:
        """Return newly reported and withdrawn differences; None if there are none.

        Args:
            doubted: the differences of the last batch; None = it reported none.
            was: `lasting_beyond_log` of the last batch.
        """
        parts = []
        if doubted is not None or self.has_reported:
            parts.append(doubt.find_changes(self.doubts, doubted))
        for some, others, what in ((self.beyond, was, doubt.FOUND), (was, self.beyond, doubt.WITHDRAWN)):
            if some is not None:
                rest = some if others is None else some.subtract(others)
                parts.append(rest.withColumn("news", F.lit(what)))
        if not parts:
            return None
        found, *rest_of = parts
        for part in rest_of:
            found = found.unionByName(part)
        return doubt.to_words(found)


def lasting_beyond_log(ahead: DataFrame | None, since_ms: int) -> DataFrame | None:
    """Return the ranges that have been beyond the log's end since an instant, or longer; None without any."""
    return None if ahead is None else doubt.differences_beyond_log(ahead.where(F.col("since_ms") <= since_ms))
