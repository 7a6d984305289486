"""What a ledger that goes on remembers: a version for each batch, written whole before the next one begins (D8).

A version has the blocks that are open, what is in doubt, what is ahead of the log's end, what is news, and a note with
the figures. The note is written last: a version without one is done again. Blocks that are closed are kept apart, for
as long as a second fate is looked for.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse_spark.running import block
from lapse_spark.running.portion import ROW
from lapse_spark.stream.output import Output

OPEN, DOUBTS, AHEAD, NEWS = "open", "doubts", "ahead", "news"
CLOSED: Final = "closed"

_NOTE: Final = "note-{}.json"
_KEPT: Final = 2
"""Versions: the last one may be done again, from the one before it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Note:
    """The figures of a version.

    Attributes:
        queue: whose ledger it is.
        at_ms: the instant of the batch, ms since the epoch.
        closed: how many messages of closed blocks have which verdict.
        ends: the next offset to be read, `topic:partition`.
        forgotten: closed blocks below this one may be forgotten, `topic:partition`.
        letter_topics: where letters are.
        before: fates of messages that the log has no more.
        faults: records that cannot be read.
        listed: how many messages the queue has listed; None = it never has.
        listed_at_ms: when that was.
        not_listed: why it has not, the last time.
        asked_at_ms: when the queue was asked the last time.
        agreed_at_ms: when its list last agreed with the account.
        account: what is published.
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
    account: dict[str, Any] = field(default_factory=dict)


class Memory:
    """The directory of one queue's ledger.

    Attributes:
        output: the directory, with the checkpoint.
    """

    def __init__(self, spark: SparkSession, path: str) -> None:
        self.output = Output(spark, path)
        self._spark = spark

    def latest(self) -> Note | None:
        """The newest version's note; None before the first."""
        numbers = self._notes()
        return self.note(max(numbers)) if numbers else None

    def note(self, number: int) -> Note | None:
        """The note of a batch; None where it is not done."""
        if number not in self._notes():
            return None
        return Note(**orjson.loads(self.output.text(_NOTE.format(number))))

    def check(self) -> None:
        """Make sure that what is there and the checkpoint belong together.

        Raises:
            ValueError: there is a version and no checkpoint, or a checkpoint and not the version that it needs.
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
        """A table of a version; None where there is nothing in it."""
        if not self.output.names(f"state/{number}/{name}", "part-"):
            return None
        return self._spark.read.parquet(f"{self.output.path}/state/{number}/{name}")

    def write(self, number: int, name: str, rows: DataFrame) -> None:
        """Write a table of a version."""
        rows.write.mode("overwrite").parquet(f"{self.output.path}/state/{number}/{name}")

    def finish(self, number: int, note: Note) -> None:
        """The version is whole; those that no restart needs any more go."""
        self.output.put_text(_NOTE.format(number), orjson.dumps(asdict(note)).decode())
        for old in [one for one in self._notes() if one <= number - _KEPT]:
            self.output.remove(f"state/{old}")
            self.output.remove(_NOTE.format(old))

    def close(self, number: int, rows: DataFrame, at_ms: int) -> None:
        """Keep the rows of blocks that are closed."""
        day = F.timestamp_millis(F.lit(at_ms))
        self.output.write(CLOSED, rows.sortWithinPartitions(*block.PLACE), day, number)

    def closed(self, number: int, which: DataFrame, least: int, most: int) -> DataFrame | None:
        """Rows of closed blocks as they were before a batch.

        Args:
            number: of the batch.
            which: the blocks: topic, partition, block.
            least: the first of them.
            most: the last of them.
        """
        kept = self.output.read(CLOSED)
        if kept is None:
            return None
        near = kept.where((F.col("batch_id") < number) & F.col("block").between(least, most))
        return near.join(F.broadcast(which), list(block.PLACE), "left_semi").select(*ROW)

    def forget(self, at_ms: int, horizon: timedelta, forgotten: Mapping[str, int]) -> dict[str, int]:
        """Delete closed blocks that are older than the horizon; returns what may be forgotten now.

        Args:
            at_ms: the instant of the batch, ms since the epoch.
            horizon: how long they are kept at least; a whole day goes at once.
            forgotten: as in `Note`.
        """
        last = datetime.fromtimestamp(at_ms / 1000, UTC).date() - horizon - timedelta(days=1)
        days = [day for day in self.output.days(CLOSED) if day < last]
        kept = self.output.read(CLOSED) if days else None
        if kept is None:
            return dict(forgotten)
        going = kept.where(F.col("day") < last).groupBy("topic", "partition").agg(F.max("block").alias("block"))
        found = {f"{row['topic']}:{row['partition']}": row["block"] + 1 for row in going.collect()}
        self.output.delete(CLOSED, days)
        return {place: max(found.get(place, 0), forgotten.get(place, 0)) for place in {*found, *forgotten}}

    def _notes(self) -> list[int]:
        return [int(name[5:-5]) for name in self.output.names(".", "note-")]
