"""The ledger of a queue: published = acknowledged + dead-lettered by each reason + … + still queued, exactly.

It is computed from the topics. There, a message that is gone without a trace looks as if it were queued. So the queue
is asked for its own list, if a worker answers. If the queue is active, set `until_ms` some seconds in the past, because
an event may be on its way while its letter is read.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from typing import Any, Final

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse.protocol.bookmark import BookmarkRange
from lapse.protocol.event import EventKind
from lapse_client.error import LapseError
from lapse_spark.account import account, generation, inventory, journal, queue_topics, verdict
from lapse_spark.account.queue_topics import Scope
from lapse_spark.connection import Connection
from lapse_spark.running import block

SHOWN: Final = 20
"""The default number of differences that are listed."""

OUTPUTS: Final = ("differences", "quarantine")
"""The directories within that of `--output`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """The fates of all messages that were published to a queue. All counts are numbers of messages.

    Attributes:
        queue: name of the queue.
        published: messages in the underlying topics that are for this queue.
        fates: messages by fate; every fate is named, even with 0.
        dead_lettered: dead-lettered messages by reasons; the sum is `fates["dead_lettered"]`.
        expired: messages that left without a letter, by reasons.
        still_queued: published messages without a fate: in one of the states of a peek, or not yet active.
        rewound: messages that rewinds brought back. Each has a fate of its own, or is still queued (C61).
        expected_depth: messages that the queue was expected to have; None if nothing was expected.
        listed: messages in the queue's own list; None if it was not asked, or did not answer.
        not_listed: why there is no such list; empty if there is.
        not_journaled: why the fates were not compared with the queue's journal; empty if they were.
        lost: published messages without a fate that are not in the queue's own list; see `differences`.
        contradictory: published messages about which the topics disagree; see `differences`.
        difference_counts: messages by kind of difference.
        differences: the first differences: bookmark or range, difference, fates, reasons.
        before_log_start: messages with a fate, by events, that the log no longer has.
        elsewhere: records of the underlying topics that were redriven to another queue.
        superseded: messages of which a worker that had lost its shard reported another fate, which does not count.
        quarantined: unreadable records on the event and dead-letter topics.
        strict: whether quarantined records make the ledger unbalanced.
    """

    queue: str
    published: int
    fates: dict[str, int]
    dead_lettered: dict[str, int]
    expired: dict[str, int]
    still_queued: int
    rewound: int = 0
    expected_depth: int | None = None
    listed: int | None = None
    not_listed: str = ""
    not_journaled: str = ""
    lost: int = 0
    contradictory: int = 0
    difference_counts: dict[str, int] = field(default_factory=dict)
    differences: list[dict[str, str]] = field(default_factory=list)
    before_log_start: int = 0
    elsewhere: int = 0
    superseded: int = 0
    quarantined: int = 0
    strict: bool = False

    @property
    def balanced(self) -> bool:
        """Whether every published message has exactly one fate that all topics agree on, or is still queued."""
        adds_up = (
            self.published + self.rewound
            == sum(self.fates.values()) + self.still_queued + self.contradictory + self.lost
        )
        agreed = not self.difference_counts and not self.contradictory
        depth_agrees = self.expected_depth is None or self.expected_depth == self.still_queued
        return adds_up and agreed and depth_agrees and not (self.strict and self.quarantined)

    def as_json(self) -> dict[str, Any]:
        """Return all figures and `balanced` for JSON."""
        return {"balanced": self.balanced, **asdict(self)}

    @classmethod
    def from_json(cls, text: bytes) -> Ledger:
        """Parse a ledger that `lapse spark ledger --json` has printed.

        Raises:
            ValueError: the text is no ledger.
        """
        try:
            facts = orjson.loads(text)
            facts.pop("balanced")
            return cls(**facts)
        except (orjson.JSONDecodeError, AttributeError, KeyError, TypeError) as error:
            raise ValueError(f"no ledger as lapse spark ledger --json prints it: {error}") from error


@dataclass(slots=True)
class _Counts:
    """The numbers of messages by verdict.

    Attributes:
        published: messages of the queue.
        rewound: messages that a rewind brought back.
        superseded: messages of which an earlier owner reported another fate, which does not count.
        state: messages by state.
        by_reasons: dead-lettered or expired messages by reasons.
        differences: messages by kind of difference.
    """

    published: int = 0
    rewound: int = 0
    superseded: int = 0
    state: dict[str, int] = field(default_factory=dict)
    by_reasons: dict[str, dict[str, int]] = field(
        default_factory=lambda: {EventKind.DEAD_LETTERED: {}, EventKind.EXPIRED: {}}
    )
    differences: dict[str, int] = field(default_factory=dict)

    @classmethod
    def of(cls, each: DataFrame) -> _Counts:
        """Count verdicts."""
        counts = cls()
        back = generation.was_rewound(F.col("topic")).alias("back")
        kinds = each.groupBy("state", "reasons", "difference", "place", "superseded", back)
        for row in kinds.agg(F.sum(F.bit_count("mask")).alias("messages")).collect():
            number, ours, state = row["messages"], row["place"] == account.OURS, row["state"]
            counts.published += number if ours and not row["back"] else 0
            counts.rewound += number if ours and row["back"] else 0
            counts.superseded += number if row["superseded"] else 0
            if row["difference"]:
                counts.differ(row["difference"], number)
            if ours or state == verdict.ELSEWHERE:
                counts.state[state] = counts.state.get(state, 0) + number
            if (by_reasons := counts.by_reasons.get(state)) is not None:
                words = reasons_words(row["reasons"])
                by_reasons[words] = by_reasons.get(words, 0) + number
        return counts

    def differ(self, difference: str, number: int) -> None:
        """Add messages with a difference."""
        self.differences[str(difference)] = self.differences.get(str(difference), 0) + number

    def as_ledger(self, queue: str) -> Ledger:
        """Return the ledger of a queue that has lost no message, without its list of differences."""
        return Ledger(
            queue=queue,
            published=self.published,
            fates={kind.value: self.state.get(kind.value, 0) for kind in account.FATES},
            dead_lettered=dict(sorted(self.by_reasons[EventKind.DEAD_LETTERED].items())),
            expired=dict(sorted(self.by_reasons[EventKind.EXPIRED].items())),
            still_queued=self.state.get(verdict.STILL_QUEUED, 0),
            rewound=self.rewound,
            contradictory=self.state.get(verdict.CONTRADICTORY, 0),
            difference_counts=dict(sorted(self.differences.items())),
            elsewhere=self.state.get(verdict.ELSEWHERE, 0),
            superseded=self.superseded,
        )


def compute_ledger(
    queue: str,
    blocks: DataFrame,
    fates: DataFrame,
    letters: DataFrame,
    *,
    shown: int = SHOWN,
    asked: inventory.Asked | None = None,
    journaled: DataFrame | None = None,
) -> tuple[Ledger, DataFrame]:
    """Compute the ledger from `account.gather_blocks`, `account.fates_in_events` and `account.dead_lettered_messages`.

    The inputs are read more than once, so persist them. Only counts and the shown differences come to the driver.

    Args:
        queue: name of the queue.
        blocks: blocks from `account.gather_blocks`.
        fates: fates from `account.fates_in_events`.
        letters: letters from `account.dead_lettered_messages`.
        shown: greatest number of differences to list.
        asked: the queue, to find lost messages; None = it was not asked or did not answer.
        journaled: statements from `journal.statements`; None = the journal is unknown.

    Returns:
        The ledger, and all differences: topic, partition, first, last, difference, fates, reasons.
    """
    logs = account.log_ranges(blocks)
    ends = None if journaled is None else account.cut_to_log(journaled, logs)
    each = verdict.verdicts(blocks, account.cut_to_log(fates, logs), account.cut_to_log(letters, logs), ends)
    if asked is not None:  # they are needed again, and lost messages are searched several times
        each = each.localCheckpoint(eager=False)
    outside = account.ranges_outside_log(fates, letters, logs)
    counts = _Counts.of(each)
    after, before = _count_outside(outside)
    if after:
        counts.differ(verdict.Difference.NOT_PUBLISHED, after)
    all_differences = _differences(each, outside)
    lost = 0
    if asked is not None:
        gone, lost = asked.lost(each, logs)
        if lost:
            counts.differ(verdict.Difference.LOST, lost)
            all_differences = all_differences.unionByName(_absent(gone))
    all_differences = generation.join_positions(all_differences)
    ledger = replace(
        counts.as_ledger(queue),
        still_queued=counts.state.get(verdict.STILL_QUEUED, 0) - lost,
        listed=None if asked is None else asked.first.messages,
        lost=lost,
        differences=_listed(all_differences, shown) if counts.differences else [],
        before_log_start=before,
    )
    return ledger, all_differences


def _count_outside(outside: DataFrame) -> tuple[int, int]:
    """Count fates of messages that the log does not have yet, and by events those that it no longer has."""
    # Decimal, because damaged ranges may have more offsets than 64 bits can count.
    width = (F.col("last") - F.col("first") + 1).cast("decimal(20,0)")
    sums = outside.agg(
        F.sum(F.when(F.col("side") == "after", width)),
        F.sum(F.when((F.col("side") == "before") & F.col("by_event"), width)),
    )
    after, before = (int(number or 0) for number in sums.collect()[0])
    return after, before


def run(
    spark: SparkSession,
    connection: Connection,
    queue: str,
    underlying: Sequence[str],
    *,
    scope: Scope = queue_topics.ALL,
    expected_depth: int | None = None,
    strict: bool = False,
    shown: int = SHOWN,
    output: str | None = None,
    ask: bool = True,
    app_id: str | None = None,
) -> Ledger:
    """Read the topics, and compute the ledger.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        queue: name of the queue.
        underlying: all of its underlying topics.
        scope: which of its messages and fates count; default: all.
        expected_depth: messages in all states by the queue's own figures, for comparison; None = no comparison.
        strict: whether unreadable records make the ledger unbalanced.
        shown: greatest number of differences to list.
        output: directory for Parquet files of all differences and quarantined records; None = none.
        ask: whether to ask the queue for its own list, which finds lost messages.
        app_id: `app_id` of the queue's deployment, which is in its journal's name; None = search for it.
    """
    # Ask the queue first: messages that had left it by then have events.
    holds, not_listed = _read_inventory(connection, queue) if ask else (None, "it was not to be asked")
    with queue_topics.read_topics(spark, connection, queue, underlying, scope) as found:
        asked = None
        if holds is not None:
            again, fates = partial(inventory.ask, connection.of_lapse(), queue), found.all_fates(queue)
            asked = inventory.Asked(spark=spark, again=again, first=holds, fates=fates)
        left, not_journaled = _journaled(connection, queue, app_id)
        journaled = None
        if left:
            journaled = account.drop_before_start(journal.statements(spark, left), scope.starts, last="last")
        ledger, differences = compute_ledger(
            queue, found.blocks, found.fates, found.copies, shown=shown, asked=asked, journaled=journaled
        )
        if output is not None:
            differences.write.mode("overwrite").parquet(f"{output}/{OUTPUTS[0]}")
            found.quarantined().write.mode("overwrite").parquet(f"{output}/{OUTPUTS[1]}")
        ledger = replace(ledger, not_listed=not_listed, not_journaled=not_journaled, expected_depth=expected_depth)
        return replace(ledger, quarantined=found.unreadable, strict=strict)


def _journaled(connection: Connection, queue: str, app_id: str | None) -> tuple[list[journal.Row], str]:
    """Return how messages left by the queue's journal, or a text that says why that is unknown."""
    reader = journal.Journal(connection.of_lapse(), queue, app_id)
    try:
        return reader.read(), ""
    except journal.NoJournal as error:
        return [], str(error)
    finally:
        reader.close()


def _read_inventory(connection: Connection, queue: str) -> tuple[inventory.Inventory | None, str]:
    """Return the queue's inventory, or a text that says why there is none."""
    try:
        return inventory.ask(connection.of_lapse(), queue), ""
    except (LapseError, inventory.NotListed, ValueError) as error:
        return None, str(error)


def _absent(gone: DataFrame) -> DataFrame:
    """Return lost messages as differences, one row each."""
    offset = F.explode(block.offsets(F.col("block"), F.col("mask")))
    each = gone.select("topic", "partition", offset.alias("first"))
    words = {"difference": verdict.Difference.LOST.value, "fates": "", "reasons": ""}
    return each.withColumns({"last": F.col("first"), **{name: F.lit(text) for name, text in words.items()}})


def _differences(each: DataFrame, outside: DataFrame) -> DataFrame:
    """Return all differences: single bookmarks from classes, and ranges that are not in the log."""
    fates = account.mask_to_text(F.col("fates"), tuple(kind.value for kind in account.FATES))
    reasons = account.mask_to_text(F.col("reasons"), account.REASONS)
    odd = each.where(F.col("difference").isNotNull())
    single = odd.withColumn("offset", F.explode(block.offsets(F.col("block"), F.col("mask"))))
    inside = single.select(
        "topic",
        "partition",
        F.col("offset").alias("first"),
        F.col("offset").alias("last"),
        "difference",
        fates.alias("fates"),
        reasons.alias("reasons"),
    )
    absent = outside.where(F.col("side") == "after").select(
        "topic",
        "partition",
        "first",
        "last",
        F.lit(verdict.Difference.NOT_PUBLISHED.value).alias("difference"),
        fates.alias("fates"),
        reasons.alias("reasons"),
    )
    return inside.unionByName(absent)


def _listed(differences: DataFrame, shown: int) -> list[dict[str, str]]:
    rows = differences.orderBy("topic", "partition", "first").limit(shown).collect()
    return [
        {
            "bookmark": str(BookmarkRange(row["topic"], row["partition"], row["first"], row["last"])),
            "difference": row["difference"],
            "fates": row["fates"],
            "reasons": row["reasons"],
        }
        for row in rows
    ]


def reasons_words(mask: int | None) -> str:
    """Return the reasons in a bit mask as a ledger names them."""
    found = [word for bit, word in enumerate(account.REASONS) if mask and mask >> bit & 1]
    return ",".join(found) or "unstated"
