"""The audit of redrives: which letters were sent when, so that none is sent by two runs (D5, C58).

Letters that `lapse dlq redrive` has sent count, too, and it leaves out letters that are sent here (`redriven`). A
letter stays on its dead-letter topic after a redrive. Each run records what it is about to send, sends it, and records
that it is done. If a run died before that, the next one finds the sent letters on the target topics by their message
ids, records them, and sends the rest.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import ExitStack, nullcontext, suppress
from dataclasses import KW_ONLY, dataclass, replace
from functools import partial
from typing import Any, Final

from pyspark.sql import DataFrame, Row, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.window import Window

from lapse.protocol import topic
from lapse.protocol.letter_family import LAPSE
from lapse.protocol.redrive import target_fault
from lapse_client.error import LapseError
from lapse_client.letters import letter_topic
from lapse_client.reading.definitions import Definitions
from lapse_client.reading.underlying import reads_others_only
from lapse_client.sow.newer_records import underlying_topics
from lapse_spark.connection import Connection
from lapse_spark.letters import audited, newer_records, origins, redrive, redriven, untaken
from lapse_spark.letters.announced import AnnouncedRedrive, Overtaken, audit_id, refusal_of_others
from lapse_spark.letters.redrive import Choice, Target
from lapse_spark.records import dead_letter
from lapse_spark.stream.directory_lock import locked
from lapse_spark.stream.output import Output

Hook = Callable[[DataFrame], DataFrame]
"""A function that changes records before they are sent. It takes and returns the columns of `redrive.records`."""

_AUDITED: Final = "_audited"
"""The column that says whether an earlier run has sent a letter."""

_ATTEMPTS: Final = 3
"""How often a run chooses letters anew, because a command has sent some of them meanwhile."""

_SLICE_S: Final = 5
"""With a rate, the letters of this time are sent in one Spark job, in seconds: a job per message would be too slow."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Redriven:
    """The result of a run or dry run. All counts are numbers of letters.

    Attributes:
        sent: letters that were sent, or would be.
        refused: chosen letters that were refused: no payload, unconfirmed transfer, loop limit, newer record (C84),
            missing origin or entity, an entity that reads other topics, or a record that its topic would refuse.
        deadline_passed: sent letters whose deadline has passed (C30).
        earlier: letters left out, because an earlier run or `lapse dlq redrive` has sent them.
        groups: the counts by entity, reasons and target.
        dry_run: whether nothing was sent.
        refusal: why a run that sends would be refused now, because another one has not ended; empty if it would not.
    """

    sent: int
    refused: int
    deadline_passed: int
    earlier: int
    groups: list[dict[str, Any]]
    dry_run: bool
    refusal: str = ""


def run(
    spark: SparkSession,
    connection: Connection,
    letters: DataFrame,
    choice: Choice,
    target: Target,
    *,
    path: str,
    now_ms: int,
    dry_run: bool = True,
    rate: int | None = None,
    limit: int | None = None,
    hook: Hook | None = None,
    end_unfinished: bool = False,
) -> Redriven:
    """Choose letters, leave out those that were redriven before, and send the rest.

    Before it sends, a run ends all commands that send letters of the same topics, and announces itself, so that no
    other one sends them until its letters are noted.

    Args:
        spark: the Spark session.
        connection: connection to the cluster.
        letters: `schema.DEAD_LETTER`, from the topics or an archive.
        choice: the choice of letters.
        target: target topic and lifetime.
        path: directory of the audit, the same for all redrives of an installation.
        now_ms: the instant of the run, ms since the epoch. It is the id of the run.
        dry_run: whether to count only.
        rate: most letters per second; None = no limit.
        limit: most letters in all, the oldest first; None = all.
        hook: changes records before they are sent. A letter whose record it drops counts as sent.
        end_unfinished: whether runs with other directories that have not ended count as ended. Letters that they have
            sent without a note are sent twice.

    Raises:
        ValueError: letters must not be sent to the target topic.
        LapseError: a run with this directory is running, or one with another directory has not ended, or a transaction
            with notes of sent letters stays open, or the cluster cannot be reached.
    """
    check_target(target.topic, connection)
    way = _Way(connection, target, hook)
    plan = _Plan(choice, path, now_ms, dry_run=dry_run, rate=rate, limit=limit, end_unfinished=end_unfinished)
    with nullcontext() if dry_run else locked(Output(spark, path)):
        for _ in range(_ATTEMPTS):
            with suppress(Overtaken):
                return _run(spark, letters, way, plan)
    raise LapseError("other redrives of these letters begin again and again. Run it again when they have ended")


def _run(spark: SparkSession, letters: DataFrame, way: _Way, plan: _Plan) -> Redriven:
    """Choose letters, and send them.

    Raises:
        Overtaken: others have sent letters of the same topics since the notes were read. Nothing was sent.
    """
    connection, choice, dry_run = way.connection, plan.choice, plan.dry_run
    output = Output(spark, plan.path)
    with ExitStack() as until_end:
        keep = partial(_keep, until_end)
        announced: AnnouncedRedrive | None = None
        if not dry_run:
            redriven.await_notes(connection)
            announced = AnnouncedRedrive(connection.of_lapse(), audit_id(output), plan.path, plan.now_ms)
        known = keep(redriven.read_sent_letters(spark, connection))
        if announced is not None:
            announced.take(redriven.unfinished(known))
        chosen = redriven.with_history(redrive.choose(letters, choice), known)
        ids = audited.ids_sent_before(spark, connection, output, plan.now_ms, dry_run)
        marked = keep(_mark_audited(chosen, None if choice.again else ids))
        chosen, earlier, places, untold = _leave_out_earlier(marked, choice)
        judged, batch_bytes = _mark_unsendable(spark, connection, chosen, places, way.target, way.hook)
        chosen = redrive.mark_refused(judged, choice)
        if plan.limit is not None:
            chosen = _oldest_passed(keep(chosen), plan.limit)
        if not dry_run:  # else they are only counted
            chosen = keep(chosen)
        groups = [row.asDict() for row in redrive.plan(chosen, way.target, plan.now_ms).collect()]
        sends = any(group["refused"] is None for group in groups)
        topics = {place["letter_topic"] for place in places} if sends else set()
        refusal = ""
        if announced is None and topics and not plan.end_unfinished:
            refusal = refusal_of_others(redriven.unfinished(known), output, topics)
        elif announced is not None:
            announced.begin(topics, end_unfinished=plan.end_unfinished)
            if announced.unfinished and ids is not None:
                every = dead_letter.distinct(letters.where(F.col("fault").isNull()))
                untold = keep(_untold(_mark_audited(redriven.with_history(every, known), ids)))
            if untold is not None:
                redriven.make_topic(connection)
                redriven.publish_sent_letters(untold, connection)
            if sends:
                passed = chosen.where(F.col("refused").isNull())
                _record_and_send(replace(way, batch_bytes=batch_bytes), passed, output, plan.now_ms, plan.rate)
            announced.end({*topics, *_topics_among(letters, announced.unfinished)})
    return replace(_counted(groups, earlier, dry_run), refusal=refusal)


def _untold(marked: DataFrame) -> DataFrame:
    """Return the letters, from `_mark_audited`, that were sent by an earlier run, and of which no note tells."""
    return marked.where(F.col(_AUDITED) & (F.col(redriven.TIMES) == 0))


def _topics_among(letters: DataFrame, topics: Collection[str]) -> set[str]:
    """Return those of some dead-letter topics from which there are letters."""
    if not topics:
        return set()
    rows = letters.where(F.col("letter_topic").isin(sorted(topics))).select("letter_topic").distinct().collect()
    return {row[0] for row in rows}


def check_target(target: str, connection: Connection) -> None:
    """Check that letters may be sent to a topic; an empty one stands for their origins.

    Raises:
        ValueError: they must not.
        LapseError: the cluster cannot be reached.
    """
    named: set[str] = set()
    if target and not target_fault(target):
        with suppress(ValueError):  # with options that only Java's client has, only the names count
            ours = connection.of_lapse()
            named.update(letter_topic.all_named(Definitions(ours, ours.partitions())).values())
    if why := target_fault(target, letter_topics=named):
        raise ValueError(why)


def _counted(groups: list[dict[str, Any]], earlier: int, dry_run: bool) -> Redriven:
    """Return the result of a run, from its counts by entity, reasons and target."""
    sent = [group for group in groups if group["refused"] is None]
    return Redriven(
        sent=sum(group["letters"] for group in sent),
        refused=sum(group["letters"] for group in groups if group["refused"] is not None),
        deadline_passed=sum(group["deadline_passed"] for group in sent),
        earlier=earlier,
        groups=groups,
        dry_run=dry_run,
    )


def _keep(until_end: ExitStack, data: DataFrame) -> DataFrame:
    """Persist data until the run ends."""
    until_end.callback(data.persist().unpersist)
    return data


def _mark_audited(chosen: DataFrame, ids: DataFrame | None) -> DataFrame:
    """Add to letters whether earlier runs have sent them, which have these ids; None = none were."""
    if ids is None:
        return chosen.withColumn(_AUDITED, F.lit(False))
    sent = ids.select("id", F.lit(True).alias(_AUDITED))
    return chosen.join(sent, "id", "left").withColumn(_AUDITED, F.coalesce(_AUDITED, F.lit(False)))


def _leave_out_earlier(chosen: DataFrame, choice: Choice) -> tuple[DataFrame, int, list[Row], DataFrame | None]:
    """Leave out letters that were sent before.

    Args:
        chosen: the chosen letters, with their history, from `_mark_audited`.
        choice: whether letters are sent again.

    Returns:
        The other letters; the number of those that are left out; the topics, partitions and entities of the others;
        the letters that only the audit knows, None if there are none.
    """
    noted, known = F.col(redriven.TIMES) > 0, F.col(_AUDITED)
    foreign = (F.col("family") != LAPSE.name).alias("foreign")
    sent_before = F.lit(False) if choice.again else noted | known
    groups = chosen.groupBy(
        "letter_topic",
        "topic",
        "partition",
        "entity",
        foreign,
        sent_before.alias("before"),
        (known & ~noted).alias("untold"),
    )
    counts = groups.agg(F.count("*").alias("letters")).collect()
    untold = _untold(chosen) if any(row["untold"] for row in counts) else None
    earlier = sum(row["letters"] for row in counts if row["before"])
    return chosen.where(~sent_before).drop(_AUDITED), earlier, [row for row in counts if not row["before"]], untold


def _oldest_passed(chosen: DataFrame, limit: int) -> DataFrame:
    """Return the refused letters, and the oldest of the others, at most `limit` of them."""
    passed = chosen.where(F.col("refused").isNull()).orderBy("died_at", "letter_offset").limit(limit)
    return passed.unionByName(chosen.where(F.col("refused").isNotNull()))


def _mark_unsendable(
    spark: SparkSession,
    connection: Connection,
    chosen: DataFrame,
    places: Sequence[Row],
    target: Target,
    hook: Hook | None,
) -> tuple[DataFrame, int]:
    """Add to letters whether their target exists and would accept them, and whether there is a newer record (C84).

    Returns:
        The letters, and the greatest size of a batch of records, in bytes.
    """
    topics: Mapping[str, int] | None = None
    try:
        ours = connection.of_lapse()
        topics = ours.partitions()
    except ValueError:  # with options that only Java's client has, the sink reports the error
        pass
    else:
        if not target.topic:
            is_left_out = reads_others_only(Definitions(ours, topics))
            chosen = origins.mark_unreachable(chosen, places, topics, ours.is_removed, is_left_out)
    if hook is None:
        to = {target.topic or one.topic for one in places}
        judged, batch_bytes = untaken.mark_untaken(redrive.with_records(chosen, target), connection, to)
        chosen = judged.drop(untaken.RECORD)
    else:
        records = _records(chosen.withColumn("refused", F.lit(None)), target, hook)
        chosen, batch_bytes = untaken.mark_untaken_by_id(chosen, records, connection)
    sow = _sow_topics(connection, places, target, topics)
    if sow and places:
        known = newer_records.records(spark, connection, sow)
        chosen = newer_records.mark_superseded(chosen, known, target.topic, any(one.foreign for one in places))
    return chosen, batch_bytes


def _sow_topics(
    connection: Connection, places: Sequence[Row], target: Target, topics: Mapping[str, int] | None
) -> list[str]:
    """Return the SOW topics that take letters of some topics and entities."""
    entities = set() if target.topic else {one.entity for one in places if not one.foreign and one.entity}
    if topics is None:
        return sorted(entities)
    everybodys = {target.topic or one.topic for one in places if target.topic or one.foreign}
    if everybodys:
        underlying = underlying_topics(connection.of_lapse(), topics)
        entities.update(entity for entity, one in underlying.items() if one in everybodys)
    return sorted(entity for entity in entities if topic.sow(entity) in topics)


def _records(letters: DataFrame, target: Target, hook: Hook | None) -> DataFrame:
    plain = redrive.records(letters, target)
    return plain if hook is None else redrive.check_hook_output(plain, hook(plain))


@dataclass(frozen=True, slots=True)
class _Plan:
    """The settings of a run, as those of `run`."""

    choice: Choice
    path: str
    now_ms: int
    _: KW_ONLY
    dry_run: bool
    rate: int | None
    limit: int | None
    end_unfinished: bool


@dataclass(frozen=True, slots=True)
class _Way:
    """The settings for sending letters."""

    connection: Connection
    target: Target
    hook: Hook | None
    batch_bytes: int = 0

    def send(self, letters: DataFrame) -> None:
        """Send letters, and note them as sent."""
        redrive.send(_records(letters, self.target, self.hook), self.connection, self.batch_bytes)
        redriven.publish_sent_letters(letters, self.connection)


def _record_and_send(way: _Way, passed: DataFrame, output: Output, now_ms: int, rate: int | None) -> None:
    """Record what is sent before it is, and that it is done afterwards."""
    redriven.make_topic(way.connection)
    at = F.timestamp_millis(F.lit(now_ms))
    output.write("sent", _targets(way, passed), at, now_ms)
    _send(way, passed, rate)
    done = passed.sparkSession.range(1).select(F.lit(now_ms).alias("at_ms"))
    output.write("done", done, at, now_ms)


def _targets(way: _Way, passed: DataFrame) -> DataFrame:
    """Return id, entity, died_at and target of letters. A hook may change the topic of their records."""
    to = (F.lit(way.target.topic) if way.target.topic else F.col("topic")).alias("target")
    going = passed.select("id", "entity", "died_at", to)
    if way.hook is None:
        return going
    records = _records(passed, way.target, way.hook)
    hooked = records.select(redriven.letter_in(F.col("headers")).alias("id"), F.col("topic").alias("_topic")).distinct()
    return going.join(hooked, "id", "left").select(
        "id", "entity", "died_at", F.coalesce("_topic", "target").alias("target")
    )


def _send(way: _Way, passed: DataFrame, rate: int | None) -> None:
    if rate is None:
        way.send(passed)
        return
    order = Window.orderBy("died_at", "letter_topic", "letter_partition", "letter_offset")
    piece = F.floor((F.row_number().over(order) - 1) / (rate * _SLICE_S)).alias("_slice")
    sliced = passed.select("*", piece).persist()
    try:
        slices = int((sliced.agg(F.max("_slice")).head() or [0])[0] or 0) + 1
        send_in_turn(slices, lambda number: way.send(sliced.where(F.col("_slice") == number)))
    finally:
        sliced.unpersist()


def send_in_turn(slices: int, send: Callable[[int], None]) -> None:
    """Send slices by their numbers, and wait between them.

    A job that took long may have sent its letters at its end. So the wait begins there, and nothing is made up for.
    """
    for number in range(slices):
        if number:
            time.sleep(_SLICE_S)
        send(number)
