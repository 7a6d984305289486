"""Tallies: numbers of messages by verdict in a running ledger (D8)."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from typing import Final

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F

from lapse.protocol.event import EventKind
from lapse_spark.account import account, generation, verdict
from lapse_spark.account.verdict import Difference
from lapse_spark.ledger import Ledger, reasons_words
from lapse_spark.running import block, doubt

_FACTS: Final = ("state", "reasons", "ours", "superseded", "back")
_BESIDE: Final = (*doubt.BY_LIST, Difference.REPORTED_TWICE.value)
"""Differences of messages that still have one fate, or none, by the topics."""


def count_verdicts(
    each: DataFrame, doubts: DataFrame | None, closing: DataFrame | None
) -> tuple[Counter[str], Counter[str]]:
    """Count messages by verdict, in blocks that stay open, and in blocks that are closed now.

    Args:
        each: classes from `portion.find_verdicts`.
        doubts: differences from `doubt.carry_differences`. Reported ones count as contradictory, others by their last
            known state. None = none is reported.
        closing: topic, partition, block of the blocks that are closed now; None = none.
    """
    flag = F.lit(False)
    rows = _settled(each, doubts)
    if closing is not None:
        rows = rows.join(closing.withColumn("closes", F.lit(True)), list(block.PLACE), "left")
        flag = F.coalesce("closes", F.lit(False))
    back, ours = generation.was_rewound(F.col("topic")), F.col("place") == account.OURS
    kinds = rows.where(F.col("place") != account.NOT_PUBLISHED).groupBy(
        flag.alias("closes"), "state", "reasons", ours.alias("ours"), "superseded", back.alias("back")
    )
    found: dict[bool, Counter[str]] = {False: Counter(), True: Counter()}
    for row in kinds.agg(F.sum(F.bit_count("mask")).alias("messages")).collect():
        name = "|".join(str(int(row[fact]) if fact != "state" else row[fact]) for fact in _FACTS)
        found[row["closes"]][name] += row["messages"]
    return found[False], found[True]


def _settled(each: DataFrame, doubts: DataFrame | None) -> DataFrame:
    """Return verdicts for counting, with messages that have differences apart."""
    columns = (*block.PLACE, "mask", "place", "state", "reasons", "superseded")
    reasons = F.coalesce("reasons", F.lit(0)).alias("reasons")
    if doubts is None:
        state = F.when(F.col("difference").isNull(), F.col("state")).otherwise(_known_state())
        return each.select(*block.PLACE, "mask", "place", state.alias("state"), reasons, "superseded")
    agreed = each.where(F.col("difference").isNull()).select(*columns[:-2], reasons, "superseded")
    odd = each.where(F.col("difference").isNotNull())
    reported = doubts.where(F.col("reported") & ~F.col("difference").isin(*_BESIDE))
    masks = reported.groupBy(*block.PLACE).agg(F.bit_or("mask").alias("reported"))
    known = F.coalesce("reported", F.lit(0).cast("bigint"))
    parts = F.array(
        F.struct(F.lit(verdict.CONTRADICTORY).alias("state"), F.col("mask").bitwiseAND(known).alias("mask")),
        F.struct(_known_state().alias("state"), block.without(F.col("mask"), known).alias("mask")),
    )
    split = odd.join(masks, list(block.PLACE), "left").select(
        *block.PLACE, "place", reasons, "superseded", F.inline(parts)
    )
    return agreed.unionByName(split.where(F.col("mask") != 0).select(*columns))


def _known_state() -> Column:
    """Return the last known state of a message in doubt."""
    state = F.when(F.col("place") == account.REDRIVEN, verdict.ELSEWHERE)
    for bit, kind in enumerate(account.FATES):
        state = state.when(F.col("fates") == 1 << bit, kind.value)
    return state.otherwise(verdict.STILL_QUEUED)


def build_ledger(queue: str, totals: Mapping[str, int], lost: int) -> Ledger:
    """Return the ledger of a queue from the counts of all its blocks, and the number of lost messages."""
    state: Counter[str] = Counter()
    why: dict[str, Counter[str]] = {EventKind.DEAD_LETTERED.value: Counter(), EventKind.EXPIRED.value: Counter()}
    published = rewound = superseded = 0
    for name, number in totals.items():
        if not number:
            continue
        facts = dict(zip(_FACTS, name.split("|"), strict=True))
        if facts["ours"] == "1":
            published += number if facts["back"] == "0" else 0
            rewound += number if facts["back"] == "1" else 0
        state[facts["state"]] += number if facts["ours"] == "1" or facts["state"] == verdict.ELSEWHERE else 0
        superseded += number if facts["superseded"] == "1" else 0
        if facts["state"] in why:
            why[facts["state"]][reasons_words(int(facts["reasons"]))] += number
    return Ledger(
        queue=queue,
        published=published,
        rewound=rewound,
        fates={kind.value: state[kind.value] for kind in account.FATES},
        dead_lettered=dict(sorted(why[EventKind.DEAD_LETTERED.value].items())),
        expired=dict(sorted(why[EventKind.EXPIRED.value].items())),
        still_queued=state[verdict.STILL_QUEUED] - lost,
        lost=lost,
        contradictory=state[verdict.CONTRADICTORY],
        elsewhere=state[verdict.ELSEWHERE],
        superseded=superseded,
    )
