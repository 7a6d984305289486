"""Inventory: what a queue itself says it holds, message by message, and how far it has read its topics.

The ledger is reckoned from the topics. A message whose end left no trace there looks as if it were queued; only the
queue knows that it is not. So the queue is asked, where a worker answers.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse.protocol.bookmark import Bookmark
from lapse.protocol.command import Command
from lapse_client import Connection, Queue
from lapse_client.error import CommandFailed, LapseError
from lapse_client.session.conversation import Conversation
from lapse_spark import local_rows
from lapse_spark.account import account, generation, verdict
from lapse_spark.running import block

MOST_LISTED: Final = 200_000
"""A queue that holds more messages is not listed: an answer has a thousand of them."""

_LOOKS: Final = 3
_TIMEOUT_S: Final = 10.0
_ID: Final = "ledger"
"""A transfer that holds nothing, and only asks how far a queue has read."""

_RANGE: Final = "topic string, partition int, first bigint, last bigint"

Range = tuple[str, int, int, int]
"""Topic, partition, first and last offset."""


class NotListed(RuntimeError):
    """The queue cannot say what it holds; the text says why."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """What a queue says it holds.

    Attributes:
        messages: how many.
        ranges: which.
        read_to: the next offset to be read of each underlying partition; empty = the queue did not say.
    """

    messages: int
    ranges: Sequence[Range]
    read_to: dict[tuple[str, int], int] = field(default_factory=dict)

    def unread(self, logs: Iterable[tuple[str, int, int]]) -> list[Range]:
        """What the queue has not read yet, by topic, partition and last offset of the logs.

        Where the queue did not say how far it has read, it has read as far as the last message that it holds.
        """
        reached = dict(self.read_to)
        if not reached:
            for topic, partition, _, last in self.ranges:
                reached[topic, partition] = max(last + 1, reached.get((topic, partition), 0))
        starts = [
            (topic, partition, reached.get((topic, partition), 0), last)
            for topic, partition, last in logs
            if not generation.is_rewound(topic)  # what came back was read
        ]
        return [one for one in starts if one[2] <= one[3]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A queue that was asked what it holds.

    Attributes:
        spark: the session.
        again: asks once more.
        first: what it said before the topics were read.
        fates: from `account.told`, without an end in time, read afterwards.
    """

    spark: SparkSession
    again: Callable[[], Inventory]
    first: Inventory
    fates: DataFrame

    def lost(self, each: DataFrame, logs: DataFrame) -> DataFrame:
        """Messages that are published and read, have no fate, and are not held: blocks with `mask`, persisted.

        A list of many answers is not of one instant. What it lacks has to be absent in later ones, too.

        Args:
            each: from `verdict.verdicts`.
            logs: from `account.reach`.
        """
        inventories = [self.first]
        while True:
            found = _lost(self.spark, each, self.fates, logs, inventories).persist()
            if len(inventories) == _LOOKS or not found.head(1):
                return found
            try:
                inventories.append(self.again())
            except (LapseError, NotListed):
                return found
            found.unpersist()


def ask(connection: Connection, queue: str) -> Inventory:
    """Ask a queue what it holds. How far it has read is asked first: what was read by then is held, or has a fate.

    Raises:
        NotListed: it holds too many messages.
        LapseError: there is no such queue, no worker answers, or the user may not look.
    """
    with Queue(queue, connection=connection, timeout_s=_TIMEOUT_S) as client:
        figures = client.depth()
        holds = sum(figures.get(state, 0) for state in ("depth", "scheduled", "unconfirmed", "dying"))
        if holds > MOST_LISTED:
            raise NotListed(f"the queue holds {holds:,} messages; it is listed up to {MOST_LISTED:,}")
        read_to = _read_to(connection, queue)
        marks = sorted({Bookmark.parse(message.bookmark) for message in client.peek()})
    return Inventory(len(marks), _ranges(marks), read_to)


def _read_to(connection: Connection, queue: str) -> dict[tuple[str, int], int]:
    """How far a queue has read; empty where the user may not ask."""
    try:
        with Conversation(connection, queue, connection.shards("queue", queue)) as conversation:
            answers = conversation.ask(
                conversation.partitions, Command(command="transfer", transfer=_ID, top_n=0), _TIMEOUT_S
            )
    except CommandFailed:
        return {}
    marks = [Bookmark.parse(text) for answer in answers for text in answer.sources]
    return {(mark.topic, mark.partition): mark.offset for mark in marks}


def _ranges(marks: Iterable[Bookmark]) -> list[Range]:
    """Bookmarks, ascending, as ranges."""
    found: list[Range] = []
    for mark in marks:
        topic, partition, offset = generation.name(mark.topic, mark.offset), mark.partition, mark.log_offset
        if found and found[-1][:2] == (topic, partition) and found[-1][3] == offset - 1:
            found[-1] = (topic, partition, found[-1][2], offset)
        else:
            found.append((topic, partition, offset, offset))
    return found


def _lost(
    spark: SparkSession, each: DataFrame, fates: DataFrame, logs: DataFrame, inventories: Sequence[Inventory]
) -> DataFrame:
    """What `Asked.lost` finds; what one of the inventories has is held."""
    ends = [(row["topic"], row["partition"], row["log_last"]) for row in logs.collect()]
    known = [one for inventory in inventories for one in inventory.ranges] + inventories[0].unread(ends)
    there = account.within(local_rows.frame(spark, known, _RANGE), logs) if known else None
    told = account.within(fates, logs).select("topic", "partition", "first", "last")
    ranges = told if there is None else told.unionByName(there)
    excused = block.cover(ranges).groupBy(*block.PLACE).agg(F.bit_or("mask").alias("excused"))
    queued = each.where((F.col("state") == verdict.STILL_QUEUED) & (F.col("place") == account.OURS))
    rest = block.without(F.col("mask"), F.coalesce("excused", F.lit(0).cast("bigint")))
    joined = queued.select(*block.PLACE, "mask").join(excused, list(block.PLACE), "left")
    return joined.withColumn("mask", rest).where(F.col("mask") != 0).select(*block.PLACE, "mask")
