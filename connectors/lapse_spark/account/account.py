"""Accounts: the facts about messages in each topic of a queue. `verdict` combines them.

Messages are kept as blocks of 64 offsets, events and letters as ranges. Only the ends of the logs are collected to the
driver, and no Python runs on the executors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core import letter
from lapse.core.reason import Reason
from lapse.protocol import header as names
from lapse.protocol.event import TERMINAL, EventKind
from lapse.protocol.letter_family import LAPSE
from lapse_spark import local_rows
from lapse_spark.account import generation
from lapse_spark.records import event, header
from lapse_spark.running import block

FATES: Final = tuple(kind for kind in EventKind if kind in TERMINAL)
"""The fates with which messages leave a queue. A fate's index is its bit."""

REASONS: Final = (*(reason.value for reason in Reason), "other")
"""The reasons of removals. A reason's index is its bit. `other` stands for reasons that this version does not know."""

NOT_PUBLISHED, OURS, REDRIVEN = 0, 1, 2
"""The place of a message: not in the log, in the log for this queue, or in the log for another queue."""


def published_messages(raw: DataFrame, queue: str) -> DataFrame:
    """Return the messages of the underlying topics: bookmark, timestamp, and the place for this queue (C29, Q17).

    Args:
        raw: `schema.RAW`, from `read.records`.
        queue: the ledger's queue. A record that was redriven or handed over to another queue is not its message. But
            the letter of another program is, whose headers are history (C54).
    """
    newest = header.newest_first(F.col("headers"))
    # First check whether a header exists, because millions of records do not have it.
    there = F.col("headers")["key"]
    redriven = F.array_contains(there, names.REDRIVE_QUEUE) & (header.text(newest, names.REDRIVE_QUEUE) != queue)
    handed_to = F.regexp_extract(header.text(newest, names.TRANSFER), "^([^/]+)/.", 1)
    handed_over = F.array_contains(there, names.TRANSFER) & (handed_to != "") & (handed_to != queue)
    place = F.when(redriven | handed_over, F.when(_is_letter(newest), OURS).otherwise(REDRIVEN)).otherwise(OURS)
    return raw.select("topic", "partition", "offset", F.unix_millis("timestamp").alias("at_ms"), place.alias("place"))


def _is_letter(newest: Column) -> Column:
    """Return whether a record is a letter as its writer left it; see `lapse.core.letter.is_letter`."""
    telling = F.filter(newest, lambda each: each["key"].isin(*letter.MARKERS, *letter.PUT) | _is_forwarded(each))
    return F.get(telling, F.lit(0))["key"].isin(*letter.MARKERS)


def _is_forwarded(each: Column) -> Column:
    """Return whether a header is the id of a forwarded record (C78)."""
    return (each["key"] == letter.MESSAGE_ID) & each["value"].startswith(F.lit(letter.FORWARDED))


def fates_in_events(events: DataFrame, queue: str, until_ms: int | None = None) -> DataFrame:
    """Return the fates in events: ranges of bookmarks with epoch and bit masks of fate and reasons.

    Args:
        events: readable events, `schema.EVENT`.
        queue: name of the queue. Events of other entities are ignored.
        until_ms: use only events decided before this instant, ms since the epoch; None = all.
    """
    ends = events.where((F.col("entity") == queue) & F.col("event").isin([kind.value for kind in FATES]))
    if until_ms is not None:
        ends = ends.where(F.col("at_ms") < until_ms)
    return generation.split_positions(event.ranges(ends)).select(
        *("topic", "partition", "first", "last", "epoch"),
        fate_bit(F.col("event")).alias("fates"),
        reason_bits(F.col("reasons")).alias("reasons"),
    )


def rewound_messages(events: DataFrame, queue: str, until_ms: int | None = None) -> DataFrame:
    """Return messages that rewinds brought back, in the columns of `published_messages` (C61).

    Each counts as published again.

    Args:
        events: readable events, `schema.EVENT`.
        queue: name of the queue. Events of other entities are ignored.
        until_ms: use only rewinds before this instant, ms since the epoch; None = all.
    """
    back = events.where((F.col("entity") == queue) & (F.col("event") == EventKind.REWOUND.value))
    if until_ms is not None:
        back = back.where(F.col("at_ms") < until_ms)
    each = event.each_message(generation.split_positions(event.ranges(back)))
    return each.select("topic", "partition", "offset", "at_ms", F.lit(OURS).alias("place"))


_GENERATION: Final = "~([0-9]+)/[0-9]+$"
"""Finds the generation in a `lapse-id`."""


def dead_lettered_messages(letters: DataFrame, queue: str, until_ms: int | None = None) -> DataFrame:
    """Return bookmark, epoch and bit mask of reasons of a queue's dead letters, copies included.

    Args:
        letters: readable letters, `schema.DEAD_LETTER`.
        queue: name of the queue. Letters of other entities are ignored.
        until_ms: use only letters decided before this instant, ms since the epoch; None = all.
    """
    ours = letters.where((F.col("family") == LAPSE.name) & (F.col("entity") == queue))
    if until_ms is not None:
        ours = ours.where(F.col("expired_at_ms") < until_ms)
    return ours.select(
        topic_with_generation().alias("topic"),
        "partition",
        F.col("offset").alias("first"),
        F.col("offset").alias("last"),
        "epoch",
        reason_bits(F.col("reasons")).alias("letter"),
    )


def topic_with_generation() -> Column:
    """Return the topic of a letter's message with its generation, which is only in the letter's id."""
    rewound = F.regexp_extract("id", _GENERATION, 1).try_cast("int")
    return generation.name_column(F.col("topic"), F.coalesce(rewound, F.lit(0)))


def drop_before_start(data: DataFrame, start: Mapping[tuple[str, int], int], *, last: str) -> DataFrame:
    """Drop rows that end before the start bookmark of their partition. `last` names the column with the offset."""
    for (topic, partition), offset in start.items():
        before = (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col(last) < offset)
        data = data.where(~before)
    return data


def gather_blocks(messages: DataFrame, since_ms: int | None = None, until_ms: int | None = None) -> DataFrame:
    """Return messages as blocks: bit masks `ours`, `elsewhere`, `early`, `late`, and the first and last offset.

    Args:
        messages: messages from `published_messages`.
        since_ms: messages that arrived before this instant are `early`, and not in the ledger. ms since the epoch.
        until_ms: messages that arrived at this instant or later are `late`, and count only with a fate.
    """
    each = block.bit(F.col("offset"))
    early = F.lit(False) if since_ms is None else F.col("at_ms") < since_ms
    late = F.lit(False) if until_ms is None else F.col("at_ms") >= until_ms
    flags = {"ours": F.col("place") == OURS, "elsewhere": F.col("place") == REDRIVEN, "early": early, "late": late}
    return messages.groupBy("topic", "partition", block.number(F.col("offset")).alias("block")).agg(
        *(F.bit_or(F.when(flag, each).otherwise(0)).alias(name) for name, flag in flags.items()),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    )


def log_ranges(blocks: DataFrame) -> DataFrame:
    """Return the first and last offset in the log of every partition, from `gather_blocks`: one row per partition.

    The rows are from the driver, so that plans that use them several times need not find them each time.
    """
    found = blocks.groupBy("topic", "partition").agg(F.min("first"), F.max("last")).collect()
    columns = "topic string, partition int, log_first bigint, log_last bigint"
    return local_rows.frame(blocks.sparkSession, [tuple(row) for row in found], columns)


def cut_to_log(ranges: DataFrame, logs: DataFrame) -> DataFrame:
    """Cut ranges to the offsets of the log, so that a damaged range cannot become huge."""
    both = ranges.join(F.broadcast(logs), ["topic", "partition"])
    cut = both.withColumns({"first": F.greatest("first", "log_first"), "last": F.least("last", "log_last")})
    return cut.where(F.col("first") <= F.col("last")).drop("log_first", "log_last")


def ranges_outside_log(fates: DataFrame, letters: DataFrame, logs: DataFrame) -> DataFrame:
    """Return ranges outside the log, with `side`, `by_event`, `fates` and `reasons`.

    The side is `before` the log's beginning, or `after` its end. Bits of fates are from events alone, those of reasons
    from letters, too.
    """
    place = ("topic", "partition", "first", "last")
    reported = fates.select(*place, F.lit(True).alias("by_event"), "fates", "reasons")
    lettered = letters.select(
        *place, F.lit(False).alias("by_event"), F.lit(0).alias("fates"), F.col("letter").alias("reasons")
    )
    both = reported.unionByName(lettered)
    both = both.join(F.broadcast(logs), ["topic", "partition"], "left")
    begin, end = F.col("log_first"), F.coalesce(F.col("log_last"), F.lit(-1))
    first, last = F.col("first"), F.col("last")
    # Each row is read once, because the sides are no plans of their own.
    sides = F.array(
        F.when(
            first < begin,
            F.struct(first.alias("first"), F.least(last, begin - 1).alias("last"), F.lit("before").alias("side")),
        ),
        F.when(
            last > end,
            F.struct(F.greatest(first, end + 1).alias("first"), last.alias("last"), F.lit("after").alias("side")),
        ),
    )
    parts = both.select("topic", "partition", "by_event", "fates", "reasons", F.inline(F.array_compact(sides)))
    return parts.groupBy(*place, "side").agg(
        F.max("by_event").alias("by_event"), *(F.bit_or(name).alias(name) for name in ("fates", "reasons"))
    )


def mask_to_text(mask: Column, words: tuple[str, ...]) -> Column:
    """Convert a bit mask to text, such as `time_limit,max_deliveries`."""
    return F.concat_ws(",", *(F.when(mask.bitwiseAND(1 << bit) != 0, word) for bit, word in enumerate(words)))


def fate_bit(kind: Column) -> Column:
    """Return the bit of a kind of event in `FATES`; 0 if it is not a fate."""
    fate = F.lit(0)
    for bit, one in enumerate(FATES):
        fate = F.when(kind == one.value, 1 << bit).otherwise(fate)
    return fate


def reason_bits(reasons: Column) -> Column:
    """Return the bit mask of reasons in `REASONS`."""
    known = F.lit(0)
    for bit, reason in enumerate(REASONS[:-1]):
        known = known.bitwiseOR(F.when(F.array_contains(reasons, reason), 1 << bit).otherwise(0))
    foreign = F.size(F.array_except(reasons, F.array(*(F.lit(reason) for reason in REASONS[:-1])))) > 0
    return known.bitwiseOR(F.when(foreign, 1 << (len(REASONS) - 1)).otherwise(0))
