"""What the topics have of one queue: events, dead letters and messages, read for its ledger (D3)."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse.protocol import topic as topics
from lapse_spark import quarantine, read
from lapse_spark.account import account
from lapse_spark.connection import Connection
from lapse_spark.read import Span

_EVENT_COLUMNS: Final = ("fault", "entity", "event", "at_ms", "epoch", "messages", "reasons", "dead_letter_topic")
_LETTER_COLUMNS: Final = (
    "fault",
    "family",
    "entity",
    "topic",
    "partition",
    "offset",
    "reasons",
    "epoch",
    "expired_at_ms",
    "id",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class QueueTopics:
    """What the topics have of one queue.

    Attributes:
        events: all records of the events topic.
        letters: all records of the dead-letter topics.
        readable: the events that can be read.
        fates: fates of messages, by these events.
        copies: messages that have a dead letter.
        blocks: the published and rewound messages, in blocks.
        unreadable: the number of events and letters that cannot be read.
        cached: what has to be released at the end.
    """

    events: DataFrame
    letters: DataFrame
    readable: DataFrame
    fates: DataFrame
    copies: DataFrame
    blocks: DataFrame
    unreadable: int
    cached: tuple[DataFrame, ...]

    def all_fates(self, queue: str) -> DataFrame:
        """Return the fates of all messages, also of those that the ledger leaves out."""
        return account.fates_in_events(self.readable, queue)

    def quarantined(self) -> DataFrame:
        """Return the events and letters that cannot be read, with their faults."""
        return quarantine.split(self.events)[1].unionByName(quarantine.split(self.letters)[1])


def read_topics(
    spark: SparkSession,
    connection: Connection,
    queue: str,
    underlying: Sequence[str],
    dead_letter_topics: Sequence[str],
    starts: Mapping[tuple[str, int], int],
    since_ms: int | None,
    until_ms: int | None,
    written_with: Sequence[str],
) -> QueueTopics:
    """Read the topics of a queue: events first and messages last, so that all messages that events name are published.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        queue: name of the queue.
        underlying: all of its underlying topics.
        dead_letter_topics: further topics with its letters, beside `dlq.<queue>` and those that events name.
        starts: first offset of the queue, by topic and partition; others begin at the log's start.
        since_ms: leave out messages that arrived before this instant, ms since the epoch.
        until_ms: leave out fates decided, and messages that arrived, at this instant or later, ms since the epoch.
        written_with: further schemas of events, as in `event.parse`.
    """
    span = Span(fail_on_data_loss=False)
    events = read.events(spark, connection, [queue], span=span, written_with=written_with)
    with read.name_missing_topics([topics.events(queue)]):
        facts = events.select(*_EVENT_COLUMNS).persist()
    unreadable, named = _count_unreadable(facts)
    readable = facts.where(F.col("fault").isNull())
    pattern = "|".join(re.escape(name) for name in {topics.dead_letters(queue), *named, *dead_letter_topics})
    letters = read.dead_letters(spark, connection, pattern=pattern, span=span)
    lettered = letters.select(*_LETTER_COLUMNS).persist()
    unreadable += lettered.where(F.col("fault").isNotNull()).count()
    good = lettered.where(F.col("fault").isNull())
    raw = read.records(spark, connection, names=underlying, span=span)
    with read.name_missing_topics(underlying):
        messages = account.drop_before_start(account.published_messages(raw, queue), starts, last="offset")
        messages = messages.unionByName(account.rewound_messages(readable, queue, until_ms))
        blocks = account.gather_blocks(messages, since_ms, until_ms).persist()
    return QueueTopics(
        events=events,
        letters=letters,
        readable=readable,
        fates=account.drop_before_start(account.fates_in_events(readable, queue, until_ms), starts, last="last"),
        copies=account.drop_before_start(account.dead_lettered_messages(good, queue, until_ms), starts, last="last"),
        blocks=blocks,
        unreadable=unreadable,
        cached=(blocks, lettered, facts),
    )


def _count_unreadable(events: DataFrame) -> tuple[int, list[str]]:
    """Return the number of unreadable events, and the dead-letter topics that the others name."""
    rows = events.groupBy("dead_letter_topic").agg(F.count("fault").alias("faults")).collect()
    return sum(row["faults"] for row in rows), [row[0] for row in rows if row[0]]
