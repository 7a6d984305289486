"""Accounts: what Kafka knows of the fate of every message, for the ledger.

Events name ranges, letters and messages single offsets. All of them become blocks of 64 offsets, and each block is
parted into classes: bits of which the same is known. So the number of messages counts only while they are read; a
message that nothing odd is known of is never a row. Nothing is collected to the driver, and no Python runs on the
executors.
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
from lapse_spark import block, event, header
from lapse_spark.family import LAPSE

FATES: Final = tuple(kind for kind in EventKind if kind in TERMINAL)
"""How a message's stay in a queue can end; the place is the bit."""

REASONS: Final = (*(reason.value for reason in Reason), "other")
"""Why it left; the place is the bit. `other` stands for what this version does not know."""

STILL_QUEUED: Final = "still_queued"
CONTRADICTORY: Final = "contradictory"
ELSEWHERE: Final = "elsewhere"

_NOT_PUBLISHED, OURS, _ELSEWHERE = 0, 1, 2
"""Where a message is: not in the log, in it and for this queue, in it and for another one."""
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
    place = F.when(target.isNotNull() & (target != queue), _ELSEWHERE).otherwise(OURS)
    return raw.select("topic", "partition", "offset", F.unix_millis("timestamp").alias("at_ms"), place.alias("place"))


def told(events: DataFrame, queue: str, until_ms: int | None = None) -> DataFrame:
    """The fates that events tell: ranges of bookmarks with epoch and bit masks of fate and reasons.

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
        "topic", "partition", "first", "last", "epoch", fate.alias("fates"), _mask(F.col("reasons")).alias("reasons")
    )


def lettered(letters: DataFrame, queue: str, until_ms: int | None = None) -> DataFrame:
    """What the dead letters of a queue tell: bookmark, epoch and bit mask of reasons; a copy is told again.

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
        "epoch",
        _mask(F.col("reasons")).alias("letter"),
    )


def since(data: DataFrame, start: Mapping[tuple[str, int], int], *, last: str) -> DataFrame:
    """Leave out what ends before the start bookmark of its partition; `last` names the column with the offset."""
    for (topic, partition), offset in start.items():
        before = (F.col("topic") == topic) & (F.col("partition") == partition) & (F.col(last) < offset)
        data = data.where(~before)
    return data


def gather(messages: DataFrame, since_ms: int | None = None, until_ms: int | None = None) -> DataFrame:
    """The messages as blocks: bit masks `ours`, `elsewhere`, `early`, `late`, and the first and last offset.

    Args:
        messages: from `published`.
        since_ms: messages that arrived before this instant are `early`: the ledger is not about them.
        until_ms: messages that arrived at this instant or later are `late`: they count only with a fate.
    """
    each = block.bit(F.col("offset"))
    early = F.lit(False) if since_ms is None else F.col("at_ms") < since_ms
    late = F.lit(False) if until_ms is None else F.col("at_ms") >= until_ms
    flags = {"ours": F.col("place") == OURS, "elsewhere": F.col("place") == _ELSEWHERE, "early": early, "late": late}
    return messages.groupBy("topic", "partition", block.number(F.col("offset")).alias("block")).agg(
        *(F.bit_or(F.when(flag, each).otherwise(0)).alias(name) for name, flag in flags.items()),
        F.min("offset").alias("first"),
        F.max("offset").alias("last"),
    )


def reach(blocks: DataFrame) -> DataFrame:
    """First and last offset that the log of every partition has, from `gather`: as many rows as partitions."""
    return blocks.groupBy("topic", "partition").agg(F.min("first").alias("log_first"), F.max("last").alias("log_last"))


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


def accounts(blocks: DataFrame, fates: DataFrame, letters: DataFrame) -> DataFrame:
    """A row for each class of messages: `block`, `mask`, `place`, `state`, `fates`, `reasons`, `difference`.

    Of several epochs that tell a message's fate the highest counts: a worker that had lost its shard without noticing
    may have told another one. `superseded` says where one did.

    Args:
        blocks: from `gather`.
        fates: from `told`, `within` the log.
        letters: from `lettered`, `within` the log.
    """
    nothing = F.lit(None).cast(_STATEMENT)
    rows = blocks.select(*block.PLACE, *_MASKS, nothing.alias("statement")).unionByName(
        _statements(fates, letters).select(
            *block.PLACE, *(F.lit(0).cast("bigint").alias(name) for name in _MASKS), "statement"
        )
    )
    each = rows.groupBy(*block.PLACE).agg(
        *(F.bit_or(name).alias(name) for name in _MASKS), F.sort_array(F.collect_list("statement")).alias("statements")
    )
    classes = each.select(*block.PLACE, *_MASKS, F.inline(_classes(F.col("statements"))))
    told = F.col("fates").bitwiseOR(F.col("void")) != 0
    known = told | F.col("letter").isNotNull() | F.col("stale")
    counted = F.when(known, F.col("mask")).otherwise(block.without(F.col("mask"), F.col("late")))
    published = F.col("ours").bitwiseOR(F.col("elsewhere"))
    parts = (
        (OURS, F.col("ours")),
        (_ELSEWHERE, F.col("elsewhere")),
        (_NOT_PUBLISHED, F.when(known, F.bitwise_not(published)).otherwise(0)),
    )
    placed = (
        classes.withColumn("mask", block.without(counted, F.col("early")))
        .withColumn(
            "_part",
            F.explode(
                F.array(
                    *(F.struct(F.lit(n).alias("place"), F.col("mask").bitwiseAND(of).alias("m")) for n, of in parts)
                )
            ),
        )
        .withColumns({"place": F.col("_part.place"), "mask": F.col("_part.m")})
        .where(F.col("mask") != 0)
    )
    # What is told again after a lost reign agrees with it as a rule; then there is nothing to report.
    void = F.col("void").bitwiseOR(F.when(F.col("stale"), _DEAD).otherwise(0))
    superseded = block.without(void, F.col("fates")) != 0
    judged = placed.withColumns({"difference": _difference(), "superseded": superseded})
    reasons = F.coalesce(F.nullif(F.col("letter"), F.lit(0)), F.col("reasons"))
    return judged.withColumn("state", _state()).select(
        *block.PLACE, "mask", "place", "state", "fates", reasons.alias("reasons"), "difference", "superseded"
    )


def in_words(mask: Column, words: tuple[str, ...]) -> Column:
    """A bit mask as text, `time_limit,max_deliveries`."""
    return F.concat_ws(",", *(F.when(mask.bitwiseAND(1 << bit) != 0, word) for bit, word in enumerate(words)))


_MASKS: Final = ("ours", "elsewhere", "early", "late")
_STATEMENT: Final = "struct<epoch:bigint,fates:int,reasons:int,letter:int,mask:bigint>"
_UNKNOWN_EPOCH: Final = (1 << 63) - 1
"""Of a letter without `lapse-epoch`: it goes with whatever the events say."""


def _statements(fates: DataFrame, letters: DataFrame) -> DataFrame:
    """What is told of a block, each thing once, with the bits of the messages that it is told of."""
    by_events = block.cover(fates).withColumn("letter", F.lit(None).cast("int"))
    by_letters = block.cover(letters).withColumns(
        {"fates": F.lit(0), "reasons": F.lit(0), "epoch": F.coalesce("epoch", F.lit(_UNKNOWN_EPOCH))}
    )
    same = ("epoch", "fates", "reasons", "letter")
    return (
        by_events.unionByName(by_letters)
        .groupBy(*block.PLACE, *same)
        .agg(F.bit_or("mask").alias("mask"))
        .select(*block.PLACE, F.struct(*same, "mask").cast(_STATEMENT).alias("statement"))
    )


def _classes(statements: Column) -> Column:
    """Part a block's bits into classes of which the same is told; the statements come in the order of their epochs."""
    none = F.lit(None).cast("int")
    whole = F.struct(
        block.all_bits().alias("mask"),
        F.lit(-1).cast("bigint").alias("epoch"),
        F.lit(0).alias("fates"),
        F.lit(0).alias("reasons"),
        none.alias("letter"),
        none.alias("least"),
        F.lit(0).alias("void"),
        F.lit(False).alias("stale"),
    )

    def part(classes: Column, one: Column) -> Column:
        split = F.transform(classes, lambda known: F.array(_joined(known, one), _apart(known, one)))
        return F.filter(F.flatten(split), lambda known: known["mask"] != 0)

    return F.aggregate(statements, F.array(whole), part)


_CLASS: Final = ("mask", "epoch", "fates", "reasons", "letter", "least", "void", "stale")


def _joined(known: Column, one: Column) -> Column:
    """The bits that the statement is about, with it. A higher epoch's makes void what lower ones have told."""
    newer = (one["epoch"] > known["epoch"]) & (one["epoch"] != _UNKNOWN_EPOCH)
    letter = F.when(newer, F.lit(None).cast("int")).otherwise(known["letter"])
    least = F.when(newer, F.lit(None).cast("int")).otherwise(known["least"])
    facts = {
        "mask": known["mask"].bitwiseAND(one["mask"]),
        "epoch": F.when(newer, one["epoch"]).otherwise(known["epoch"]),
        "fates": F.when(newer, 0).otherwise(known["fates"]).bitwiseOR(one["fates"]),
        "reasons": F.when(newer, 0).otherwise(known["reasons"]).bitwiseOR(one["reasons"]),
        "letter": F.coalesce(letter.bitwiseOR(one["letter"]), letter, one["letter"]),
        "least": F.coalesce(least.bitwiseAND(one["letter"]), least, one["letter"]),
        "void": known["void"].bitwiseOR(F.when(newer, known["fates"]).otherwise(0)),
        "stale": known["stale"] | (newer & known["letter"].isNotNull()),
    }
    return F.struct(*(facts[name].alias(name) for name in _CLASS))


def _apart(known: Column, one: Column) -> Column:
    """The bits that the statement is not about, as they were."""
    rest = block.without(known["mask"], one["mask"])
    return F.struct(rest.alias("mask"), *(known[name].alias(name) for name in _CLASS[1:]))


def _mask(reasons: Column) -> Column:
    known = F.lit(0)
    for bit, reason in enumerate(REASONS[:-1]):
        known = known.bitwiseOR(F.when(F.array_contains(reasons, reason), 1 << bit).otherwise(0))
    foreign = F.size(F.array_except(reasons, F.array(*(F.lit(reason) for reason in REASONS[:-1])))) > 0
    return known.bitwiseOR(F.when(foreign, 1 << (len(REASONS) - 1)).otherwise(0))


def _difference() -> Column:
    says_dead = F.col("fates").bitwiseAND(_DEAD) != 0
    # A letter has the same id in every epoch, so the one of a lost reign is as good.
    has_letter = F.col("letter").isNotNull() | (says_dead & F.col("stale"))
    fates = F.col("fates").bitwiseOR(F.when(F.col("letter").isNotNull(), _DEAD).otherwise(0))
    differ = (F.col("letter") != F.col("least")) | (
        (F.col("reasons") != 0) & (F.col("reasons") != F.col("letter")) & says_dead
    )
    return (
        F.when(F.col("place") == _NOT_PUBLISHED, Difference.NOT_PUBLISHED.value)
        .when((F.col("place") == _ELSEWHERE) & (fates != 0), Difference.NOT_FOR_THIS_QUEUE.value)
        .when(F.bit_count(fates) > 1, Difference.SEVERAL_FATES.value)
        .when(says_dead & ~has_letter, Difference.LETTER_MISSING.value)
        .when(F.col("letter").isNotNull() & ~says_dead, Difference.EVENT_MISSING.value)
        .when(F.col("letter").isNotNull() & differ, Difference.REASONS_DIFFER.value)
    )


def _state() -> Column:
    state = F.when(F.col("difference").isNotNull(), CONTRADICTORY).when(F.col("place") == _ELSEWHERE, ELSEWHERE)
    for bit, kind in enumerate(FATES):
        state = state.when(F.col("fates") == 1 << bit, kind.value)
    return state.otherwise(STILL_QUEUED)
