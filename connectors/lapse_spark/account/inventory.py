"""Inventory: a queue's own list of its messages, and how far it has read its topics.

The ledger is computed from the topics. A message that left without a trace there looks as if it were queued. Only the
queue knows that it is not, so the queue is asked if a worker answers.
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
from lapse_client.error import CommandFailed, EntityDeleted, LapseError
from lapse_client.session.conversation import Conversation
from lapse_spark import local_rows
from lapse_spark.account import account, generation, verdict
from lapse_spark.running import block

MOST_LISTED: Final = 200_000
"""The most messages of a queue that is listed, because an answer has only a thousand of them."""

_LOOKS: Final = 3
_TIMEOUT_S: Final = 10.0
_ID: Final = "ledger"
"""Id of a transfer that takes no messages, and only asks how far a queue has read."""

_RANGE: Final = "topic string, partition int, first bigint, last bigint"

Range = tuple[str, int, int, int]
"""Topic, partition, first and last offset."""


class NotListed(RuntimeError):
    """The queue cannot list its messages; the text says why."""


@dataclass(frozen=True, slots=True)
class Inventory:
    """A queue's list of its messages.

    Attributes:
        messages: number of messages.
        ranges: ranges of the messages.
        read_to: the next offset to be read of each underlying partition; empty if the queue did not say.
    """

    messages: int
    ranges: Sequence[Range]
    read_to: dict[tuple[str, int], int] = field(default_factory=dict)

    def unread(self, logs: Iterable[tuple[str, int, int]]) -> list[Range]:
        """Return the ranges that the queue has not read yet, for logs given as topic, partition and last offset.

        If the queue did not say how far it has read, it has read at least as far as its last message.
        """
        reached = dict(self.read_to)
        if not reached:
            for topic, partition, _, last in self.ranges:
                reached[topic, partition] = max(last + 1, reached.get((topic, partition), 0))
        starts = [
            (topic, partition, reached.get((topic, partition), 0), last)
            for topic, partition, last in logs
            if not generation.is_rewound(topic)  # rewound messages were read
        ]
        return [one for one in starts if one[2] <= one[3]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A queue that can be asked for its inventory.

    Attributes:
        spark: the Spark session.
        again: asks for another inventory.
        first: the inventory before the topics were read.
        fates: fates from `account.fates_in_events` without `until_ms`, read after that.
    """

    spark: SparkSession
    again: Callable[[], Inventory]
    first: Inventory
    fates: DataFrame

    def lost(self, each: DataFrame, logs: DataFrame) -> tuple[DataFrame, int]:
        """Return published and read messages that have no fate and are not in the queue: blocks with `mask`.

        An inventory of many answers is not of one instant, so a lost message must be absent in later ones, too.

        Args:
            each: classes from `verdict.verdicts`.
            logs: logs from `account.log_ranges`.

        Returns:
            The messages, and their number.
        """
        inventories = [self.first]
        while True:
            found = _lost(self.spark, each, self.fates, logs, inventories)
            number = int(found.agg(F.sum(F.bit_count("mask"))).collect()[0][0] or 0)
            if len(inventories) == _LOOKS or not number:
                return found, number
            try:
                inventories.append(self.again())
            except (LapseError, NotListed):
                return found, number


def ask(connection: Connection, queue: str) -> Inventory:
    """Ask a queue for its inventory. Ask first how far it has read: messages read by then are listed, or have a fate.

    Raises:
        NotListed: the queue has too many messages.
        LapseError: there is no such queue, no worker answers, or the user may not look.
    """
    with Queue(queue, connection=connection, timeout_s=_TIMEOUT_S) as client:
        figures = client.depth()
        holds = sum(figures.get(state, 0) for state in ("depth", "scheduled", "held", "unconfirmed", "dying"))
        if holds > MOST_LISTED:
            raise NotListed(f"the queue holds {holds:,} messages; it is listed up to {MOST_LISTED:,}")
        read_to = _read_to(connection, queue)
        marks = sorted({Bookmark.parse(message.bookmark) for message in client.peek()})
    return Inventory(len(marks), _ranges(marks), read_to)


def _read_to(connection: Connection, queue: str) -> dict[tuple[str, int], int]:
    """Return the next offset to be read of each partition; empty if the user may not ask."""
    try:
        with Conversation(connection, queue, connection.shards("queue", queue)) as conversation:
            answers = conversation.ask(
                conversation.partitions, Command(command="transfer", transfer=_ID, top_n=0), _TIMEOUT_S
            )
    except (CommandFailed, EntityDeleted):
        return {}
    marks = [Bookmark.parse(text) for answer in answers for text in answer.sources]
    return {(mark.topic, mark.partition): mark.offset for mark in marks}


def _ranges(marks: Iterable[Bookmark]) -> list[Range]:
    """Join ascending bookmarks into ranges."""
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
    """Return the lost messages; see `Asked.lost`. A message in any of the inventories is not lost."""
    ends = [(row["topic"], row["partition"], row["log_last"]) for row in logs.collect()]
    known = [one for inventory in inventories for one in inventory.ranges] + inventories[0].unread(ends)
    there = account.cut_to_log(local_rows.frame(spark, known, _RANGE), logs) if known else None
    reported = account.cut_to_log(fates, logs).select("topic", "partition", "first", "last")
    ranges = reported if there is None else reported.unionByName(there)
    excused = block.cover(ranges).groupBy(*block.PLACE).agg(F.bit_or("mask").alias("excused"))
    queued = each.where((F.col("state") == verdict.STILL_QUEUED) & (F.col("place") == account.OURS))
    rest = block.without(F.col("mask"), F.coalesce("excused", F.lit(0).cast("bigint")))
    joined = queued.select(*block.PLACE, "mask").join(excused, list(block.PLACE), "left")
    return joined.withColumn("mask", rest).where(F.col("mask") != 0).select(*block.PLACE, "mask")
