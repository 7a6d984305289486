"""What the topics have of one queue: events, dead letters and messages, read for its ledger (D3)."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
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
class Scope:
    """Which messages and fates of a queue a ledger counts, and where their letters are.

    Attributes:
        dead_letter_topics: further topics with its letters, beside `dlq.<queue>` and those that events name.
        starts: offset of the first message of the queue (its recovery point), by topic and partition; others begin at
            the log's start.
        since_ms: count only messages that arrived at this instant or later, ms since the epoch.
        until_ms: count only fates decided, and messages that arrived, before this instant, ms since the epoch.
        written_with: further schemas of events, as in `event.parse`.
    """

    dead_letter_topics: Sequence[str] = ()
    starts: Mapping[tuple[str, int], int] = field(default_factory=dict)
    since_ms: int | None = None
    until_ms: int | None = None
    written_with: Sequence[str] = ()


ALL: Final = Scope()
"""All messages and fates."""


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
    """

    events: DataFrame
    letters: DataFrame
    readable: DataFrame
    fates: DataFrame
    copies: DataFrame
    blocks: DataFrame
    unreadable: int

    def all_fates(self, queue: str) -> DataFrame:
        """Return the fates of all messages, also of those that the ledger leaves out."""
        return account.fates_in_events(self.readable, queue)

    def quarantined(self) -> DataFrame:
        """Return the events and letters that cannot be read, with their faults."""
        return quarantine.split(self.events)[1].unionByName(quarantine.split(self.letters)[1])


@contextmanager
def read_topics(
    spark: SparkSession, connection: Connection, queue: str, underlying: Sequence[str], scope: Scope
) -> Iterator[QueueTopics]:
    """Read the topics of a queue: events first and messages last, so that all messages that events name are published.

    What is cached is released at the end.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        queue: name of the queue.
        underlying: all of its underlying topics.
        scope: which of its messages and fates count.
    """
    starts, until_ms = scope.starts, scope.until_ms
    span = Span(fail_on_data_loss=False)
    with ExitStack() as cached:
        events = read.events(spark, connection, [queue], span=span, written_with=scope.written_with)
        with read.name_missing_topics([topics.events(queue)]):
            facts = _persist(events.select(*_EVENT_COLUMNS), cached)
        unreadable, named = _count_unreadable(facts)
        readable = facts.where(F.col("fault").isNull())
        places = {topics.dead_letters(queue), *named, *scope.dead_letter_topics}
        letters = read.dead_letters(spark, connection, pattern="|".join(map(re.escape, places)), span=span)
        lettered = _persist(letters.select(*_LETTER_COLUMNS), cached)
        unreadable += lettered.where(F.col("fault").isNotNull()).count()
        good = lettered.where(F.col("fault").isNull())
        raw = read.records(spark, connection, names=underlying, span=span)
        with read.name_missing_topics(underlying):
            messages = account.drop_before_start(account.published_messages(raw, queue), starts, last="offset")
            messages = messages.unionByName(account.rewound_messages(readable, queue, until_ms))
            blocks = _persist(account.gather_blocks(messages, scope.since_ms, until_ms), cached)
        yield QueueTopics(
            events=events,
            letters=letters,
            readable=readable,
            fates=account.drop_before_start(account.fates_in_events(readable, queue, until_ms), starts, last="last"),
            copies=account.drop_before_start(
                account.dead_lettered_messages(good, queue, until_ms), starts, last="last"
            ),
            blocks=blocks,
            unreadable=unreadable,
        )


def _persist(frame: DataFrame, cached: ExitStack) -> DataFrame:
    """Cache a frame until `cached` is closed."""
    cached.callback(frame.unpersist)
    return frame.persist()


def _count_unreadable(events: DataFrame) -> tuple[int, list[str]]:
    """Return the number of unreadable events, and the dead-letter topics that the others name."""
    rows = events.groupBy("dead_letter_topic").agg(F.count("fault").alias("faults")).collect()
    return sum(row["faults"] for row in rows), [row[0] for row in rows if row[0]]
