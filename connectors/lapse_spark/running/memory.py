"""The state of a running ledger: a version for each batch, written whole before the next batch begins (D8).

A version has the open blocks, the doubts, the facts beyond the log's end, the news, and a note with the figures. The
note is written last, so a version without one is written again. Closed blocks are kept separately, as long as the
ledger looks for second fates.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType, DataType, IntegerType, LongType, StringType, StructField, StructType

from lapse_spark.running import block, doubt
from lapse_spark.running.portion import RANGE, ROW
from lapse_spark.stream.output import NOTE_PREFIX, Output

OPEN, DOUBTS, AHEAD, NEWS = "open", "doubts", "ahead", "news"
CLOSED: Final = "closed"

_TYPES: Final[Mapping[str, DataType]] = {
    **dict.fromkeys(("topic", "difference", "key", "value"), StringType()),
    **dict.fromkeys(("partition", "fates", "reasons", "letter"), IntegerType()),
    "reported": BooleanType(),
}
"""The types of the tables' columns that are not 64-bit numbers."""


def _schema(columns: Iterable[str]) -> StructType:
    return StructType([StructField(name, _TYPES.get(name, LongType())) for name in columns])


# To find a table's columns in its files would be one more job each time.
_SCHEMAS: Final = {
    **dict.fromkeys((OPEN, CLOSED), _schema(ROW)),
    DOUBTS: _schema(doubt.COLUMNS),
    AHEAD: _schema(RANGE),
    NEWS: _schema(("key", "value")),
}

_NOTE: Final = NOTE_PREFIX + "{}.json"
_KEPT: Final = 2
"""The number of versions that are kept: the last one may be repeated from the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The figures of a version.

    Attributes:
        queue: name of the queue.
        at_ms: the instant of the batch, ms since the epoch.
        closed: numbers of messages in closed blocks by verdict.
        ends: the next offset to be read, `topic:partition`.
        forgotten: closed blocks below this one may be forgotten, `topic:partition`.
        letter_topics: topics with letters.
        before: number of fates of messages that the log no longer has.
        faults: number of unreadable records.
        listed: number of messages in the queue's last list; None = it never returned one.
        listed_at_ms: when it returned that list, ms since the epoch.
        not_listed: why there was no list the last time; empty if there was.
        asked_at_ms: when the queue was asked last, ms since the epoch.
        agreed_at_ms: when its list last agreed with the account, ms since the epoch.
        grace_ms: how long differences had to last to be reported, in ms; None = an earlier version has not noted it.
        account: the published balance.
        topics: the underlying topics that were named; None = an earlier version has not noted them.
        starts: the first offset of partitions, `topic:partition`, as it was named; None likewise.
    """

    queue: str
    at_ms: int
    closed: dict[str, int] = field(default_factory=dict)
    ends: dict[str, int] = field(default_factory=dict)
    forgotten: dict[str, int] = field(default_factory=dict)
    letter_topics: list[str] = field(default_factory=list)
    before: int = 0
    faults: int = 0
    listed: int | None = None
    listed_at_ms: int | None = None
    not_listed: str = ""
    asked_at_ms: int = 0
    agreed_at_ms: int | None = None
    grace_ms: int | None = None
    account: dict[str, Any] = field(default_factory=dict)
    topics: list[str] | None = None
    starts: dict[str, int] | None = None


class Memory:
    """The state of one queue's running ledger in a directory.

    Attributes:
        output: the directory, with the checkpoint.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.output = Output(spark, path)
        self._spark = spark

    @classmethod
    def of(cls, spark: SparkSession, path: str, queue: str) -> Memory:
        """Return the state of a queue's ledger.

        Args:
            spark: the Spark session.
            path: directory with a subdirectory for each queue.
            queue: name of the queue.
        """
        return cls(spark, f"{path.rstrip('/')}/{queue}")

    def latest(self) -> Note | None:
        """Return the newest version's note; None before the first one."""
        numbers = self._notes()
        return self.note(max(numbers)) if numbers else None

    def note(self, number: int) -> Note | None:
        """Return the note of a batch; None if the batch is not finished."""
        if number not in self._notes():
            return None
        return Note(**orjson.loads(self.output.text(_NOTE.format(number))))

    def check(self) -> None:
        """Check that versions and checkpoint belong together.

        Raises:
            ValueError: there is a version without a checkpoint, or a checkpoint without the version that it needs.
        """
        numbers, path = self._notes(), self.output.path
        if numbers and not self.output.names("_checkpoint", "metadata"):
            raise ValueError(
                f"{path} has a ledger and no checkpoint ({self.output.checkpoint}): it would count all messages again. "
                "Put the checkpoint back, or give a new directory."
            )
        finished = max((int(name) for name in self.output.names("_checkpoint/commits", "[0-9]")), default=-1)
        if finished >= 0 and finished not in numbers:
            raise ValueError(
                f"{path} has a checkpoint of batch {finished}, and not the ledger as it was then. "
                "Put the whole directory back, or give a new one."
            )

    def table(self, number: int, name: str) -> DataFrame | None:
        """Return a table of a version; None if it is empty."""
        if not self.output.names(f"state/{number}/{name}", "part-"):
            return None
        return self._spark.read.schema(_SCHEMAS[name]).parquet(f"{self.output.path}/state/{number}/{name}")

    def write(self, number: int, name: str, rows: DataFrame) -> None:
        """Write a table of a version."""
        rows.write.mode("overwrite").parquet(f"{self.output.path}/state/{number}/{name}")

    def finish(self, number: int, note: Note) -> None:
        """Write the note of a complete version, and remove versions that no restart needs."""
        self.output.put_text(_NOTE.format(number), orjson.dumps(asdict(note)).decode())
        for old in [one for one in self._notes() if one <= number - _KEPT]:
            self.output.remove(f"state/{old}")
            self.output.remove(_NOTE.format(old))

    def close(self, number: int, rows: DataFrame, at_ms: int) -> None:
        """Write the rows of closed blocks."""
        day = F.timestamp_millis(F.lit(at_ms))
        self.output.write(CLOSED, rows.sortWithinPartitions(*block.PLACE), day, number)

    @property
    def has_closed(self) -> bool:
        """Whether there are rows of closed blocks."""
        return bool(self.output.days(CLOSED))

    def closed(self, number: int, which: DataFrame, least: int, most: int) -> DataFrame | None:
        """Return the rows of closed blocks that were written before a batch; None if there are none.

        Args:
            number: number of the batch.
            which: the blocks: topic, partition, block.
            least: number of the first block.
            most: number of the last block.
        """
        kept = self.output.read(CLOSED, columns=_SCHEMAS[CLOSED])
        if kept is None:
            return None
        near = kept.where((F.col("batch_id") < number) & F.col("block").between(least, most))
        return near.join(F.broadcast(which), list(block.PLACE), "left_semi").select(*ROW)

    def forget(self, at_ms: int, horizon: timedelta, forgotten: Mapping[str, int]) -> dict[str, int]:
        """Delete closed blocks that are older than the horizon; return the new `forgotten`.

        Args:
            at_ms: the instant of the batch, ms since the epoch.
            horizon: how long closed blocks are kept at least. Whole days are deleted.
            forgotten: as in `Note`.
        """
        last = datetime.fromtimestamp(at_ms / 1000, UTC).date() - horizon - timedelta(days=1)
        days = [day for day in self.output.days(CLOSED) if day < last]
        kept = self.output.read(CLOSED, columns=_SCHEMAS[CLOSED]) if days else None
        if kept is None:
            return dict(forgotten)
        going = kept.where(F.col("day") < last).groupBy("topic", "partition").agg(F.max("block").alias("block"))
        found = {f"{row['topic']}:{row['partition']}": row["block"] + 1 for row in going.collect()}
        self.output.delete(CLOSED, days)
        return {place: max(found.get(place, 0), forgotten.get(place, 0)) for place in {*found, *forgotten}}

    def _notes(self) -> list[int]:
        return [int(name[5:-5]) for name in self.output.names(".", NOTE_PREFIX)]
