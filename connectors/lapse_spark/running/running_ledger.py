"""The running ledger: each batch adds new facts to the open messages, and publishes the balance (D8).

The cost of a batch depends on the new facts and the open messages. After a crash, a batch is repeated from the version
before it, until its own version is complete. The published balance comes from that version.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Final

import orjson
from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from lapse.protocol import topic as topics
from lapse_client.error import LapseError
from lapse_spark import read
from lapse_spark.account import inventory, journal
from lapse_spark.account.inventory import Inventory
from lapse_spark.account.journal import Journal, NoJournal
from lapse_spark.connection import Connection
from lapse_spark.running import balance, continuity, intake, memory
from lapse_spark.running.balance import Balance
from lapse_spark.running.intake import Followed
from lapse_spark.running.memory import Memory, Note
from lapse_spark.running.settling import Settling
from lapse_spark.stream import stream
from lapse_spark.stream.directory_lock import locked
from lapse_spark.stream.stream import Job, Standing
from lapse_spark.stream.topic_ids import named_if_deleted

EVERY: Final = "10 seconds"
GRACE: Final = timedelta(minutes=1)
"""How long a difference lasts before it is reported, because an event may be on its way while its letter is read."""
ASK_EVERY: Final = timedelta(minutes=1)
HORIZON: Final = timedelta(days=1)
"""How long a message is kept after its fate, to find a second one. After a crash, a copy is minutes younger."""

_REPORTED_AGAIN_MS: Final = 600_000
"""After a restart, the journal is read from this time before the last batch on, in ms."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """The settings of a running ledger.

    Attributes:
        topic: topic for balances and findings.
        grace: how long a difference lasts before it is reported.
        ask_every: interval at which the queue is asked for its own list; None = never.
        horizon: how long a message is kept after its fate.
        shown: greatest number of findings in a balance.
        written_with: further schemas of events, as in `event.parse`.
    """

    topic: str = balance.TOPIC
    grace: timedelta = GRACE
    ask_every: timedelta | None = ASK_EVERY
    horizon: timedelta = HORIZON
    shown: int = 20
    written_with: Sequence[str] = field(default_factory=tuple)


class RunningLedger:
    """The ledger of one queue, batch by batch."""

    def __init__(self, spark: SparkSession, connection: Connection, queue: Followed, path: str, rule: Rule) -> None:
        self._spark, self._connection, self._queue, self._rule = spark, connection, queue, rule
        self._memory = Memory.of(spark, path, queue.name)
        self._memory.check()
        if self.note is not None:
            continuity.check(queue, self.note, self._memory.output.path)
        self._subscribed: set[str] = set()
        self._underlying: set[str] = set()
        self._there: set[str] = set()
        since_ms = 0 if self.note is None else self.note.at_ms - _REPORTED_AGAIN_MS
        self._journal = Journal(connection.of_lapse(), queue.name, queue.app_id, since_ms)
        self._journaled: list[journal.Row] = []
        """What the journal has said since the last complete batch. A batch that was interrupted is repeated with it."""

    @property
    def note(self) -> Note | None:
        """The note of the last batch; None before the first."""
        return self._memory.latest()

    @property
    def is_unsettled(self) -> bool:
        """Whether differences are in doubt, so that another batch may decide them."""
        return self.note is not None and bool(self.note.account.get("in_doubt"))

    @property
    def subscribed(self) -> set[str]:
        """The topics that the stream reads."""
        return {topics.events(self._queue.name), *self._subscribed, *self._underlying}

    @property
    def lacks_topics(self) -> bool:
        """Whether the stream does not read an existing topic yet that matches, or that events name."""
        if not self._underlying.issuperset(self._there):
            return True
        return self.note is not None and not self._subscribed.issuperset(self.note.letter_topics)

    def job(self) -> Job:
        """Return the stream from the checkpoint on."""
        latest = self.note
        known = latest.letter_topics if latest is not None else []
        self._subscribed = {topics.dead_letters(self._queue.name), *self._queue.dead_letter_topics, *known}
        self._there = self._queue.present_topics(self._connection)
        self._underlying = self._there
        rows = intake.stream(
            self._spark,
            self._connection,
            self._queue,
            self._underlying,
            self._subscribed,
            self._rule.written_with,
        )
        return Job(rows, self.write, self._memory.output)

    def write(self, batch: DataFrame, number: int) -> None:
        """Add a batch to the account, unless it is added already, and publish the balance."""
        note = self._memory.note(number)
        if note is None:
            note = self._add(batch, number)
        account = orjson.dumps(note.account).decode()
        news = self._memory.table(number, memory.NEWS)
        balance.publish(self._spark, self._connection, self._rule.topic, self._queue.name, account, news)

    def _add(self, batch: DataFrame, number: int) -> Note:
        kept = self._memory
        self._there = self._queue.present_topics(self._connection, self._there)
        reached = intake.reach(kept.output, number, self._queue.starts)
        before = kept.note(number - 1)
        if before is None:
            if number:
                raise ValueError(f"{kept.output.path} has no ledger of batch {number - 1}; give a new directory")
            before = Note(queue=self._queue.name, at_ms=0)
        before = replace(before, **continuity.noted(self._queue))
        if self._rule.ask_every is None:  # what the queue told an earlier run must not hold the balance back for good
            before = replace(before, asked_at_ms=0)
        settling = Settling(self._spark, kept, number, reached, before, self._rule.grace)
        often = self._rule.ask_every
        if often is not None and reached.at_ms - before.asked_at_ms >= often.total_seconds() * 1000:
            settling.compare_with_list(*self._list())
        not_journaled = ""
        try:
            self._journaled += self._journal.read(reached.ends)
        except NoJournal as error:
            not_journaled = str(error)
        if self._journaled:
            reported = journal.statements(self._spark, self._journaled).withColumn("kind", F.lit(intake.REPORTED))
            batch = batch.unionByName(reported, allowMissingColumns=True)
        settling.set_missing_journal(not_journaled)
        note = settling.settle(batch, shown=self._rule.shown, horizon=self._rule.horizon)
        self._journaled = []
        return note

    def close(self) -> None:
        """Close the reader of the journal."""
        self._journal.close()

    def _list(self) -> tuple[Inventory | None, str]:
        try:
            return inventory.ask(self._connection.of_lapse(), self._queue.name), ""
        except (LapseError, inventory.NotListed, ValueError) as error:
            return None, str(error)


def run(
    spark: SparkSession,
    connection: Connection,
    queues: Sequence[Followed],
    path: str,
    rule: Rule,
    *,
    every: str | None = EVERY,
    watch: Callable[[Standing], None] | None = None,
) -> list[Balance]:
    """Run the ledgers of queues from their checkpoints on, and publish their balances.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        queues: the queues.
        path: directory with a subdirectory for each queue.
        rule: settings of the ledgers.
        every: interval of batches of a continuous run, until SIGINT (Ctrl-C) or SIGTERM; None = take the present
            records, wait for the grace if anything is in doubt, and stop.
        watch: called with the progress of the streams.

    Returns:
        The last balance of each queue that has one.

    Raises:
        ValueError: a directory and its checkpoint do not belong together, or it was begun over other topics or with
            other first messages, or a topic does not exist.
        LapseError: another job with the directory of one of them is running.
    """
    if every is None and rule.ask_every is not None:
        rule = replace(rule, ask_every=timedelta(0))  # each run asks, because cron decides when the next one comes
    reading = [name for queue in queues for name in (*queue.underlying, topics.events(queue.name))]
    with ExitStack() as open_still:
        for queue in queues:
            open_still.enter_context(locked(Memory.of(spark, path, queue.name).output))
        balance.make_topic(connection, rule.topic, reading)
        ledgers = [RunningLedger(spark, connection, queue, path, rule) for queue in queues]
        for ledger in ledgers:
            open_still.callback(ledger.close)
        _run_until_settled(connection, ledgers, reading, rule, every, watch)
    notes = [ledger.note for ledger in ledgers]
    return [Balance.from_json(note.account) for note in notes if note is not None]


def _run_until_settled(
    connection: Connection,
    ledgers: Sequence[RunningLedger],
    reading: Sequence[str],
    rule: Rule,
    every: str | None,
    watch: Callable[[Standing], None] | None,
) -> None:
    """Run the streams until a signal, or without `every` until nothing is in doubt or the grace has passed."""
    with stream.interruption() as interrupted:
        waited = False
        while not interrupted.is_set():
            jobs = [ledger.job() for ledger in ledgers]
            read_by_all = {name for ledger in ledgers for name in ledger.subscribed}
            with read.name_missing_topics(reading), named_if_deleted(connection, read_by_all):
                stream.follow_all(jobs, lambda: _stops(interrupted, ledgers), every=every, watch=watch)
            if interrupted.is_set() or any(ledger.lacks_topics for ledger in ledgers):
                continue
            if every is not None or waited or not any(ledger.is_unsettled for ledger in ledgers):
                break
            waited = True
            interrupted.wait(rule.grace.total_seconds())


def _stops(interrupted: threading.Event, ledgers: Sequence[RunningLedger]) -> bool:
    return interrupted.is_set() or any(ledger.lacks_topics for ledger in ledgers)
