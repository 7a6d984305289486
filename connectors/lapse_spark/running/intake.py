"""The intake of a running ledger: the facts in a queue's topics as one stream of narrow rows (D8).

Each batch has the messages, events and letters since the last one. The stream includes a clock, so that batches come
even if nothing happens, because differences are reported after some time.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import orjson
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse.protocol import topic as topics
from lapse.protocol.bookmark import Bookmark
from lapse.protocol.event import EventKind
from lapse.protocol.letter_family import LAPSE
from lapse_client.error import LapseError
from lapse_spark import read
from lapse_spark.account import account, generation
from lapse_spark.account.verdict import UNKNOWN_EPOCH
from lapse_spark.connection import Connection
from lapse_spark.read import Span
from lapse_spark.stream.output import Output

MESSAGE, REPORTED, FAULT, CLOCK = "message", "reported", "fault", "clock"
"""Kinds of rows: published messages, facts from events or letters, unreadable records, and the clock."""

COLUMNS: Final = {
    "kind": "string",
    "topic": "string",
    "partition": "int",
    "first": "bigint",
    "last": "bigint",
    "place": "int",
    "epoch": "bigint",
    "fates": "int",
    "reasons": "int",
    "letter": "int",
    "at_ms": "bigint",
    "letter_topic": "string",
}
"""Columns: ranges of messages with their `place` as in `account.published_messages`, or with `verdict.SAME`."""

_SPAN: Final = Span(streaming=True, fail_on_data_loss=False)
_MESSAGES: Final = 0
"""Index of the underlying topics among the sources of the stream."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Followed:
    """A queue with a running ledger.

    Attributes:
        name: name of the queue.
        underlying: all of its underlying topics.
        dead_letter_topics: further topics with its letters, beside `dlq.<queue>` and those that events name.
        start: bookmark of its first message per partition; default: the log's start.
        app_id: `app_id` of its deployment, which is in its journal's name; None = search for it.
        matching: regular expression for whole names of further underlying topics, which may be created later.
    """

    name: str
    underlying: Sequence[str]
    dead_letter_topics: Collection[str] = ()
    start: Sequence[Bookmark] = ()
    app_id: str | None = None
    matching: re.Pattern[str] | None = None

    def present_topics(self, connection: Connection, known: Collection[str] | None = None) -> set[str]:
        """Return its underlying topics, those that match now included.

        Args:
            connection: connection to the cluster.
            known: the answer if no broker answers; None = there is none.

        Raises:
            LapseError: no broker answers, and there is no answer for that.
        """
        if self.matching is None:
            return {*self.underlying}
        try:
            there = connection.of_lapse().partitions()
        except LapseError:
            if known is None:
                raise
            return {*known}
        return {*self.underlying, *filter(self.reads, there)}

    def reads(self, topic: str) -> bool:
        """Return whether a topic is one of its underlying topics, by name or by pattern."""
        return topic in self.underlying or (self.matching is not None and self.matching.fullmatch(topic) is not None)

    @property
    def starts(self) -> dict[tuple[str, int], int]:
        """The offsets of `start` by topic and partition."""
        return {(mark.topic, mark.partition): mark.offset for mark in self.start}


def stream(
    spark: SparkSession,
    connection: Connection,
    queue: Followed,
    underlying: Collection[str],
    letter_topics: Collection[str],
    written_with: Sequence[str] = (),
) -> DataFrame:
    """Return the intake as a streaming DataFrame.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        queue: the queue.
        underlying: its existing underlying topics.
        letter_topics: all topics with its letters. They need not exist.
        written_with: further schemas of events, as in `event.parse`.
    """
    # The index of a source in this union is its index in the checkpoint.
    if queue.matching is None:
        raw = read.records(spark, connection, names=queue.underlying, span=_SPAN)
    else:
        raw = read.records(spark, connection, pattern=_topic_pattern(underlying) or _NONE, span=_SPAN)
    parts = [_messages(account.published_messages(raw, queue.name))]
    events = read.events(spark, connection, [queue.name], span=_SPAN, written_with=written_with)
    parts.append(_events(events, queue.name))
    letters = read.dead_letters(spark, connection, pattern=_topic_pattern(letter_topics), span=_SPAN)
    parts.append(_letters(letters, queue.name))
    ticks = spark.readStream.format("rate").option("rowsPerSecond", 1).load()
    parts.append(_rows(ticks, {"kind": F.lit(CLOCK)}))
    first, *rest = parts
    for part in rest:
        first = first.unionByName(part)
    return account.drop_before_start(first, queue.starts, last="last")


_NONE: Final = r"[^\s\S]"
"""A regular expression that matches no topic's name."""


def _topic_pattern(names: Collection[str]) -> str:
    """Return a Java regular expression for topics, which need not exist."""
    return "|".join(re.escape(name) for name in sorted(names))


@dataclass(frozen=True, slots=True)
class Reach:
    """How far the underlying topics have been read.

    Attributes:
        begins: the first offset when the account began, by topic and partition; 0 for later partitions.
        ends: the next offset to be read, by topic and partition.
        at_ms: when the batch was planned, ms since the epoch.
    """

    begins: Mapping[tuple[str, int], int]
    ends: Mapping[tuple[str, int], int]
    at_ms: int


def reach(output: Output, number: int, starts: Mapping[tuple[str, int], int]) -> Reach:
    """Return the reach of a batch from the checkpoint, so that it is the same if the batch is repeated.

    Args:
        output: output of the ledger, with its checkpoint.
        number: number of the batch.
        starts: start offsets from `Followed`.
    """
    _, metadata, *sources = output.text(f"_checkpoint/offsets/{number}").splitlines()
    ends = _offsets(sources[_MESSAGES])
    found = _offsets(output.text(f"_checkpoint/sources/{_MESSAGES}/0").split("\n", 1)[1])
    begins = {place: max(found.get(place, 0), starts.get(place, 0)) for place in ends}
    return Reach(begins, ends, int(orjson.loads(metadata)["batchTimestampMs"]))


def _offsets(text: str) -> dict[tuple[str, int], int]:
    offsets: Any = orjson.loads(text) if text.strip() not in ("", "-") else {}
    return {(topic, int(number)): offset for topic, parts in offsets.items() for number, offset in parts.items()}


def _rows(data: DataFrame, facts: Mapping[str, Column]) -> DataFrame:
    """Return the columns of a row. Columns without a fact are null."""
    return data.select(*(facts.get(name, F.lit(None)).cast(kind).alias(name) for name, kind in COLUMNS.items()))


def _messages(published: DataFrame) -> DataFrame:
    offset = F.col("offset")
    facts = {name: F.col(name) for name in ("topic", "partition", "place", "at_ms")}
    return _rows(published, {"kind": F.lit(MESSAGE), **facts, "first": offset, "last": offset})


def _events(events: DataFrame, queue: str) -> DataFrame:
    """Return rows for fates, for rewound messages, and for events that are unreadable or of another entity."""
    back = F.col("event") == EventKind.REWOUND.value
    fate = account.fate_bit(F.col("event"))
    bad = F.col("fault").isNotNull() | (F.col("entity") != queue)
    kind = F.when(bad, FAULT).when(back, MESSAGE).when(fate != 0, REPORTED)
    counted = F.when(~bad, F.col("messages"))
    facts = ("at_ms", "epoch", "event", "dead_letter_topic", "reasons")
    each = events.select(kind.alias("kind"), *facts, F.inline_outer(counted)).where(F.col("kind").isNotNull())
    is_known = (F.col("kind") == FAULT) | F.col("topic").isNotNull()
    dead = F.col("event") == EventKind.DEAD_LETTERED.value
    message = F.col("kind") == MESSAGE
    return _rows(
        generation.split_positions(each.where(is_known)),
        {
            **{name: F.col(name) for name in ("kind", "topic", "partition", "first", "last", "at_ms")},
            "epoch": F.when(~message, F.col("epoch")),
            "place": F.when(message, account.OURS),
            "fates": F.when(~message, fate),
            "reasons": F.when(~message, account.reason_bits(F.col("reasons"))),
            "letter_topic": F.when(dead, F.nullif("dead_letter_topic", F.lit(""))),
        },
    )


def _letters(letters: DataFrame, queue: str) -> DataFrame:
    """Return rows for the queue's letters, and for records on its default topic that are no letters."""
    bad = F.col("fault").isNotNull() & (F.col("letter_topic") == topics.dead_letters(queue))
    ours = F.col("fault").isNull() & (F.col("family") == LAPSE.name) & (F.col("entity") == queue)
    each = letters.withColumn("kind", F.when(bad, FAULT).when(ours, REPORTED)).where(F.col("kind").isNotNull())
    return _rows(
        each,
        {
            "kind": F.col("kind"),
            "topic": account.topic_with_generation(),
            "partition": F.col("partition"),
            "first": F.col("offset"),
            "last": F.col("offset"),
            "epoch": F.coalesce("epoch", F.lit(UNKNOWN_EPOCH)),
            "fates": F.lit(0),
            "reasons": F.lit(0),
            "letter": account.reason_bits(F.col("reasons")),
            "at_ms": F.col("expired_at_ms"),
        },
    )
