"""Settling a batch: what is new and what is open, put together, judged, and parted into what is closed and what is not.

Nothing here knows where the rows come from, or where the figures go (D8).
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import timedelta
from types import TracebackType
from typing import Final, Self

from pyspark import StorageLevel
from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F

from lapse_spark import account, balance, block, doubt, generation, memory, portion, tally, verdict
from lapse_spark.balance import Balance, UpTo
from lapse_spark.intake import Reach
from lapse_spark.inventory import Inventory
from lapse_spark.memory import Memory, Note

_RANGE: Final = "topic string, partition int, first bigint, last bigint"


class Settling:
    """One batch of a ledger that goes on; a context manager, which lets go of what it keeps in Spark's memory."""

    def __init__(
        self, spark: SparkSession, kept: Memory, number: int, reached: Reach, before: Note, grace: timedelta
    ) -> None:
        self._spark, self._memory, self._number, self._reach, self._before = spark, kept, number, reached, before
        self._grace_ms = round(grace.total_seconds() * 1000)
        self._logs = portion.logs(spark, reached)
        self._persisted: list[DataFrame] = []
        self._opened = kept.table(number - 1, memory.OPEN)
        self._doubted = kept.table(number - 1, memory.DOUBTS)
        self._was_ahead = kept.table(number - 1, memory.AHEAD)
        self._held: DataFrame | None = None
        self._listed: Inventory | None = None
        self._not_listed: str | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for kept in self._persisted:
            kept.unpersist()

    def hold_against(self, listed: Inventory | None, not_listed: str) -> None:
        """Compare with the queue's own list, from now; None = it gave none, and why."""
        self._listed, self._not_listed = listed, not_listed
        if listed is None:
            return
        ends = [(topic, number, end - 1) for (topic, number), end in self._reach.ends.items()]
        parts = []
        for name, ranges in (("listed", listed.ranges), ("unread", listed.unread(ends))):
            rows = self._spark.createDataFrame(list(ranges), _RANGE).where(F.col("first") <= F.col("last"))
            parts.append(block.cover(rows).withColumn("of", F.lit(name)))
        mask, of = F.col("mask"), F.col("of")
        both = parts[0].unionByName(parts[1]).groupBy(*block.PLACE)
        self._held = self._keep(
            both.agg(
                F.bit_or(F.when(of == "listed", mask).otherwise(0)).alias("listed"), F.bit_or("mask").alias("excused")
            )
        )

    def settle(self, batch: DataFrame, *, shown: int, horizon: timedelta) -> Note:
        """Settle the batch, and write the version.

        Args:
            batch: rows of the intake.
            shown: how many findings the balance lists.
            horizon: how long closed blocks are kept.
        """
        now_ms, number = self._reach.at_ms, self._number
        fresh = self._keep(portion.portion(batch, self._logs, now_ms, self._was_ahead))
        counted = {row["part"]: int(row["n"]) for row in fresh.groupBy("part").agg(F.sum("count").alias("n")).collect()}
        inside = fresh.where(F.col("part") == portion.INSIDE).select(*portion.ROW)
        ahead = self._keep(fresh.where(F.col("part") == portion.AHEAD).select(*portion.RANGE))
        reopened = self._reopened(inside)
        parts = [part for part in (inside, self._opened, reopened) if part is not None]
        rows = self._keep(portion.merged(*parts))
        each, twice = portion.judged(rows)
        each = self._keep(each)
        doubts = self._keep(self._doubts(each, twice))
        closing = self._keep(self._closing(rows, each, doubts))
        standing, closed = tally.count(each, doubts, closing)
        closed.update(self._before.closed)
        if reopened is not None:
            closed.subtract(tally.count(portion.judged(portion.merged(reopened))[0], None, None)[0])
        self._write(rows, doubts, closing, ahead)
        note = replace(
            self._listing(doubts),
            at_ms=now_ms,
            closed=dict(+closed),
            ends={f"{topic}:{part}": end for (topic, part), end in self._reach.ends.items()},
            letter_topics=sorted({*self._before.letter_topics, *self._letter_topics(fresh)}),
            before=self._before.before + counted.get(portion.BEFORE, 0),
            faults=self._before.faults + counted.get(portion.FAULTY, 0),
            forgotten=self._memory.forget(now_ms, horizon, self._before.forgotten),
        )
        note = replace(note, account=self._balance(note, standing + closed, doubts, ahead, shown).as_json())
        self._memory.finish(number, note)
        return note

    def _keep(self, rows: DataFrame) -> DataFrame:
        self._persisted.append(rows.persist(StorageLevel.MEMORY_AND_DISK))
        return rows

    def _by_partition(self, known: Mapping[str, int], name: str) -> DataFrame:
        """What a note says by `topic:partition`, as topic, partition and a column of that name."""
        rows = []
        for place, number in known.items():
            topic, _, partition = place.rpartition(":")
            rows.append((topic, int(partition), number))
        return self._spark.createDataFrame(rows, f"topic string, partition int, {name} bigint")

    def _reopened(self, inside: DataFrame) -> DataFrame | None:
        """Closed blocks about which something is told again, or of which the queue lists a message."""
        if not self._before.ends:
            return None
        touched = inside.select(*block.PLACE)
        if self._held is not None:
            touched = touched.unionByName(self._held.where(F.col("listed") != 0).select(*block.PLACE))
        if self._opened is not None:
            touched = touched.join(self._opened.select(*block.PLACE).distinct(), list(block.PLACE), "left_anti")
        ends = self._by_partition(self._before.ends, "end")
        known = touched.distinct().join(F.broadcast(ends), ["topic", "partition"], "left")
        # A block of a generation has no end: whatever a rewind brings back next may be in it.
        passed = generation.was_rewound(F.col("topic")) | (F.col("block") * block.WIDTH < F.col("end"))
        late = self._keep(known.where(passed).select(*block.PLACE))
        least, most = late.agg(F.min("block"), F.max("block")).collect()[0]
        if least is None:
            return None
        found = self._memory.closed(self._number, late, least, most)
        return None if found is None else self._keep(found)

    def _doubts(self, each: DataFrame, twice: DataFrame) -> DataFrame:
        below = self._before.forgotten
        forgotten = self._by_partition(below, "below") if below else None
        found = doubt.of_verdicts(each, twice, forgotten)
        if self._held is not None:
            found = found.unionByName(doubt.of_list(each, self._held))
        elif self._doubted is not None:
            found = found.unionByName(doubt.lasting_of_list(each, self._doubted))
        listed = self._held is not None
        return doubt.carried(found, self._doubted, self._reach.at_ms, self._grace_ms, listed=listed)

    def _closing(self, rows: DataFrame, each: DataFrame, doubts: DataFrame) -> DataFrame:
        """Blocks that the log has passed, whose messages ended some time ago, and agree."""
        queued = (F.col("place") == account.OURS) & (F.col("state") == verdict.STILL_QUEUED)
        open_still = each.where(queued | F.col("difference").isNotNull()).select(*block.PLACE)
        unsettled = open_still.unionByName(doubts.select(*block.PLACE)).distinct()
        base = F.substring_index("topic", "~", 1)
        ages = rows.groupBy(*block.PLACE).agg(F.max("since_ms").alias("newest")).withColumn("base", base)
        known = ages.join(
            F.broadcast(self._logs),
            (F.col("base") == F.col("log_topic")) & (F.col("partition") == F.col("log_partition")),
        )
        done = known.where(
            (F.col("newest") <= self._reach.at_ms - self._grace_ms)
            & ((F.col("block") + 1) * block.WIDTH <= F.col("end"))
        )
        return done.select(*block.PLACE).join(unsettled, list(block.PLACE), "left_anti")

    def _write(self, rows: DataFrame, doubts: DataFrame, closing: DataFrame, ahead: DataFrame) -> None:
        place, number = list(block.PLACE), self._number
        self._memory.write(number, memory.OPEN, rows.join(closing, place, "left_anti"))
        if closing.head(1):
            self._memory.close(number, rows.join(closing, place, "left_semi"), self._reach.at_ms)
        self._memory.write(number, memory.DOUBTS, doubts)
        self._memory.write(number, memory.AHEAD, ahead)
        told = self._beyond(ahead, self._reach.at_ms)
        was = None if self._was_ahead is None else self._beyond(self._was_ahead, self._before.at_ms)
        found = doubt.news(doubts, self._doubted)
        new, gone = (told, None) if was is None else (told.subtract(was), was.subtract(told))
        found = found.unionByName(new.withColumn("news", F.lit(doubt.FOUND)))
        if gone is not None:
            found = found.unionByName(gone.withColumn("news", F.lit(doubt.WITHDRAWN)))
        words = doubt.in_words(found)
        self._memory.write(number, memory.NEWS, balance.findings(words, self._before.queue, number, self._reach.at_ms))

    def _beyond(self, ahead: DataFrame, at_ms: int) -> DataFrame:
        """What has been ahead of the log's end for the grace."""
        return doubt.unpublished(ahead.where(F.col("since_ms") <= at_ms - self._grace_ms))

    def _letter_topics(self, fresh: DataFrame) -> list[str]:
        rows = fresh.where(F.col("letter_topic").isNotNull()).select("letter_topic").distinct().collect()
        return [row["letter_topic"] for row in rows]

    def _listing(self, doubts: DataFrame) -> Note:
        """What is known of the queue's own list."""
        note, now_ms = self._before, self._reach.at_ms
        if self._not_listed is not None:
            note = replace(note, asked_at_ms=now_ms, not_listed=self._not_listed)
        if self._listed is not None:
            note = replace(note, listed=self._listed.messages, listed_at_ms=now_ms)
        # What was settled while the queue gave its list is in doubt until its event is read.
        doubted = note.listed_at_ms is None or doubts.where(F.col("difference").isin(*doubt.BY_LIST)).head(1)
        return note if doubted else replace(note, agreed_at_ms=note.listed_at_ms)

    def _balance(self, note: Note, totals: Counter[str], doubts: DataFrame, ahead: DataFrame, shown: int) -> Balance:
        beyond = self._beyond(ahead, note.at_ms)
        kinds = (
            doubts.groupBy("told", "difference")
            .agg(F.sum(F.bit_count("mask")).alias("messages"), F.min("since_ms").alias("since_ms"))
            .collect()
        )
        differ: Counter[str] = Counter()
        for row in kinds:
            differ[row["difference"]] += row["messages"] if row["told"] else 0
        width = (F.col("last") - F.col("first") + 1).cast("decimal(20,0)")
        differ[verdict.Difference.NOT_PUBLISHED.value] += int(beyond.agg(F.sum(width)).collect()[0][0] or 0)
        differ = +differ
        named = doubt.named(doubts.where("told")).unionByName(beyond)
        listed = named.orderBy("topic", "partition", "first").limit(shown) if differ else None
        ledger = replace(
            tally.ledger(note.queue, totals, differ[verdict.Difference.LOST.value]),
            listed=note.listed,
            not_listed=note.not_listed if note.asked_at_ms else "it was not to be asked",
            difference_counts=dict(sorted(differ.items())),
            differences=[] if listed is None else [row.asDict() for row in doubt.in_words(listed).collect()],
            before_log_start=note.before,
            quarantined=note.faults,
        )
        return Balance(
            ledger=ledger,
            batch=self._number,
            at_ms=note.at_ms,
            balanced_up_to_ms=self._instant(note, kinds, ahead),
            balanced_up_to=self._offsets(doubts),
            in_doubt=sum(row["messages"] for row in kinds if not row["told"]),
            listed_at_ms=note.listed_at_ms,
        )

    def _instant(self, note: Note, kinds: Sequence[Row], ahead: DataFrame) -> int:
        """Up to when the account adds up: before the oldest doubt, and before the last list that agreed."""
        since = [row["since_ms"] for row in kinds if row["difference"] not in doubt.BY_LIST]
        since.append(ahead.agg(F.min("since_ms")).collect()[0][0])
        if note.asked_at_ms and not note.not_listed:
            since.append(note.agreed_at_ms or 0)
        return max(0, min(note.at_ms, *(int(one) for one in since if one is not None), note.at_ms) - self._grace_ms)

    def _offsets(self, doubts: DataFrame) -> list[UpTo]:
        first = F.element_at(block.offsets(F.col("block"), F.col("mask")), 1)
        base = F.substring_index("topic", "~", 1).alias("topic")
        rows = doubts.groupBy(base, "partition").agg(F.min(first).alias("first")).collect()
        odd = {(row["topic"], row["partition"]): row["first"] for row in rows}
        return [
            UpTo(topic=topic, partition=part, offset=min(end, odd.get((topic, part), end)), read=end)
            for (topic, part), end in sorted(self._reach.ends.items())
        ]
