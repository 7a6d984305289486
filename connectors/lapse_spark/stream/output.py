"""The output of streaming jobs: Parquet under `day=<date>/batch_id=<n>/`, on any file system that Spark reaches.

A batch that is repeated after a crash overwrites its own files, and only these. So any engine can read the directory,
and nothing is counted twice.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Any, Final

import orjson
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from lapse_spark import jvm

TABLES: Final = ("letters", "counts", "quarantine", "partitions", "closed")
"""The tables of the streaming jobs. Other tables of an output are not theirs."""

JOB_FILE: Final = "job.json"
"""The file that names the job that writes an output, beside its tables."""

OFFSETS: Final = "_checkpoint/offsets"
"""The directory with the planned offsets of each batch of a stream."""

_COMMITS: Final = "_checkpoint/commits"

NOTE_PREFIX: Final = "note-"
"""Prefix of the files with which a running ledger notes its batches, beside its tables."""

_DAY_MS: Final = 86_400_000
_MERGED: Final = "_merged-"
"""Prefix of a directory that will replace several others. Readers ignore names that begin with `_`."""


class Output:
    """The output directory of a job.

    Attributes:
        path: a local path, or a URL such as `s3a://…` or `hdfs://…`.
        checkpoint: path of the stream's checkpoint. It belongs to the output: move or delete both or neither.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.path = path.rstrip("/")
        self.checkpoint = f"{self.path}/_checkpoint"
        self._spark = spark

    @property
    def local(self) -> Path | None:
        """The directory on this machine; None if it is on another file system."""
        found = self._path("")
        address = found.getFileSystem(self._configuration).getUri()
        return Path(found.toUri().getPath()) if address.getScheme() == "file" else None

    @property
    def has_run(self) -> bool:
        """Whether a job has run on this output, even if it found nothing."""
        return bool(self.names("_checkpoint", "metadata"))

    @property
    def has_unfinished_batch(self) -> bool:
        """Whether a batch was planned, and has not ended. The stream repeats it first."""
        planned, done = (
            max((int(name) for name in self.names(directory, "") if name.isdigit()), default=-1)
            for directory in (OFFSETS, _COMMITS)
        )
        return planned > done

    def check(self) -> None:
        """Check that batches and checkpoint belong together.

        Raises:
            ValueError: there are batches but no checkpoint, so a new stream would count everything twice.
        """
        self._check("day=")

    def _check(self, sign: str) -> None:
        if self.names("", sign) and not self.has_run:
            raise ValueError(
                f"{self.path} has batches and no checkpoint ({self.checkpoint}): a new stream would count them again. "
                "Put the checkpoint back, or give a new directory."
            )

    def claim(self, job: str, facts: Callable[[], Mapping[str, int]] = dict) -> None:
        """Note which job writes here, because a job goes on from the checkpoint, and leaves out what is before it.

        Args:
            job: name of the job, such as `monitor`.
            facts: returns what else to note of the job. It may raise a `ValueError` if the job does not fit the output.

        Raises:
            ValueError: another job writes here. It would have left out letters without a word. Or see `check`.
        """
        self.check()
        owner = self._job() if self.has_run else ""
        if owner and owner != job:
            raise ValueError(
                f"{self.path} is the output of lapse spark {owner}: the {job} would go on where the {owner} has ended, "
                "and leave out what is before. Give a new directory"
            )
        self.put_text(JOB_FILE, orjson.dumps({"job": job, **facts()}).decode())

    def noted(self, name: str) -> int | None:
        """Return a fact that the job has noted of itself; None = it has not."""
        found = self._facts().get(name)
        return found if isinstance(found, int) else None

    def check_made_by(self, job: str) -> None:
        """Check that the output is not that of another job, before something is read or deleted there.

        Args:
            job: name of the job, such as `monitor`.

        Raises:
            ValueError: another job has written it.
        """
        owner = self._job()
        if owner and owner != job:
            raise ValueError(f"{self.path} is the output of lapse spark {owner}, not that of the {job}")

    def _facts(self) -> dict[str, Any]:
        """Return what the job has noted of itself; of an earlier version, nothing."""
        noted: dict[str, Any] = orjson.loads(self.text(JOB_FILE)) if self.names(".", JOB_FILE) else {}
        return noted

    def _job(self) -> str:
        """Return the job that has written this output; of an earlier version, by its tables, and empty without one."""
        if facts := self._facts():
            return str(facts["job"])
        if self.names(".", NOTE_PREFIX):
            return "ledger"
        if self.names(".", "counts"):
            return "monitor"
        return "archive" if self.names(".", "letters") else ""

    def write(self, table: str, rows: DataFrame, at: Column, batch: int) -> None:
        """Write a batch of a table, and replace the rows of an earlier attempt.

        Args:
            table: name of the table.
            rows: rows to write.
            at: timestamp column that decides the day (UTC).
            batch: the stream's number of the batch.
        """
        (
            rows.select("*", utc_day(at).alias("day"), F.lit(batch).cast("bigint").alias("batch_id"))
            .write.partitionBy("day", "batch_id")
            .option("partitionOverwriteMode", "dynamic")
            .mode("overwrite")
            .parquet(f"{self.path}/{table}")
        )

    def read(self, table: str, first: date | None = None, columns: StructType | None = None) -> DataFrame | None:
        """Read a table of this output; None if nothing has been written.

        Args:
            table: name of the table.
            first: the first day to read; None = all.
            columns: the present columns. Columns that batches of earlier versions lack are null. None = the columns of
                the batch that Spark happens to look at.
        """
        days = [name for name in self.days(table) if first is None or name >= first]
        if not days:
            return None
        root = f"{self.path}/{table}"
        paths = [f"{root}/day={day.isoformat()}" for day in days]
        reader = self._spark.read.option("basePath", root)
        return (reader if columns is None else reader.schema(columns)).parquet(*paths)

    def days(self, table: str) -> list[date]:
        """Return the days of which a table has batches, oldest first."""
        return sorted(date.fromisoformat(name.removeprefix("day=")) for name in self.names(table, "day="))

    def delete(self, table: str, days: Sequence[date]) -> None:
        """Delete days of a table."""
        for day in days:
            self.remove(f"{table}/day={day.isoformat()}")

    def compact(self, table: str) -> int:
        """Merge each day's batches into one with fewer files; return how many were merged (0 = nothing to do).

        The newest batch of the output is not merged, because after a crash it would be repeated, and overwrite the
        merged one. An interrupted compaction is finished by the next one. Nothing else may read or write the output
        meanwhile.

        Args:
            table: name of the table.
        """
        return sum(self._compact(f"{table}/day={day.isoformat()}") for day in self.days(table))

    def _compact(self, directory: str) -> int:
        self._finish(directory)
        newest = max((batch for name in self._tables() for batch in self._all_batches(name)), default=0)
        batches = [batch for batch in self._batches(directory) if batch < newest]
        if len(batches) < 2:
            return 0
        paths = [f"{self.path}/{directory}/batch_id={batch}" for batch in batches]
        part = f"{self.path}/{directory}/{_MERGED}{max(batches)}"
        self._spark.read.parquet(*paths).coalesce(1).write.mode("overwrite").parquet(part)
        self._finish(directory)
        return len(batches)

    def _finish(self, directory: str) -> None:
        """Replace parts by directories that were merged completely, and delete incomplete ones."""
        for name in self.names(directory, _MERGED):
            merged = self._path(f"{directory}/{name}")
            system = merged.getFileSystem(self._configuration)
            if not self.names(f"{directory}/{name}", "_SUCCESS"):
                system.delete(merged, True)
                continue
            number = int(name.removeprefix(_MERGED))
            for batch in self._batches(directory):
                if batch <= number:
                    system.delete(self._path(f"{directory}/batch_id={batch}"), True)
            system.rename(merged, self._path(f"{directory}/batch_id={number}"))

    def _batches(self, directory: str) -> list[int]:
        return sorted(int(name.removeprefix("batch_id=")) for name in self.names(directory, "batch_id="))

    def _all_batches(self, table: str) -> list[int]:
        return [batch for day in self.days(table) for batch in self._batches(f"{table}/day={day.isoformat()}")]

    def _tables(self) -> list[str]:
        return [name for name in TABLES if self.days(name)]

    def text(self, name: str) -> str:
        """Read a small file.

        Raises:
            Py4JJavaError: the file does not exist.
        """
        path = self._path(name)
        stream = path.getFileSystem(self._configuration).open(path)
        try:
            return bytes(stream.readAllBytes()).decode()
        finally:
            stream.close()

    def put_text(self, name: str, text: str) -> None:
        """Write a small file atomically, so that a reader sees the old file or the new one, also after a kill.

        If a file system cannot rename over an existing file, like HDFS, a reader may for a moment see no file.
        """
        directory, slash, file = name.rpartition("/")
        part, whole = self._path(f"{directory}{slash}_{file}.part"), self._path(name)
        system = whole.getFileSystem(self._configuration)
        if jvm.has_checksum_files(self._spark, system):
            # A checksum is in a file of its own, which would be renamed after the other. A kill in between would leave
            # the new file with the old checksum, and nobody could read it.
            checksum, system = system.getChecksumFile(whole), system.getRawFileSystem()
            system.delete(checksum, False)
        stream = system.create(part, True)
        try:
            stream.write(bytearray(text.encode()))
        finally:
            stream.close()
        if not system.rename(part, whole):
            system.delete(whole, False)
            system.rename(part, whole)

    def remove(self, name: str) -> None:
        """Delete a file, or a directory with its content, if it exists."""
        path = self._path(name)
        path.getFileSystem(self._configuration).delete(path, True)

    def names(self, directory: str, prefix: str) -> list[str]:
        """Return the names with a prefix in a directory; for an empty directory, in any table of the output."""
        jvm_path = self._path(directory)
        system = jvm_path.getFileSystem(self._configuration)
        if not system.exists(jvm_path):
            return []
        pattern = self._path(f"{directory}/{prefix}*" if directory else f"*/{prefix}*")
        return [status.getPath().getName() for status in system.globStatus(pattern) or ()]

    def _path(self, name: str) -> Any:
        path = getattr(jvm.view(self._spark), "org.apache.hadoop.fs.Path")
        return path(f"{self.path}/{name}" if name else self.path)

    @cached_property
    def _configuration(self) -> Any:
        """Hadoop's settings, a thousand of them: each copy takes a millisecond."""
        return jvm.hadoop_settings(self._spark)


def utc_day(at: Column) -> Column:
    """Return the date of a timestamp in UTC, independent of the session's time zone."""
    return F.date_from_unix_date(F.floor(F.unix_millis(at) / _DAY_MS).cast("int"))
