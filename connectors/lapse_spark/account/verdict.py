"""Verdicts: they combine the accounts of messages, events and letters, and find contradictions (D3, D4).

Each block of 64 offsets is divided into classes of messages with the same facts. So the number of messages matters only
while they are read: a message without anything unusual is never a row of its own.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.core.reason import Reason
from lapse.protocol.event import EventKind
from lapse_spark.account.account import FATES, NOT_PUBLISHED, OURS, REASONS, REDRIVEN
from lapse_spark.running import block

STILL_QUEUED: Final = "still_queued"
CONTRADICTORY: Final = "contradictory"
ELSEWHERE: Final = "elsewhere"


_DEAD: Final = 1 << FATES.index(EventKind.DEAD_LETTERED)
_REMOVED: Final = _DEAD | 1 << FATES.index(EventKind.EXPIRED)
_LATE: Final = 1 << REASONS.index(Reason.TIME_LIMIT.value)

_JOURNALED: Final = 8
"""The bits of the journal's facts begin here, above the bits of the events' fates."""

IN_TIME: Final = 1 << _JOURNALED
"""A bit in the fates of a statement: the journal says that the message left before its lifetime had ended."""

OVERDUE: Final = 1 << (_JOURNALED + 1)
"""A bit in the fates of a statement: the journal says that the message left because its lifetime had ended."""


class Difference(StrEnum):
    """The kinds of contradictions about a message."""

    NOT_PUBLISHED = "not_published"  # an event or letter names it, but the log does not have it
    NOT_FOR_THIS_QUEUE = "not_for_this_queue"  # redriven to another queue (C29), but this one reports its fate
    SEVERAL_FATES = "several_fates"  # for example acknowledged and dead-lettered
    LETTER_MISSING = "letter_missing"  # an event says dead_lettered, but no letter names it
    EVENT_MISSING = "event_missing"  # a letter names it, but no event says dead_lettered
    LOST = "lost"  # published, without a fate, and not in the queue's own list
    REASONS_DIFFER = "reasons_differ"  # two letters, or event and letter, have different reasons
    REPORTED_TWICE = (
        "reported_twice"  # one epoch reports its fate at two instants; copies after a crash have the same one
    )
    STILL_HELD = "still_held"  # it has a fate, but the queue itself still has it
    SWAPPED = "swapped"  # events and journal disagree whether its lifetime had ended when it left
    FORGOTTEN = "forgotten"  # its fate is reported again when the first report is forgotten already


def verdicts(blocks: DataFrame, fates: DataFrame, letters: DataFrame, journaled: DataFrame | None = None) -> DataFrame:
    """Return a row for each class of messages: `block`, `mask`, `place`, `state`, `fates`, `reasons`, `difference`.

    If several epochs report a message's fate, the highest one counts: a worker that had lost its shard without noticing
    may have reported another fate. `superseded` marks such messages.

    Args:
        blocks: blocks from `account.gather_blocks`.
        fates: fates from `account.fates_in_events`, cut to the log.
        letters: letters from `account.dead_lettered_messages`, cut to the log.
        journaled: how messages left by the journal, in the columns of `fates`, cut to the log; None = unknown.
    """
    reported = fates if journaled is None else fates.unionByName(journaled.select(fates.columns))
    return verdicts_of_statements(blocks, _statements(reported, letters))


def verdicts_of_statements(blocks: DataFrame, statements: DataFrame) -> DataFrame:
    """Return the rows of `verdicts` from statements on blocks: `statement` has the fields of `SAME` and a `mask`."""
    nothing = F.lit(None).cast(_STATEMENT)
    rows = blocks.select(*block.PLACE, *_MASKS, nothing.alias("statement")).unionByName(
        statements.select(
            *block.PLACE,
            *(F.lit(0).cast("bigint").alias(name) for name in _MASKS),
            F.col("statement").cast(_STATEMENT).alias("statement"),
        )
    )
    each = rows.groupBy(*block.PLACE).agg(
        *(F.bit_or(name).alias(name) for name in _MASKS), F.sort_array(F.collect_list("statement")).alias("statements")
    )
    # Few steps, because Spark analyzes each of them by itself.
    classes = each.select(*block.PLACE, *_MASKS, F.inline(_classes(F.col("statements"))))
    fates, void = (F.col(name).bitwiseAND(IN_TIME - 1) for name in ("fates", "void"))
    reported = fates.bitwiseOR(void) != 0
    known = reported | F.col("letter").isNotNull() | F.col("stale")
    counted = F.when(known, F.col("mask")).otherwise(block.without(F.col("mask"), F.col("late")))
    published = F.col("ours").bitwiseOR(F.col("elsewhere"))
    parts = (
        (OURS, F.col("ours")),
        (REDRIVEN, F.col("elsewhere")),
        (NOT_PUBLISHED, F.when(known, F.bitwise_not(published)).otherwise(0)),
    )
    here = block.without(counted, F.col("early"))
    placed = classes.select(
        *(*block.PLACE, "reasons", "letter", "least", "stale"),
        *(fates.alias("fates"), void.alias("void")),
        F.col("fates").bitwiseAND(IN_TIME | OVERDUE).alias("journaled"),
        F.inline(F.array(*(F.struct(F.lit(n).alias("place"), here.bitwiseAND(of).alias("mask")) for n, of in parts))),
    ).where(F.col("mask") != 0)
    # Usually a later epoch reports the same as the lost one. Then nothing is superseded.
    voided = F.col("void").bitwiseOR(F.when(F.col("stale"), _DEAD).otherwise(0))
    superseded = block.without(voided, F.col("fates")) != 0
    found = placed.withColumns({"difference": _difference(), "superseded": superseded})
    reasons = F.coalesce(F.nullif(F.col("letter"), F.lit(0)), F.col("reasons"))
    return found.select(
        *block.PLACE,
        "mask",
        "place",
        _state().alias("state"),
        "fates",
        reasons.alias("reasons"),
        "difference",
        "superseded",
    )


_MASKS: Final = ("ours", "elsewhere", "early", "late")
_STATEMENT: Final = "struct<epoch:bigint,fates:int,reasons:int,letter:int,mask:bigint>"
SAME: Final = ("epoch", "fates", "reasons", "letter")
"""The facts of a statement. From events, `letter` is null. From letters, `fates` and `reasons` are 0."""

UNKNOWN_EPOCH: Final = (1 << 63) - 1
"""The epoch of a letter without `lapse-epoch`, which fits the events of any epoch."""


def _statements(fates: DataFrame, letters: DataFrame) -> DataFrame:
    """Return the distinct statements on each block, each with the mask of its messages."""
    by_events = block.cover(fates).withColumn("letter", F.lit(None).cast("int"))
    by_letters = block.cover(letters).withColumns(
        {"fates": F.lit(0), "reasons": F.lit(0), "epoch": F.coalesce("epoch", F.lit(UNKNOWN_EPOCH))}
    )
    return (
        by_events.unionByName(by_letters)
        .groupBy(*block.PLACE, *SAME)
        .agg(F.bit_or("mask").alias("mask"))
        .select(*block.PLACE, F.struct(*SAME, "mask").alias("statement"))
    )


def _classes(statements: Column) -> Column:
    """Divide a block into classes of messages with the same facts. The statements are sorted by epoch."""
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
        split = F.transform(classes, lambda known: F.array(_join_statement(known, one), _split_unnamed(known, one)))
        return F.filter(F.flatten(split), lambda known: known["mask"] != 0)

    return F.aggregate(statements, F.array(whole), part)


_CLASS: Final = ("mask", "epoch", "fates", "reasons", "letter", "least", "void", "stale")


def _join_statement(known: Column, one: Column) -> Column:
    """Return the part of a class that a statement names, with its facts. A higher epoch voids the facts of lower ones.

    A journal's statement voids nothing, because it has no fate, and its event may not have been read yet.
    """
    newer = (one["epoch"] > known["epoch"]) & (one["epoch"] != UNKNOWN_EPOCH) & (one["fates"] < IN_TIME)
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


def _split_unnamed(known: Column, one: Column) -> Column:
    """Return the part of a class that a statement does not name, unchanged."""
    rest = block.without(known["mask"], one["mask"])
    return F.struct(rest.alias("mask"), *(known[name].alias(name) for name in _CLASS[1:]))


def _difference() -> Column:
    is_dead_letter = F.col("fates").bitwiseAND(_DEAD) != 0
    # A letter has the same id in every epoch, so one of a lost epoch is valid, too.
    has_letter = F.col("letter").isNotNull() | (is_dead_letter & F.col("stale"))
    fates = F.col("fates").bitwiseOR(F.when(F.col("letter").isNotNull(), _DEAD).otherwise(0))
    differ = (F.col("letter") != F.col("least")) | (
        (F.col("reasons") != 0) & (F.col("reasons") != F.col("letter")) & is_dead_letter
    )
    return (
        F.when(F.col("place") == NOT_PUBLISHED, Difference.NOT_PUBLISHED.value)
        .when((F.col("place") == REDRIVEN) & (fates != 0), Difference.NOT_FOR_THIS_QUEUE.value)
        .when(F.bit_count(fates) > 1, Difference.SEVERAL_FATES.value)
        .when(is_dead_letter & ~has_letter, Difference.LETTER_MISSING.value)
        .when(F.col("letter").isNotNull() & ~is_dead_letter, Difference.EVENT_MISSING.value)
        .when(F.col("letter").isNotNull() & differ, Difference.REASONS_DIFFER.value)
        .when(_is_swapped(), Difference.SWAPPED.value)
    )


def _is_swapped() -> Column:
    """Return whether events and journal disagree on how a message left."""
    overdue = (F.col("fates").bitwiseAND(_REMOVED) != 0) & (F.col("reasons").bitwiseAND(_LATE) != 0)
    journaled = F.col("journaled")
    return (F.col("fates") != 0) & ((overdue & (journaled == IN_TIME)) | (~overdue & (journaled == OVERDUE)))


def _state() -> Column:
    state = F.when(F.col("difference").isNotNull(), CONTRADICTORY).when(F.col("place") == REDRIVEN, ELSEWHERE)
    for bit, kind in enumerate(FATES):
        state = state.when(F.col("fates") == 1 << bit, kind.value)
    return state.otherwise(STILL_QUEUED)
