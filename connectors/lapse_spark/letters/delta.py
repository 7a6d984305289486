"""Delta Lake as the format of an archive: the same tables as in Parquet, with one transaction per batch and table.

A transaction names the stream and the batch, so a batch that is repeated after a crash is skipped. Readers see a batch
whole or not at all, even while files are merged.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final, Literal

import orjson
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lapse_spark.session import knows_delta
from lapse_spark.stream.output import Output, utc_day

Kind = Literal["parquet", "delta"]

_LOG: Final = "_delta_log"
_LISTING: Final = "spark.sql.sources.parallelPartitionDiscovery.parallelism"
_LISTING_DEFAULT: Final = "10000"


def is_here(path: str) -> bool:
    """Return whether a local directory has Delta tables. This must be known before Spark starts."""
    if "://" in path:
        return False
    return any(Path(path.removeprefix("file:")).glob(f"*/{_LOG}"))


def output(spark: SparkSession, path: str, kind: Kind | None = None) -> Output:
    """Open an output in its present format.

    Args:
        spark: the Spark session.
        path: directory of the output.
        kind: the wanted format; None = the present one, and Parquet for a new output.

    Raises:
        ValueError: the output has another format, or the session does not know Delta Lake.
    """
    plain = Output(spark, path)
    found: Kind | None = "delta" if plain.names("", _LOG) else "parquet" if plain.names("", "day=") else None
    if kind is not None and found is not None and kind != found:
        raise ValueError(f"{path} is kept as {found}: leave out --format {kind}, or give a new directory")
    if (kind or found) != "delta":
        return plain
    if not knows_delta(spark):
        raise ValueError(f"{path} is kept as Delta tables: give --format delta, or start Spark by session(delta=True)")
    return DeltaOutput(spark, path)


class DeltaOutput(Output):
    """An output whose tables are Delta tables, partitioned by day."""

    def check(self) -> None:
        """Check that tables and checkpoint belong together.

        Raises:
            ValueError: there are tables but no checkpoint, so a new stream would write everything twice.
        """
        self._check(_LOG)

    def write(self, table: str, rows: DataFrame, at: Column, batch: int) -> None:
        """Write a batch of a table, unless an earlier attempt has written it.

        Args:
            table: name of the table.
            rows: rows to write.
            at: timestamp column that decides the day (UTC).
            batch: the stream's number of the batch.
        """
        (
            rows.select("*", utc_day(at).alias("day"), F.lit(batch).cast("bigint").alias("batch_id"))
            .write.format("delta")
            .partitionBy("day")
            .mode("append")
            .option("mergeSchema", "true")  # a later version of lapse may have more columns
            .option("txnAppId", self._stream())
            .option("txnVersion", batch)
            .save(f"{self.path}/{table}")
        )

    def read(self, table: str, first: date | None = None, columns: StructType | None = None) -> DataFrame | None:
        """Read a table of this output; None if nothing has been written.

        Args:
            table: name of the table.
            first: the first day to read; None = all.
            columns: the present columns. Columns that no batch has yet are null.
        """
        if not self.names(table, _LOG):
            return None
        rows = self._spark.read.format("delta").load(f"{self.path}/{table}")
        for column in columns or ():
            if column.name not in rows.columns:
                rows = rows.withColumn(column.name, F.lit(None).cast(column.dataType))
        return rows if first is None else rows.where(F.col("day") >= F.lit(first))

    def days(self, table: str) -> list[date]:
        """Return the days of which a table has rows, oldest first."""
        rows = self.read(table)
        return [] if rows is None else sorted(row["day"] for row in rows.select("day").distinct().collect())

    def delete(self, table: str, days: Sequence[date]) -> None:
        """Delete days of a table, and remove the files of rows that were deleted a week ago or earlier."""
        if not days:
            return
        listed = ", ".join(f"DATE'{day.isoformat()}'" for day in days)
        self._spark.sql(f"DELETE FROM {self._quoted_name(table)} WHERE day IN ({listed})")  # noqa: S608  # quoted
        self._vacuum(table)

    def compact(self, table: str) -> int:
        """Merge many files into few; return how many were replaced (0 = nothing to do). The job may keep running.

        The old files stay for a week for present readers. A later call removes them.

        Args:
            table: name of the table.
        """
        if not self.names(table, _LOG):
            return 0
        done = self._spark.sql(f"OPTIMIZE {self._quoted_name(table)}").select("metrics.numFilesRemoved").collect()
        self._vacuum(table)
        return int(done[0][0])

    def _vacuum(self, table: str) -> None:
        # By default, Spark looks for files with ten thousand tasks, which takes minutes for the files of a day.
        conf = self._spark.conf
        configured = conf.get(_LISTING)
        if configured == _LISTING_DEFAULT:
            conf.set(_LISTING, str(2 * self._spark.sparkContext.defaultParallelism))
        try:
            self._spark.sql(f"VACUUM {self._quoted_name(table)}")
        finally:
            conf.set(_LISTING, configured or _LISTING_DEFAULT)

    def _quoted_name(self, table: str) -> str:
        """Return the table's name in SQL, with its whole path."""
        path = self._path(table)
        address = path.getFileSystem(self._configuration).makeQualified(path).toString()
        return "delta.`{}`".format(address.replace("`", "``"))

    def _stream(self) -> str:
        """Return the stream's id from its checkpoint, because batch numbers are unique only within a stream."""
        return str(orjson.loads(self.text("_checkpoint/metadata"))["id"])
