"""Runs streams, once over the present records or continuously, and reports their progress and lag."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass
from typing import Any, Final

import orjson
from py4j.protocol import Py4JError
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from lapse_spark import jvm
from lapse_spark.stream.output import Output
from lapse_spark.stream.recreated_topics import RecreatedTopics

LAG_FILE: Final = "lag.json"
"""The file with the lag, beside an output's tables. Spark commits no group offsets, so Kafka's tools cannot show it."""

_STREAMS: Final = "org.apache.spark.sql.execution.streaming"
"""The loggers of Spark's streams."""

_ALL_THERE_IS: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""A setting without which a stream with a clock stops after one batch, which after a crash is only the repeated one."""

_LOOK_EVERY_S: Final = 2
_BATCH_S: Final = 20.0
"""How long the stop of a stream waits for the current batch, in seconds."""


class StreamLost(RuntimeError):
    """A stream ended although it had more to do, and Spark gives no reason. Java's text may be on standard error."""


@dataclass(frozen=True, slots=True)
class Standing:
    """The progress of a stream.

    Attributes:
        batch: number of the last finished batch; -1 before the first.
        records: number of records read since the start of the stream.
        lag: number of records that Kafka had when the last batch was planned, and that are not read yet.
        lag_by_partition: the lag of every partition, by `topic:partition`.
        at: when the last batch was planned, RFC 3339, UTC.
    """

    batch: int = -1
    records: int = 0
    lag: int = 0
    lag_by_partition: Mapping[str, int] | None = None
    at: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A stream and its output.

    Attributes:
        source: a streaming DataFrame on Kafka.
        write: called with each batch and its number, and after a crash again with the same batch.
        output: the output, which has the stream's checkpoint.
    """

    source: DataFrame
    write: Callable[[DataFrame, int], None]
    output: Output


def follow(
    source: DataFrame,
    write: Callable[[DataFrame, int], None],
    output: Output,
    *,
    every: str | None = None,
    recreated: RecreatedTopics | None = None,
    watch: Callable[[Standing], None] | None = None,
) -> Standing:
    """Run a stream until it has read the present records, or until SIGINT (Ctrl-C) or SIGTERM.

    The next run repeats a batch that was interrupted.

    Args:
        source: see `Job`.
        write: see `Job`.
        output: see `Job`.
        every: interval of batches (`30 seconds`) of a continuous run; None = take the present records, and stop.
        recreated: finds topics that were deleted and created again, so that they are read from their beginning.
        watch: called with the progress now and then.

    Raises:
        StreamingQueryException: the source failed. Finished batches stay, and are not repeated.
        StreamLost: the stream ended within a batch, and Spark does not say why.
        ValueError: a topic was deleted and created again, and `recreated` does not allow it.
        Exception: the error that `write` raised. Finished batches stay, and are not repeated.
    """
    jobs = [Job(source, write, output)]
    with interruption() as interrupted:
        if recreated is None:
            return follow_all(jobs, interrupted.is_set, every=every, watch=watch)

        def look(standing: Standing) -> None:
            recreated.look({place.rpartition(":")[0] for place in standing.lag_by_partition or ()})
            if watch is not None:
                watch(standing)

        output.check()
        while True:
            recreated.forget_offsets()
            try:
                standing = follow_all(jobs, lambda: interrupted.is_set() or recreated.found, every=every, watch=look)
            except StreamingQueryException:
                recreated.forget_offsets()  # raises the cause, if that is it
                raise
            if interrupted.is_set() or not recreated.found:
                return standing


def follow_all(
    jobs: Sequence[Job],
    stop: Callable[[], bool],
    *,
    every: str | None,
    watch: Callable[[Standing], None] | None = None,
) -> Standing:
    """Run several streams in parallel, as `follow` runs one, until all have stopped, or `stop()` is true.

    Returns:
        Their combined progress.

    Raises:
        StreamLost: a stream ended although it had more to do, and Spark does not say why.
    """
    for job in jobs:
        job.output.check()
    faults: list[Exception] = []
    runs: list[_Run] = []
    try:
        runs.extend(_Run(job, every, faults) for job in jobs)
        while not stop():
            running = [run for run in runs if run.query.isActive]
            if running:
                running[0].query.awaitTermination(_LOOK_EVERY_S)
            standing = _merge_standings([run.look() for run in runs])
            if watch is not None:
                watch(standing)
            for run in runs:
                if not run.query.isActive:
                    run.query.awaitTermination()  # raises the error that stopped it
            went_on = [run.go_on() for run in runs]
            if not running and not any(went_on):
                _check_ends(jobs, stop, every)
                break
    except (StreamingQueryException, Py4JError) as error:
        if stop():  # the signal may have stopped the JVM, too
            return _merge_standings([run.standing for run in runs])
        if faults:
            raise faults[0] from error
        raise
    finally:
        for run in runs:
            run.end()
    return _merge_standings([run.standing for run in runs])


def _check_ends(jobs: Sequence[Job], stop: Callable[[], bool], every: str | None) -> None:
    """Check that streams that ended by themselves have done everything. A fatal error of Java's may leave no trace.

    Raises:
        StreamLost: one has not.
    """
    for job in jobs:
        if not stop() and (every is not None or job.output.has_unfinished_batch):
            raise StreamLost(
                f"{job.output.path}: Spark's stream ended early, and Spark does not say why; perhaps Java's text above "
                "does. What was finished stays; run the command again to go on"
            )


class _Run:
    """One running stream."""

    def __init__(self, job: Job, every: str | None, faults: list[Exception]) -> None:
        def keep_fault(batch: DataFrame, number: int) -> None:
            with self._at_work:
                if self._ending:
                    raise InterruptedError("the stream ends; the next run does this batch")
                try:
                    job.write(batch, number)
                except Exception as error:
                    faults.append(error)  # the JVM would turn it into a text with a stack trace
                    raise

        self._at_work, self._ending = threading.Lock(), False
        self._spark = job.source.sparkSession
        self._spark.conf.set(_ALL_THERE_IS, "true")
        stream = job.source.writeStream.foreachBatch(keep_fault)
        self._writer = stream.option("checkpointLocation", job.output.checkpoint)
        # Spark cannot repeat a batch as one of those that are available now if there is a partition more since it was
        # planned. So it is repeated alone.
        self._repeats = every is None and job.output.has_unfinished_batch
        if every is not None:
            trigger = self._writer.trigger(processingTime=every)
        else:
            trigger = self._writer.trigger(once=True) if self._repeats else self._writer.trigger(availableNow=True)
        self.query = trigger.start()
        self.standing = Standing()
        self._output = job.output
        self._seen: set[int] = set()
        self._records = 0

    def go_on(self) -> bool:
        """Read what is available now, if the stream has just repeated an interrupted batch; return whether it does."""
        if not self._repeats or self.query.isActive:
            return False
        self.look()
        self._repeats = False
        self.query = self._writer.trigger(availableNow=True).start()
        return True

    def end(self) -> None:
        """Stop the stream after the current batch, unless that takes too long.

        Spark would interrupt a batch with a page of Java's text on standard error, also one that begins meanwhile.
        """
        done = self._at_work.acquire(timeout=_BATCH_S)
        self._ending = True
        with suppress(Py4JError), _unlogged(self._spark):
            if done:
                self._at_work.release()
            self.query.stop()

    def look(self) -> Standing:
        """Return the present progress, and write it to the output."""
        for progress in self.query.recentProgress:
            progress_facts: Mapping[str, Any] = orjson.loads(progress.json)
            if progress_facts["batchId"] in self._seen:
                continue
            if progress_facts["numInputRows"]:
                self._seen.add(progress_facts["batchId"])
            self._records += sum(one["numInputRows"] for one in progress_facts["sources"] if _is_kafka(one))
            self.standing = _parse_progress(progress_facts, self._records)
        if self.standing.batch >= 0:
            text = orjson.dumps(asdict(self.standing), option=orjson.OPT_INDENT_2).decode()
            self._output.put_text(LAG_FILE, text)
        return self.standing


@contextmanager
def _unlogged(spark: SparkSession) -> Iterator[None]:
    """Silence Spark's log of streams in the block, because their stop is no error."""
    log4j = jvm.view(spark).org.apache.logging.log4j
    set_level, before = log4j.core.config.Configurator.setLevel, log4j.LogManager.getLogger(_STREAMS).getLevel()
    set_level(_STREAMS, log4j.Level.OFF)
    try:
        yield
    finally:
        set_level(_STREAMS, before)


def _is_kafka(source: Mapping[str, Any]) -> bool:
    """Return whether a source reads topics, and is not a clock."""
    return "Kafka" in source["description"]


def _merge_standings(standings: Sequence[Standing]) -> Standing:
    if len(standings) == 1:
        return standings[0]
    behind: dict[str, int] = {}
    for one in standings:
        behind |= one.lag_by_partition or {}
    return Standing(
        batch=min((one.batch for one in standings), default=-1),
        records=sum(one.records for one in standings),
        lag=sum(one.lag for one in standings),
        lag_by_partition=behind,
        at=max((one.at for one in standings), default=""),
    )


@contextmanager
def interruption() -> Iterator[threading.Event]:
    """Set an event at SIGINT or SIGTERM. A second signal ends the process at once.

    An exception from a signal handler could interrupt an exchange with the JVM at any point.
    """
    asked = threading.Event()
    if threading.current_thread() is not threading.main_thread():
        yield asked
        return
    before = {number: signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM)}

    def ask(number: int, _: object) -> None:
        asked.set()
        signal.signal(number, signal.SIG_DFL)

    for number in before:
        signal.signal(number, ask)
    try:
        yield asked
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _parse_progress(progress_facts: Mapping[str, Any], records: int) -> Standing:
    behind: dict[str, int] = {}
    for source in filter(_is_kafka, progress_facts["sources"]):
        read, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        behind |= {place: max(0, offset - read.get(place, 0)) for place, offset in latest.items()}
    return Standing(progress_facts["batchId"], records, sum(behind.values()), behind, progress_facts["timestamp"])


def _offsets(offsets: object) -> dict[str, int]:
    """Return offsets by `topic:partition` from `{"topic": {"0": 17}}`."""
    if isinstance(offsets, str):
        offsets = orjson.loads(offsets)
    if not isinstance(offsets, dict):
        return {}
    return {f"{topic}:{number}": offset for topic, parts in offsets.items() for number, offset in parts.items()}
