"""Settles a batch: it merges new facts with open blocks, judges them, and separates closed blocks from open ones.

This module does not know where rows come from, or where figures go (D8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from datetime import timedelta
from typing import Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse_spark import local_rows
from lapse_spark.account import account, generation, verdict
from lapse_spark.account.inventory import Inventory
from lapse_spark.running import balance, block, differences, doubt, memory, portion, tally
from lapse_spark.running.balance import Balance, UpTo
from lapse_spark.running.differences import Differences
from lapse_spark.running.intake import Reach
from lapse_spark.running.memory import Memory, Note

_RANGE: Final = "topic string, partition int, first bigint, last bigint"


class Settling:
    """The settling of one batch of a running ledger."""

    def __init__(
        self, spark: SparkSession, kept: Memory, number: int, reached: Reach, before: Note, grace: timedelta
    ) -> None:
        self._spark, self._memory, self._number, self._reach, self._before = spark, kept, number, reached, before
        self._grace_ms = round(grace.total_seconds() * 1000)
        self._logs = portion.log_ranges(spark, reached)
        self._opened = kept.table(number - 1, memory.OPEN)
        self._doubted = kept.table(number - 1, memory.DOUBTS)
        self._was_ahead = kept.table(number - 1, memory.AHEAD)
        self._held: DataFrame | None = None
        self._listed: Inventory | None = None
        self._not_listed: str | None = None
        self._not_journaled = ""

    def compare_with_list(self, listed: Inventory | None, not_listed: str) -> None:
        """Compare the account with the queue's own list; if that is None, `not_listed` says why."""
        self._listed, self._not_listed = listed, not_listed
        if listed is None:
            return
        ends = [(topic, number, end - 1) for (topic, number), end in self._reach.ends.items()]
        parts = []
        for name, ranges in (("listed", listed.ranges), ("unread", listed.unread(ends))):
            rows = local_rows.frame(self._spark, list(ranges), _RANGE).where(F.col("first") <= F.col("last"))
            parts.append(block.cover(rows).withColumn("of", F.lit(name)))
        mask, of = F.col("mask"), F.col("of")
        both = parts[0].unionByName(parts[1]).groupBy(*block.PLACE)
        own = F.bit_or(F.when(of == "listed", mask).otherwise(0)).alias("listed")
        self._held = _cut_lineage(both.agg(own, F.bit_or("mask").alias("excused")))

    def set_missing_journal(self, why: str) -> None:
        """Set why the batch lacks the journal's facts; empty if it has them."""
        self._not_journaled = why

    def settle(self, batch: DataFrame, *, shown: int, horizon: timedelta) -> Note:
        """Settle the batch, and write the version.

        Args:
            batch: rows of the intake.
            shown: greatest number of findings in the balance.
            horizon: how long closed blocks are kept.
        """
        now_ms, number, before = self._reach.at_ms, self._number, self._before
        fresh = _cut_lineage(portion.portion(batch, self._logs, now_ms, self._was_ahead))
        counted = fresh.groupBy("part", "letter_topic").agg(F.sum("count").alias("n")).collect()
        parts: Counter[str] = Counter()
        for row in counted:
            parts[row["part"]] += int(row["n"])
        inside = fresh.where(F.col("part") == portion.INSIDE).select(*portion.ROW)
        ahead = fresh.where(F.col("part") == portion.AHEAD).select(*portion.RANGE) if parts[portion.AHEAD] else None
        reopened = self._reopened(inside)
        rows = _cut_lineage(
            portion.merge_rows(*(some for some in (inside, self._opened, reopened) if some is not None))
        )
        each, twice = portion.find_verdicts(rows)
        each = _cut_lineage(each)
        doubts = _cut_lineage(self._doubts(each, twice))
        found = Differences.of(doubts, ahead, now_ms - self._grace_ms)
        closing = _cut_lineage(self._closing(rows, each, doubts))
        standing, closed = tally.count_verdicts(each, doubts if found.has_reported else None, closing)
        self._write(rows, closing, found, closes=bool(closed))
        closed.update(before.closed)
        if reopened is not None:
            closed.subtract(tally.count_verdicts(portion.find_verdicts(portion.merge_rows(reopened))[0], None, None)[0])
        note = replace(
            self._listing(found),
            at_ms=now_ms,
            closed=dict(+closed),
            ends={f"{topic}:{part}": end for (topic, part), end in self._reach.ends.items()},
            letter_topics=sorted({*before.letter_topics, *(row[1] for row in counted if row[1])}),
            before=before.before + parts[portion.BEFORE],
            faults=before.faults + parts[portion.FAULTY],
            forgotten=self._memory.forget(now_ms, horizon, before.forgotten),
            grace_ms=self._grace_ms,
        )
        note = replace(note, account=self._balance(note, standing + closed, found, shown).as_json())
        self._memory.finish(number, note)
        return note

    def _by_partition(self, known: Mapping[str, int], name: str) -> DataFrame:
        """Convert a note's numbers by `topic:partition` to topic, partition and a column `name`."""
        rows = []
        for place, number in known.items():
            topic, _, partition = place.rpartition(":")
            rows.append((topic, int(partition), number))
        return local_rows.frame(self._spark, rows, f"topic string, partition int, {name} bigint")

    def _reopened(self, inside: DataFrame) -> DataFrame | None:
        """Return closed blocks with new facts, or with a message in the queue's list."""
        if not self._before.ends or not self._memory.has_closed:
            return None
        touched = inside.select(*block.PLACE)
        if self._held is not None:
            touched = touched.unionByName(self._held.where(F.col("listed") != 0).select(*block.PLACE))
        if self._opened is not None:
            touched = touched.join(self._opened.select(*block.PLACE), list(block.PLACE), "left_anti")
        ends = self._by_partition(self._before.ends, "end")
        known = touched.distinct().join(F.broadcast(ends), ["topic", "partition"], "left")
        # A block of a generation is never complete, because the next rewind may add to it.
        passed = generation.was_rewound(F.col("topic")) | (F.col("block") * block.WIDTH < F.col("end"))
        late = known.where(passed).select(*block.PLACE)
        least, most = late.agg(F.min("block"), F.max("block")).collect()[0]
        if least is None:
            return None
        found = self._memory.closed(self._number, late, least, most)
        return None if found is None else _cut_lineage(found)

    def _doubts(self, each: DataFrame, twice: DataFrame) -> DataFrame:
        below = self._before.forgotten
        forgotten = self._by_partition(below, "below") if below else None
        found = doubt.differences_in_verdicts(each, twice, forgotten)
        if self._held is not None:
            found = found.unionByName(doubt.differences_from_list(each, self._held))
        elif self._doubted is not None:
            found = found.unionByName(doubt.lasting_list_differences(each, self._doubted))
        listed = self._held is not None
        return doubt.carry_differences(found, self._doubted, self._reach.at_ms, self._grace_ms, listed=listed)

    def _closing(self, rows: DataFrame, each: DataFrame, doubts: DataFrame) -> DataFrame:
        """Return blocks before the log's end whose messages all have fates without differences for the grace."""
        queued = (F.col("place") == account.OURS) & (F.col("state") == verdict.STILL_QUEUED)
        ageless = F.lit(None).cast("bigint")
        ages = rows.select(*block.PLACE, "since_ms", F.lit(False).alias("unsettled"))
        for unsettled in (each.where(queued | F.col("difference").isNotNull()), doubts):
            ages = ages.union(unsettled.select(*block.PLACE, ageless, F.lit(True)))
        known = (
            ages.groupBy(*block.PLACE)
            .agg(F.max("since_ms").alias("newest"), F.bool_or("unsettled").alias("unsettled"))
            .join(
                F.broadcast(self._logs),
                (F.substring_index("topic", "~", 1) == F.col("log_topic"))
                & (F.col("partition") == F.col("log_partition")),
            )
        )
        lasted = F.col("newest") <= self._reach.at_ms - self._grace_ms
        whole = (F.col("block") + 1) * block.WIDTH <= F.col("end")
        return known.where(lasted & whole & ~F.col("unsettled")).select(*block.PLACE)

    def _write(self, rows: DataFrame, closing: DataFrame, found: Differences, *, closes: bool) -> None:
        place, number = list(block.PLACE), self._number
        self._memory.write(number, memory.OPEN, rows.join(closing, place, "left_anti") if closes else rows)
        if closes:
            self._memory.close(number, rows.join(closing, place, "left_semi"), self._reach.at_ms)
        if found.kinds:
            self._memory.write(number, memory.DOUBTS, found.doubts)
        if found.ahead is not None:
            self._memory.write(number, memory.AHEAD, found.ahead)
        # By the grace of that batch: by that of now, what has not been reported may count as reported.
        grace_ms = self._grace_ms if self._before.grace_ms is None else self._before.grace_ms
        was = differences.lasting_beyond_log(self._was_ahead, self._before.at_ms - grace_ms)
        had_reported = bool(self._before.account.get("difference_counts"))
        news = found.find_changes(self._doubted if had_reported else None, was)
        if news is not None:
            findings = balance.findings(news, self._before.queue, number, self._reach.at_ms)
            self._memory.write(number, memory.NEWS, findings)

    def _listing(self, found: Differences) -> Note:
        """Return the note with the facts about the queue's own list."""
        note, now_ms = self._before, self._reach.at_ms
        if self._not_listed is not None:
            note = replace(note, asked_at_ms=now_ms, not_listed=self._not_listed)
        if self._listed is not None:
            note = replace(note, listed=self._listed.messages, listed_at_ms=now_ms)
        # Messages settled while the queue returned its list are in doubt until their events are read.
        agreed = note.listed_at_ms is not None and not found.is_on_list
        return replace(note, agreed_at_ms=note.listed_at_ms) if agreed else note

    def _balance(self, note: Note, totals: Counter[str], found: Differences, shown: int) -> Balance:
        differ, first = found.messages_by_difference(), found.first_offsets()
        since = [note.at_ms, *found.since_ms()]
        if note.asked_at_ms and not note.not_listed:
            since.append(note.agreed_at_ms or 0)
        return Balance(
            ledger=replace(
                tally.build_ledger(note.queue, totals, differ[verdict.Difference.LOST.value]),
                listed=note.listed,
                not_listed=note.not_listed if note.asked_at_ms else "it was not to be asked",
                not_journaled=self._not_journaled,
                difference_counts=dict(sorted(differ.items())),
                differences=found.first_reported(shown) if differ else [],
                before_log_start=note.before,
                quarantined=note.faults,
            ),
            batch=self._number,
            at_ms=note.at_ms,
            balanced_up_to_ms=max(0, min(since) - self._grace_ms),
            balanced_up_to=[
                UpTo(topic=topic, partition=part, offset=min(end, first.get((topic, part), end)), read=end)
                for (topic, part), end in sorted(self._reach.ends.items())
            ],
            in_doubt=found.in_doubt,
            listed_at_ms=note.listed_at_ms,
        )


def _cut_lineage(rows: DataFrame) -> DataFrame:
    """Cut the lineage of rows, so that later steps are planned as if the rows had been read.

    Otherwise each step would plan all earlier steps again, which took longer than the work itself. The first action on
    the rows computes them, and keeps them for the others.
    """
    return rows.localCheckpoint(eager=False)
