"""What if: an estimate of how many expired messages would have been handed out with another lifetime.

An expired message gets the place that it would have had if nothing had expired. Its turn comes after all earlier
messages, at the pace at which its partition handed out waiting messages, and not while nobody took any. So the estimate
includes times without consumers, and the extra work of the expired messages. It assumes that the partition hands out in
the order of arrival.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from lapse.core.reason import Reason
from lapse_spark import local_rows

TIMES: Final = (1.5, 2.0, 3.0, 5.0, 10.0)
"""The default factors for other lifetimes."""

_PLACE: Final = ("entity", "topic", "partition")
_PACE: Final = "entity string, topic string, partition int, _gap double, _most bigint"
_ASKED: Final = "entity string, instead_of_ms bigint, lifetime_ms bigint"


def needed_lifetimes(lives: DataFrame) -> DataFrame:
    """Return the lifetime that each expired message would have needed. The pace of each partition is computed at once.

    Args:
        lives: lives from `lives.lives` with messages. With deliveries, too, the result is more exact: without them a
            message counts as handed out when it was settled.

    Returns:
        entity, topic, partition, offset, lived_ms, needed_ms (null: its partition handed out nothing any more).
    """
    expired = F.contains(F.col("reasons"), F.lit(Reason.TIME_LIMIT.value)) & F.col("reached_at_ms").isNull()
    each = (
        lives.where(F.col("arrived_at_ms").isNotNull())
        .withColumn("_expired", F.coalesce(expired, F.lit(False)))
        .where(F.col("_expired") | F.col("reached_at_ms").isNotNull())
        .withColumn("_at", F.coalesce("reached_at_ms", "fate_at_ms"))
    )
    by_time = Window.partitionBy(*_PLACE).orderBy("_at").rangeBetween(Window.unboundedPreceding, 0)
    back_in_time = Window.partitionBy(*_PLACE).orderBy(F.desc("_at")).rangeBetween(Window.unboundedPreceding, 0)
    # Rows of the driver: a join with a plan over the same lives would have Spark plan these several times.
    pace = local_rows.frame(lives.sparkSession, [tuple(row) for row in _pace(each).collect()], _PACE)
    paced = each.join(F.broadcast(pace), list(_PLACE), "left").withColumns(
        {"_before": F.max("reached_at_ms").over(by_time), "_next": F.min("reached_at_ms").over(back_in_time)}
    )
    # A consumer that had just taken a message would have taken this one, too. Else it waits for the next delivery.
    at_work = F.col("_at") - F.col("_before") <= 2 * F.col("_most")
    could = F.when(F.col("_expired") & at_work, F.col("_at")).otherwise(F.col("_next"))
    order = Window.partitionBy(*_PLACE).orderBy("offset")
    ahead = F.row_number().over(order) * F.coalesce("_gap", F.lit(0.0))
    turn = F.col("_ahead") + F.max(F.col("_could") - F.col("_ahead")).over(order)
    late = F.greatest(F.ceil(turn - F.col("arrived_at_ms")), F.col("lived_ms") + 1)
    return (
        paced.withColumns({"_could": could, "_ahead": ahead})
        .withColumn("needed_ms", F.when(F.col("_could").isNotNull(), late))
        .where("_expired")
        .select(*_PLACE, "offset", "lived_ms", "needed_ms")
    )


def what_if(missing: DataFrame, lifetimes_ms: Sequence[int] = ()) -> DataFrame:
    """Return how many expired messages would have been handed out in time with other lifetimes.

    Args:
        missing: messages from `needed_lifetimes`.
        lifetimes_ms: the other lifetimes, in ms; empty = the present one times each of `TIMES`.

    Returns:
        entity, lifetime_ms, instead_of_ms (the median of how long they lived), expired, served, share (0 to 1).
    """
    had = missing.groupBy("entity").agg(F.percentile_approx("lived_ms", 0.5).alias("instead_of_ms")).collect()
    asked = [
        (entity, lived_ms, lifetime_ms)
        for entity, lived_ms in had
        for lifetime_ms in dict.fromkeys(lifetimes_ms or (int(lived_ms * times) for times in TIMES))
    ]
    served = F.count(F.when(F.col("needed_ms") <= F.col("lifetime_ms"), 1))
    return (
        missing.join(F.broadcast(local_rows.frame(missing.sparkSession, asked, _ASKED)), "entity")
        .groupBy("entity", "lifetime_ms", "instead_of_ms")
        .agg(F.count("*").alias("expired"), served.alias("served"))
        .withColumn("share", F.col("served") / F.col("expired"))
        .orderBy("entity", "lifetime_ms")
    )


def sentence(entity: str, lifetime_ms: int, instead_of_ms: int, expired: int, share: float) -> str:
    """Return a row of `what_if` as a sentence."""
    return (
        f"{entity}: at {shown(lifetime_ms)} instead of {shown(instead_of_ms)}, {share:.0%} of the {expired:,} expired "
        "would have been served"
    )


def shown(duration_ms: int) -> str:
    """Format a duration: `45 s`, `1.5 h`."""
    for unit, length_ms in (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000)):
        if duration_ms >= (2 if unit == "min" else 1) * length_ms:
            return f"{duration_ms / length_ms:.3g} {unit}"
    return f"{duration_ms} ms"


def _pace(each: DataFrame) -> DataFrame:
    """Return how long a partition takes per waiting message: `_gap` is the mean gap, `_most` a long one, in ms.

    A gap begins when a message could have been handed out: at its arrival, or after the message before. Gaps longer
    than the 90th percentile are cut to it, because a time without consumers says nothing about the pace.
    """
    reached = each.where(F.col("reached_at_ms").isNotNull())
    before = F.lag("reached_at_ms").over(Window.partitionBy(*_PLACE).orderBy("reached_at_ms", "offset"))
    gap = F.greatest(F.col("reached_at_ms") - F.greatest(before, F.col("arrived_at_ms")), F.lit(0))
    gaps = reached.select(*_PLACE, F.when(before.isNotNull(), gap).alias("_one"))
    above = F.when(F.col("_one") > 0, F.col("_one"))
    most = F.percentile_approx(above, 0.9).over(Window.partitionBy(*_PLACE))
    cut = gaps.select(*_PLACE, "_one", most.alias("_most"))
    return cut.groupBy(*_PLACE).agg(F.avg(F.least("_one", "_most")).alias("_gap"), F.first("_most").alias("_most"))
