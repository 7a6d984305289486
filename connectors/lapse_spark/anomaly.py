"""Anomalies: windows with far more dead letters than before, and letters per minute."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

BASELINE: Final = 24
"""The number of earlier windows with which a window is compared."""
AT_LEAST: Final = 10
"""The least letters in a window that can be unusual."""
SIGMAS: Final = 4.0
_LEAST_HISTORY: Final = 3


def rates(counted: DataFrame) -> DataFrame:
    """Return letters by entity and window, and per minute, over all reasons.

    Args:
        counted: counts from `monitor.counts` or `monitor.totals`.

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
    """Return windows with more letters than expected from the windows before.

    The expected number is the mean of the windows before, those without letters included. The score is the distance
    from it in standard deviations, at least those of a Poisson process. A window is judged if there are three windows
    before it, of any entity.

    Args:
        counted: counts from `monitor.counts` or `monitor.totals`.
        baseline: number of earlier windows with which a window is compared.
        at_least: the least letters in an unusual window.
        sigmas: the least score of an unusual window.

    Returns:
        entity, window_start, window_end, letters, per_minute, expected, score; the highest scores first.
    """
    start_ms, length_ms = F.unix_millis("window_start"), F.unix_millis("window_end") - F.unix_millis("window_start")
    numbered = rates(counted).withColumn("_number", F.floor(start_ms / length_ms))
    first = numbered.agg(F.min("_number").alias("_first"))
    before = Window.partitionBy("entity").orderBy("_number").rangeBetween(-baseline, -1)
    # Windows without letters have no rows, but count in the number of windows.
    windows = F.least(F.lit(baseline), F.col("_number") - F.col("_first"))
    mean = F.coalesce(F.sum("letters").over(before), F.lit(0)) / F.greatest(windows, F.lit(1))
    square = F.coalesce(F.sum(F.col("letters") * F.col("letters")).over(before), F.lit(0)) / F.greatest(
        windows, F.lit(1)
    )
    judged = numbered.crossJoin(F.broadcast(first)).withColumns(
        {"expected": mean, "_square": square, "_windows": windows}
    )
    spread = F.sqrt(F.greatest(F.col("_square") - F.col("expected") * F.col("expected"), F.col("expected"), F.lit(1.0)))
    return (
        judged.withColumn("score", (F.col("letters") - F.col("expected")) / spread)
        .where((F.col("_windows") >= _LEAST_HISTORY) & (F.col("letters") >= at_least) & (F.col("score") >= sigmas))
        .select("entity", "window_start", "window_end", "letters", "per_minute", "expected", "score")
        .orderBy(F.desc("score"), "entity", "window_start")
    )
