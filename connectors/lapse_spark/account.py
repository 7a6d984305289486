"""Accounts: one row per bookmark, with all that Kafka knows of its fate. What the ledger is reckoned from.

Everything is a shuffle by bookmark and an aggregation over bit masks: nothing is collected to the driver, no Python
runs on the executors, and 20 million messages need no more memory than a thousand.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.reason import Reason
from lapse.protocol import header as names
from lapse.protocol.event import TERMINAL, EventKind
from lapse_spark import event, header
from lapse_spark.family import LAPSE

FATES: Final = tuple(kind for kind in EventKind if kind in TERMINAL)
"""How a message's stay in a queue can end; the place is the bit."""

REASONS: Final = (*(reason.value for reason in Reason), "other")
"""Why it left; the place is the bit. `other` stands for what this version does not know."""

STILL_QUEUED: Final = "still_queued"
CONTRADICTORY: Final = "contradictory"
ELSEWHERE: Final = "elsewhere"

_OURS, _ELSEWHERE = 1, 2
_DEAD: Final = 1 << FATES.index(EventKind.DEAD_LETTERED)


class Difference(StrEnum):
    """What does not add up about a message."""

    NOT_PUBLISHED = "not_published"  # an event or a letter names it, and the log does not have it
    NOT_FOR_THIS_QUEUE = "not_for_this_queue"  # redriven to another queue (C29), and this one told its fate
    SEVERAL_FATES = "several_fates"  # acknowledged and dead-lettered, for instance
    LETTER_MISSING = "letter_missing"  # the event says dead_lettered, no letter names it
    EVENT_MISSING = "event_missing"  # a letter names it, no event says dead_lettered
    REASONS_DIFFER = "reasons_differ"  # two letters, or event and letter, give different reasons


def published(raw: DataFrame, queue: str) -> DataFrame:
    """The messages of the underlying topics: bookmark, timestamp, and whether they are for this queue (C29).

    Args:
        raw: `schema.RAW`, from `read.records`.
        queue: whose ledger it is: a record redriven to another queue is not its message.
    """
    target = header.text(header.newest_first(F.col("headers")), names.REDRIVE_QUEUE)
    place = F.when(target.isNotNull() & (target != queue), _ELSEWHERE).otherwise(_OURS)
    return raw.select("topic", "partition", "offset", F.unix_millis("timestamp").alias("at_ms"), place.alias("place"))


def told(events: DataFrame, queue: str, until_ms: int | None = None) -> DataFrame:
    """The fates that events tell: ranges of bookmarks with bit masks of fate and reasons.

    Args:
        events: readable ones, `schema.EVENT`.
        queue: whose they must be.
        until_ms: only what was decided before this instant, ms since the epoch.
    """
    fate = F.lit(0)
    for bit, kind in enumerate(FATES):
        fate = F.when(F.col("event") == kind.value, 1 << bit).otherwise(fate)
    ends = events.where((F.col("entity") == queue) & F.col("event").isin([kind.value for kind in FATES]))
    if until_ms is not None:
        ends = ends.where(F.col("at_ms") < until_ms)
    return event.ranges(ends).select(
        "topic", "partition", "first", "last", fate.alias("fates"), _mask(F.col("reasons")).alias("reasons")
    )


def lettered(letters: DataFrame, queue: str, until_ms: int | None = None) -> DataFrame:
    """What the dead letters of a queue tell: bookmark and bit mask of reasons; a copy is told again.

    Args:
        letters: readable ones, `schema.DEAD_LETTER`.
        queue: whose they must be.
        until_ms: only what was decided before this instant, ms since the epoch.
    """
    ours = letters.where((F.col("family") == LAPSE.name) & (F.col("entity") == queue))
    if until_ms is not None:
        ours = ours.where(F.col("expired_at_ms") < until_ms)
    return ours.select(
        "topic",
        "partition",
        F.col("offset").alias("first"),
        F.col("offset").alias("last"),
        _mask(F.col("reasons")).alias("letter"),
    )


def since(data: DataFrame, start: Mapping[tuple[str, int], int], *, last: str) -> DataFrame:
    """Leave out what ends before the start bookmark of its partition; `last` names the column with the offset."""
    for (topic, partition), offset in start.items():
        before = (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col(last) < offset)
        data = data.where(~before)
    return data


def reach(messages: DataFrame) -> DataFrame:
    """First and last offset that the log of every partition has: as many rows as partitions."""
    return messages.groupBy("topic", "partition").agg(
        F.min("offset").alias("log_first"), F.max("offset").alias("log_last")
    )


def within(ranges: DataFrame, logs: DataFrame) -> DataFrame:
    """Cut ranges to what the log has, so that no damaged range can grow beyond it."""
    both = ranges.join(F.broadcast(logs), ["topic", "partition"])
    cut = both.withColumn("first", F.greatest("first", "log_first")).withColumn("last", F.least("last", "log_last"))
    return cut.where(F.col("first") <= F.col("last")).drop("log_first", "log_last")


def beyond(fates: DataFrame, letters: DataFrame, logs: DataFrame) -> DataFrame:
    """What the log does not have, as ranges with `side` (`before` its beginning, or `after` it) and `by_event`."""
    place = ("topic", "partition", "first", "last")
    told = fates.select(*place, F.lit(True).alias("by_event"))
    both = told.unionByName(letters.select(*place, F.lit(False).alias("by_event")))
    both = both.join(F.broadcast(logs), ["topic", "partition"], "left")
    begin, end = F.col("log_first"), F.coalesce(F.col("log_last"), F.lit(-1))
    before = both.where(F.col("first") < begin).select(
        "topic",
        "partition",
        "first",
        F.least("last", begin - 1).alias("last"),
        F.lit("before").alias("side"),
        "by_event",
    )
    after = both.where(F.col("last") > end).select(
        "topic",
        "partition",
        F.greatest("first", end + 1).alias("first"),
        "last",
        F.lit("after").alias("side"),
        "by_event",
    )
    return before.unionByName(after).groupBy(*place, "side").agg(F.max("by_event").alias("by_event"))


def accounts(messages: DataFrame, fates: DataFrame, letters: DataFrame, until_ms: int | None = None) -> DataFrame:
    """One row per bookmark, with `state`, `reasons` (bit mask) and `difference`.

    Args:
        messages: from `published`.
        fates: from `told`, `within` the log.
        letters: from `lettered`, `within` the log.
        until_ms: messages without a fate that arrived at this instant or later are left out.
    """
    none, zero = F.lit(None).cast("int"), F.lit(0)
    rows = (
        messages.select(*_BOOKMARK, "at_ms", "place", zero.alias("fates"), zero.alias("reasons"), none.alias("letter"))
        .unionByName(
            _each(fates).selectExpr(*_BOOKMARK, *_NOT_PUBLISHED, "fates", "reasons", "CAST(NULL AS INT) AS letter")
        )
        .unionByName(_each(letters).selectExpr(*_BOOKMARK, *_NOT_PUBLISHED, "0 AS fates", "0 AS reasons", "letter"))
    )
    each = rows.groupBy(*_BOOKMARK).agg(
        F.max("at_ms").alias("at_ms"),
        F.max("place").alias("place"),
        F.bit_or("fates").alias("fates"),
        F.bit_or("reasons").alias("event_reasons"),
        F.bit_or("letter").alias("letter"),
        (F.bit_or("letter") != F.bit_and("letter")).alias("letters_differ"),
    )
    if until_ms is not None:
        each = each.where((F.col("at_ms") < until_ms) | (F.col("fates") != 0) | F.col("letter").isNotNull())
    each = each.withColumn("difference", _difference())
    return each.withColumn("state", _state()).withColumn(
        "reasons", F.coalesce(F.nullif(F.col("letter"), F.lit(0)), F.col("event_reasons"))
    )


def in_words(mask: Column, words: tuple[str, ...]) -> Column:
    """A bit mask as text, `time_limit,max_deliveries`."""
    return F.concat_ws(",", *(F.when(mask.bitwiseAND(1 << bit) != 0, word) for bit, word in enumerate(words)))


_BOOKMARK: Final = ("topic", "partition", "offset")
_NOT_PUBLISHED: Final = ("CAST(NULL AS BIGINT) AS at_ms", "0 AS place")


def _each(ranges: DataFrame) -> DataFrame:
    return ranges.withColumn("offset", F.explode(F.sequence("first", "last")))


def _mask(reasons: Column) -> Column:
    known = F.lit(0)
    for bit, reason in enumerate(REASONS[:-1]):
        known = known.bitwiseOR(F.when(F.array_contains(reasons, reason), 1 << bit).otherwise(0))
    foreign = F.size(F.array_except(reasons, F.array(*(F.lit(reason) for reason in REASONS[:-1])))) > 0
    return known.bitwiseOR(F.when(foreign, 1 << (len(REASONS) - 1)).otherwise(0))


def _difference() -> Column:
    has_letter = F.col("letter").isNotNull()
    fates = F.col("fates").bitwiseOR(F.when(has_letter, _DEAD).otherwise(0))
    says_dead = F.col("fates").bitwiseAND(_DEAD) != 0
    differ = F.col("letters_differ") | (
        (F.col("event_reasons") != 0) & (F.col("event_reasons") != F.col("letter")) & says_dead
    )
    return (
        F.when(F.coalesce(F.col("place"), F.lit(0)) == 0, Difference.NOT_PUBLISHED.value)
        .when((F.col("place") == _ELSEWHERE) & (fates != 0), Difference.NOT_FOR_THIS_QUEUE.value)
        .when(F.bit_count(fates) > 1, Difference.SEVERAL_FATES.value)
        .when(says_dead & ~has_letter, Difference.LETTER_MISSING.value)
        .when(has_letter & ~says_dead, Difference.EVENT_MISSING.value)
        .when(has_letter & differ, Difference.REASONS_DIFFER.value)
    )


def _state() -> Column:
    state = F.when(F.col("difference").isNotNull(), CONTRADICTORY).when(F.col("place") == _ELSEWHERE, ELSEWHERE)
    for bit, kind in enumerate(FATES):
        state = state.when(F.col("fates") == 1 << bit, kind.value)
    return state.otherwise(STILL_QUEUED)
