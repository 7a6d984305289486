"""The audit of redrives: which letters were sent when, so that none is sent by two runs (D5).

A letter stays on its dead-letter topic after it was redriven. Each run writes what it is about to send, sends it, and
says that it is done. What a run has written without coming so far, the next one that chooses it sends again, with the
same message ids.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from lapse_spark import redrive
from lapse_spark.connection import Connection
from lapse_spark.output import Output
from lapse_spark.redrive import Choice, Target

_SLICE_S: Final = 5
"""With a rate, so much is sent at a time: a Spark job for each message would be slower than any rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What a run has done, or would do.

    Attributes:
        sent: letters sent, or that would be.
        refused: letters chosen and refused (loop limit).
        deadline_passed: of those sent, how many had a deadline that has passed (C30).
        earlier: letters that an earlier run of this audit has sent, and that were left out.
        groups: the same by entity, reasons and target.
        dry_run: whether nothing was sent.
    """

    sent: int
    refused: int
    deadline_passed: int
    earlier: int
    groups: list[dict[str, Any]]
    dry_run: bool


def run(
    spark: SparkSession,
    connection: Connection,
    letters: DataFrame,
    choice: Choice,
    target: Target,
    *,
    path: str,
    now_ms: int,
    dry_run: bool = True,
    rate: int | None = None,
    limit: int | None = None,
) -> Redriven:
    """Choose letters, leave out what was redriven before, and send the rest.

    Args:
        spark: the session.
        connection: the cluster.
        letters: `schema.DEAD_LETTER`, from the topics or an archive.
        choice: which of them.
        target: where to, with which lifetime.
        path: of the audit; the same for all redrives of an installation.
        now_ms: the instant of the run, ms since the epoch; it names the run.
        dry_run: only count.
        rate: most messages in a second; None = as fast as Kafka takes them.
        limit: most messages in all, the oldest letters first; None = all.
    """
    output = Output(spark, path)
    done, before = output.read("done"), output.read("sent")
    finished = None if done is None or before is None else before.join(done.select("batch_id"), "batch_id", "left_semi")
    chosen = redrive.choose(letters, choice)
    earlier = 0
    if finished is not None:
        ids = finished.select("id").distinct()
        earlier = chosen.join(ids, "id", "left_semi").count()
        chosen = chosen.join(ids, "id", "left_anti")
    if limit is not None:
        passed = chosen.where(F.col("refused").isNull()).orderBy("died_at", "letter_offset").limit(limit)
        chosen = passed.unionByName(chosen.where(F.col("refused").isNotNull()))
    chosen = chosen.persist()
    try:
        groups = [row.asDict() for row in redrive.plan(chosen, target, now_ms).collect()]
        passed = chosen.where(F.col("refused").isNull())
        if not dry_run and any(group["refused"] is None for group in groups):
            at = F.timestamp_millis(F.lit(now_ms))
            output.write("sent", passed.select("id", "entity", "died_at"), at, now_ms)
            _send(passed, target, connection, rate)
            output.write("done", spark.range(1).select(F.lit(now_ms).alias("at_ms")), at, now_ms)
    finally:
        chosen.unpersist()
    sent = [group for group in groups if group["refused"] is None]
    return Redriven(
        sent=sum(group["letters"] for group in sent),
        refused=sum(group["letters"] for group in groups if group["refused"] is not None),
        deadline_passed=sum(group["deadline_passed"] for group in sent),
        earlier=earlier,
        groups=groups,
        dry_run=dry_run,
    )


def _send(passed: DataFrame, target: Target, connection: Connection, rate: int | None) -> None:
    if rate is None:
        redrive.send(redrive.records(passed, target), connection)
        return
    order = Window.orderBy("died_at", "letter_topic", "letter_partition", "letter_offset")
    piece = F.floor((F.row_number().over(order) - 1) / (rate * _SLICE_S)).alias("_slice")
    sliced = passed.select("*", piece).persist()
    try:
        slices = int((sliced.agg(F.max("_slice")).head() or [0])[0] or 0) + 1
        begin = time.monotonic()
        for number in range(slices):
            time.sleep(max(0.0, begin + number * _SLICE_S - time.monotonic()))
            redrive.send(redrive.records(sliced.where(F.col("_slice") == number), target), connection)
    finally:
        sliced.unpersist()
