"""Where the streaming jobs write: Parquet under `day=<date>/batch_id=<n>/`, on any file system that Spark reaches.

A batch that is repeated after a crash overwrites what it had written, and only that. So any engine can read the
directory, and nothing is counted twice.
"""

from __future__ import annotations

from datetime import date
from typing import Any, Final

from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

_DAY_MS: Final = 86_400_000


class Output:
    """One job's directory.

    Attributes:
        path: where it is: a local path, or an address such as `s3a://…` or `hdfs://…`.
        checkpoint: how far the stream has come. It belongs to the output: move or delete both or neither.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self.checkpoint = f"{self.path}/_checkpoint"
        self._spark = spark

    def check(self) -> None:
        """Make sure that what is there and the checkpoint belong together.

        Raises:
            ValueError: there are batches, but no checkpoint: a new stream would begin again and count them twice.
        """
        if self._names("", "day=") and not self._names("_checkpoint", "metadata"):
            raise ValueError(
                f"{self.path} has batches and no checkpoint ({self.checkpoint}): a new stream would count them again. "
                "Put the checkpoint back, or give a new directory."
            )

    def write(self, table: str, rows: DataFrame, at: Column, batch: int) -> None:
        """Write a batch of a table, in place of what an earlier attempt wrote.

        Args:
            table: its name.
            rows: what to write.
            at: timestamp column that decides the day (UTC).
            batch: the stream's number for it.
        """
        (
            rows.select("*", utc_day(at).alias("day"), F.lit(batch).cast("bigint").alias("batch_id"))
            .write.partitionBy("day", "batch_id")
            .option("partitionOverwriteMode", "dynamic")
            .mode("overwrite")
            .parquet(f"{self.path}/{table}")
        )

    def read(self, table: str, first: date | None = None) -> DataFrame | None:
        """Read a table of this output; None where nothing has been written.

        Args:
            table: its name.
            first: only this day and later ones; None = all.
        """
        days = [name for name in self.days(table) if first is None or name >= first]
        if not days:
            return None
        root = f"{self.path}/{table}"
        paths = [f"{root}/day={day.isoformat()}" for day in days]
        return self._spark.read.option("basePath", root).parquet(*paths)

    def days(self, table: str) -> list[date]:
        """The days of which a table has batches, oldest first."""
        return sorted(date.fromisoformat(name.removeprefix("day=")) for name in self._names(table, "day="))

    def delete(self, table: str, day: date) -> None:
        """Delete a day of a table."""
        path = self._path(f"{table}/day={day.isoformat()}")
        path.getFileSystem(self._configuration()).delete(path, True)

    def put_text(self, name: str, text: str) -> None:
        """Write a small file, replacing it whole: a reader sees the old one or the new one."""
        part, whole = self._path(f"_{name}.part"), self._path(name)
        system = whole.getFileSystem(self._configuration())
        stream = system.create(part, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        system.delete(whole, False)
        system.rename(part, whole)

    def _names(self, directory: str, prefix: str) -> list[str]:
        """Names in a directory that begin so; of the root, in any table of it."""
        jvm_path = self._path(directory)
        system = jvm_path.getFileSystem(self._configuration())
        if not system.exists(jvm_path):
            return []
        pattern = self._path(f"{directory}/{prefix}*" if directory else f"*/{prefix}*")
        return [status.getPath().getName() for status in system.globStatus(pattern) or ()]

    def _path(self, name: str) -> Any:
        jvm: Any = self._spark._jvm
        return jvm.org.apache.hadoop.fs.Path(f"{self.path}/{name}" if name else self.path)

    def _configuration(self) -> Any:
        session: Any = self._spark._jsparkSession
        return session.sessionState().newHadoopConf()


def utc_day(at: Column) -> Column:
    """The date of a timestamp in UTC, whatever the session's time zone."""
    return F.date_from_unix_date(F.floor(F.unix_millis(at) / _DAY_MS).cast("int"))
