"""Which letters earlier runs have sent: as their audit says, or else the topics to which they were sent (C58)."""

from __future__ import annotations

import re
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import LongType, StringType, StructField, StructType

from lapse_spark import read
from lapse_spark.connection import Connection
from lapse_spark.letters import redriven
from lapse_spark.read import Span
from lapse_spark.schema import DEAD_LETTER
from lapse_spark.stream.output import Output

_MARGIN_MS: Final = 600_000
"""The greatest difference between the clocks of Kafka and of the driver, in ms."""

# The columns that a run needs of the tables. To find a table's columns in its files would be one more job each time.
_FOUND: Final = StructType([DEAD_LETTER["id"]])
_SENT: Final = StructType([*_FOUND, StructField("target", StringType())])
_DONE: Final = StructType([StructField("at_ms", LongType())])


def ids_sent_before(
    spark: SparkSession, connection: Connection, output: Output, now_ms: int, dry_run: bool
) -> DataFrame | None:
    """Return the ids of letters that earlier runs have sent; None if there was no run.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        output: the audit.
        now_ms: the instant of this run, ms since the epoch.
        dry_run: whether nothing is written.
    """
    sent, done = output.read("sent", columns=_SENT), output.read("done", columns=_DONE)
    if sent is None:
        return None
    whole = sent.limit(0) if done is None else sent.join(done.select("batch_id"), "batch_id", "left_semi")
    ids = whole.select("id")
    if (found := output.read("found", columns=_FOUND)) is not None:
        ids = ids.unionByName(found.select("id"))
    torn = sent.join(ids.select("id").distinct(), "id", "left_anti")
    places = torn.groupBy("target").agg(F.min("batch_id").alias("since")).collect()
    if places:
        arrived = _arrived(spark, connection, [row["target"] for row in places], min(row["since"] for row in places))
        # A checkpoint: the topics' present content decides, not a later one.
        late = torn.select("id").distinct().join(arrived, "id", "left_semi").localCheckpoint()
        ids = ids.unionByName(late)
        if not dry_run and late.count():
            output.write("found", late, F.timestamp_millis(F.lit(now_ms)), now_ms)
    # A checkpoint: what this run writes to the same tables would make Spark drop what is persisted and depends on them,
    # and read all letters again.
    return ids.distinct().localCheckpoint()


def _arrived(spark: SparkSession, connection: Connection, targets: list[str], since_ms: int) -> DataFrame:
    """Return the ids of the letters whose redriven records are on the target topics."""
    pattern = "|".join(re.escape(name) for name in targets)
    span = Span(start_ms=since_ms - _MARGIN_MS, fail_on_data_loss=False)
    found = read.records(spark, connection, pattern=pattern, span=span)
    ours = found.select(redriven.letter_in(F.col("headers")).alias("id"))
    return ours.where(F.col("id").isNotNull()).distinct()
