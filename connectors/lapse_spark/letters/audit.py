"""The audit of redrives: which letters were sent when, so that none is sent by two runs (D5, C58).

What `lapse dlq redrive` has sent counts as well, and it leaves out what is sent here (`redriven`). A letter stays on
its dead-letter topic after it was redriven. Each run writes what it is about to send, sends it, and says that it is
done. Where a run died before that, the next one looks on the target topics for what had arrived, by the message ids,
remembers it, and sends the rest.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from lapse.protocol import header as names
from lapse.protocol.redrive import unfit
from lapse_spark import read
from lapse_spark.connection import Connection
from lapse_spark.letters import newer_records, origins, redrive, redriven, untaken
from lapse_spark.letters.redrive import Choice, Target
from lapse_spark.read import Span
from lapse_spark.records import header
from lapse_spark.stream.output import Output

Hook = Callable[[DataFrame], DataFrame]
"""Changes the records that are about to be sent: the columns of `redrive.records`, in and out."""

_MARGIN_MS: Final = 600_000
"""How far the clocks of Kafka and of the driver may differ."""

_SLICE_S: Final = 5
"""With a rate, so much is sent at a time: a Spark job for each message would be slower than any rate."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """What a run has done, or would do.

    Attributes:
        sent: letters sent, or that would be.
        refused: letters chosen and refused: no payload, unconfirmed transfer, loop limit, newer record (C84), an
            origin that is not there, or a record that its topic does not take.
        deadline_passed: of those sent, how many had a deadline that has passed (C30).
        earlier: letters that an earlier run or `lapse dlq redrive` has sent, and that were left out.
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
    hook: Hook | None = None,
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
        hook: changes records before they are sent; a letter whose record it leaves out counts as sent.

    Raises:
        ValueError: the target is no topic for letters.
    """
    if why := unfit(target.topic):
        raise ValueError(why)
    output = Output(spark, path)
    kept: list[DataFrame] = []

    def keep(data: DataFrame) -> DataFrame:
        """Persist data until the run ends."""
        kept.append(data.persist())
        return kept[-1]

    try:
        known = keep(redriven.sent(spark, connection))
        chosen = keep(redriven.with_history(redrive.choose(letters, choice), known))
        ids = _sent_before(spark, connection, output, now_ms, dry_run)
        earlier = 0
        if not choice.again:
            audited = chosen.limit(0) if ids is None else keep(chosen.join(ids, "id", "left_semi"))
            _catch_up(audited, connection, dry_run)
            before = chosen.where(F.col(redriven.TIMES) > 0).select("id").union(audited.select("id")).distinct()
            earlier = before.count()
            chosen = chosen.join(before, "id", "left_anti")
        judged, batch_bytes = _judged(spark, connection, chosen, target, hook)
        chosen = keep(redrive.refuse(judged, choice))
        if limit is not None:
            passed = chosen.where(F.col("refused").isNull()).orderBy("died_at", "letter_offset").limit(limit)
            chosen = keep(passed.unionByName(chosen.where(F.col("refused").isNotNull())))
        groups = [row.asDict() for row in redrive.plan(chosen, target, now_ms).collect()]
        passed = chosen.where(F.col("refused").isNull())
        if not dry_run and any(group["refused"] is None for group in groups):
            redriven.make_topic(connection)
            at = F.timestamp_millis(F.lit(now_ms))
            to = (F.lit(target.topic) if target.topic else F.col("topic")).alias("target")
            output.write("sent", passed.select("id", "entity", "died_at", to), at, now_ms)
            _send(_Way(connection, target, hook, batch_bytes), passed, rate)
            output.write("done", spark.range(1).select(F.lit(now_ms).alias("at_ms")), at, now_ms)
    finally:
        for data in kept:
            data.unpersist()
    sent = [group for group in groups if group["refused"] is None]
    return Redriven(
        sent=sum(group["letters"] for group in sent),
        refused=sum(group["letters"] for group in groups if group["refused"] is not None),
        deadline_passed=sum(group["deadline_passed"] for group in sent),
        earlier=earlier,
        groups=groups,
        dry_run=dry_run,
    )


def _judged(
    spark: SparkSession, connection: Connection, chosen: DataFrame, target: Target, hook: Hook | None
) -> tuple[DataFrame, int]:
    """Say of letters whether their origin is there and takes them, and whether a SOW topic has a newer record (C84).

    Returns:
        The letters; and how large a batch of records may be.
    """
    if not target.topic:
        chosen = origins.judged(chosen, connection)
    if hook is None:
        judged, batch_bytes = untaken.judged(redrive.with_records(chosen, target), connection)
        chosen = judged.drop(untaken.RECORD)
    else:
        records = _records(chosen.withColumn("refused", F.lit(None)), target, hook)
        chosen, batch_bytes = untaken.judged_by_id(chosen, records, connection)
    entities = [target.topic] if target.topic else [row[0] for row in chosen.select("entity").distinct().collect()]
    if not entities:
        return chosen, batch_bytes
    return newer_records.judged(chosen, newer_records.records(spark, connection, entities), target.topic), batch_bytes


def _catch_up(audited: DataFrame, connection: Connection, dry_run: bool) -> None:
    """Tell `lapse dlq redrive` of letters that a run has sent without coming to say so."""
    untold = audited.where(F.col(redriven.TIMES) == 0)
    if not dry_run and untold.head(1):
        redriven.make_topic(connection)
        redriven.remember(untold, connection)


def _sent_before(
    spark: SparkSession, connection: Connection, output: Output, now_ms: int, dry_run: bool
) -> DataFrame | None:
    """The ids of letters that earlier runs have sent; None where there was no run."""
    sent, done = output.read("sent"), output.read("done")
    if sent is None:
        return None
    whole = sent.limit(0) if done is None else sent.join(done.select("batch_id"), "batch_id", "left_semi")
    ids = whole.select("id")
    if (found := output.read("found")) is not None:
        ids = ids.unionByName(found.select("id"))
    torn = sent.join(ids.select("id").distinct(), "id", "left_anti")
    places = torn.groupBy("target").agg(F.min("batch_id").alias("since")).collect()
    if places:
        arrived = _arrived(spark, connection, [row["target"] for row in places], min(row["since"] for row in places))
        # Persisted: what the topics hold now decides, not what they hold when it is asked again.
        late = torn.select("id").distinct().join(arrived, "id", "left_semi").persist()
        ids = ids.unionByName(late)
        if not dry_run and late.count():
            output.write("found", late, F.timestamp_millis(F.lit(now_ms)), now_ms)
    return ids.distinct()


def _arrived(spark: SparkSession, connection: Connection, targets: list[str], since_ms: int) -> DataFrame:
    """Ids of the letters whose redriven records are on the target topics."""
    pattern = "|".join(re.escape(name) for name in targets)
    span = Span(start_ms=since_ms - _MARGIN_MS, fail_on_data_loss=False)
    headers = header.newest_first(F.col("headers"))
    found = read.records(spark, connection, pattern=pattern, span=span).select(
        header.text(headers, names.MESSAGE_ID).alias("message_id")
    )
    ours = found.select(redriven.letter_of(F.col("message_id")).alias("id"))
    return ours.where(F.col("id").isNotNull()).distinct()


def _records(letters: DataFrame, target: Target, hook: Hook | None) -> DataFrame:
    plain = redrive.records(letters, target)
    return plain if hook is None else redrive.changed(plain, hook(plain))


@dataclass(frozen=True, slots=True)
class _Way:
    """How letters are sent."""

    connection: Connection
    target: Target
    hook: Hook | None
    batch_bytes: int

    def send(self, letters: DataFrame) -> None:
        """Send them, and remember it."""
        redrive.send(_records(letters, self.target, self.hook), self.connection, self.batch_bytes)
        redriven.remember(letters, self.connection)


def _send(way: _Way, passed: DataFrame, rate: int | None) -> None:
    if rate is None:
        way.send(passed)
        return
    order = Window.orderBy("died_at", "letter_topic", "letter_partition", "letter_offset")
    piece = F.floor((F.row_number().over(order) - 1) / (rate * _SLICE_S)).alias("_slice")
    sliced = passed.select("*", piece).persist()
    try:
        slices = int((sliced.agg(F.max("_slice")).head() or [0])[0] or 0) + 1
        begin = time.monotonic()
        for number in range(slices):
            time.sleep(max(0.0, begin + number * _SLICE_S - time.monotonic()))
            way.send(sliced.where(F.col("_slice") == number))
    finally:
        sliced.unpersist()
