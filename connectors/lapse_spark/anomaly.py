"""Anomalies: windows in which far more died than in those before, and how many die in a minute."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

BASELINE: Final = 24
"""Windows before a window that it is compared with."""
AT_LEAST: Final = 10
"""Fewer letters in a window are never unusual."""
SIGMAS: Final = 4.0
_LEAST_HISTORY: Final = 3


def rates(counted: DataFrame) -> DataFrame:
    """Letters by entity and window, and in a minute, whatever their reasons.

    Args:
        counted: from `monitor.counts` or `monitor.totals`.

    Returns:
        entity, window_start, window_end, letters, per_minute.
    """
    minutes = (F.unix_millis("window_end") - F.unix_millis("window_start")) / 60_000
    return (
        counted.groupBy("entity", "window_start", "window_end")
        .agg(F.sum("letters").alias("letters"))
        .withColumn("per_minute", F.col("letters") / minutes)
    )


def unusual(
    counted: DataFrame, *, baseline: int = BASELINE, at_least: int = AT_LEAST, sigmas: float = SIGMAS
) -> DataFrame:
    """Windows with more letters than the windows before let expect.

    What is expected is the mean of the windows before, those without a letter included. The score is how far a window
    is above it, in standard deviations; for few letters in those of a Poisson process. A window is judged once there
    are three before it, of any entity.

    Args:
        counted: from `monitor.counts` or `monitor.totals`.
        baseline: how many windows before it a window is compared with.
        at_least: fewer letters are never unusual.
        sigmas: the least score.

    Returns:
        entity, window_start, window_end, letters, per_minute, expected, score; the highest scores first.
    """
    start_ms, length_ms = F.unix_millis("window_start"), F.unix_millis("window_end") - F.unix_millis("window_start")
    numbered = rates(counted).withColumn("_number", F.floor(start_ms / length_ms))
    first = numbered.agg(F.min("_number").alias("_first"))
    before = Window.partitionBy("entity").orderBy("_number").rangeBetween(-baseline, -1)
    # Windows without a letter are no rows: they are in the number of windows only.
    windows = F.least(F.lit(baseline), F.col("_number") - F.col("_first"))
    mean = F.coalesce(F.sum("letters").over(before), F.lit(0)) / F.greatest(windows, F.lit(1))
    square = F.coalesce(F.sum(F.col("letters") * F.col("letters")).over(before), F.lit(0)) / F.greatest(
        windows, F.lit(1)
    )
    judged = numbered.crossJoin(F.broadcast(first)).withColumns({"expected": mean, "_square": square, "_told": windows})
    spread = F.sqrt(F.greatest(F.col("_square") - F.col("expected") * F.col("expected"), F.col("expected"), F.lit(1.0)))
    return (
        judged.withColumn("score", (F.col("letters") - F.col("expected")) / spread)
        .where((F.col("_told") >= _LEAST_HISTORY) & (F.col("letters") >= at_least) & (F.col("score") >= sigmas))
        .select("entity", "window_start", "window_end", "letters", "per_minute", "expected", "score")
        .orderBy(F.desc("score"), "entity", "window_start")
    )
