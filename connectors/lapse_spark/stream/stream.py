"""Running a stream: once over what there is, or on and on; where it stands, and how far it lags behind."""

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

from lapse_spark.stream.output import Output

LAG_FILE: Final = "lag.json"
"""Beside the tables of an output: the source commits no group offsets, so no Kafka tool can show the lag."""

_STREAMS: Final = "org.apache.spark.sql.execution.streaming"
"""What of Spark's log is about streams."""

_ALL_THERE_IS: Final = "spark.sql.streaming.triggerAvailableNowWrapper.enabled"
"""Without it a stream with a clock takes one batch and ends: behind a crash the one that was cut short, and no more."""

_LOOK_EVERY_S: Final = 2
_BATCH_S: Final = 20.0
"""How long the end of a stream waits for the batch that it is at."""


@dataclass(frozen=True, slots=True)
class Standing:
    """Where a stream stands.

    Attributes:
        batch: the last batch that is finished; -1 before the first.
        records: records read since the stream was started.
        lag: records that Kafka had when the last batch was planned, and that are not read yet.
        lag_by_partition: the same for every partition, `topic:partition`.
        at: when that was, RFC 3339, UTC.
    """

    batch: int = -1
    records: int = 0
    lag: int = 0
    lag_by_partition: Mapping[str, int] | None = None
    at: str = ""


@dataclass(frozen=True, slots=True)
class Job:
    """A stream and where it writes.

    Attributes:
        source: a streaming DataFrame on Kafka.
        write: is given each batch and its number; called again with the same batch after a crash.
        output: whose checkpoint says how far the stream has come.
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
    watch: Callable[[Standing], None] | None = None,
) -> Standing:
    """Run a stream until it has read what there is, or until a SIGINT (Ctrl-C) or SIGTERM ends it.

    A batch that is cut short so is done again by the next run.

    Args:
        source: as in `Job`.
        write: as in `Job`.
        output: as in `Job`.
        every: begin a batch so often (`30 seconds`), and go on; None = take what there is now, and end.
        watch: is told where the stream stands, now and then.

    Raises:
        StreamingQueryException: the source failed. What was finished stays, and is not done again.
        Exception: what `write` raised, likewise.
    """
    with interruption() as interrupted:
        return follow_all([Job(source, write, output)], interrupted.is_set, every=every, watch=watch)


def follow_all(
    jobs: Sequence[Job],
    stop: Callable[[], bool],
    *,
    every: str | None = None,
    watch: Callable[[Standing], None] | None = None,
) -> Standing:
    """Run several streams side by side, as `follow` does one, until all have ended, or until `stop` says so.

    Returns:
        Where they stand, together.
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
            standing = _together([run.look() for run in runs])
            if watch is not None:
                watch(standing)
            if not running:
                break
            for run in runs:
                if not run.query.isActive:
                    run.query.awaitTermination()  # raises what has ended it
    except (StreamingQueryException, Py4JError) as error:
        if stop():  # whoever ends us may have ended the JVM as well
            return _together([run.standing for run in runs])
        if faults:
            raise faults[0] from error
        raise
    finally:
        for run in runs:
            run.end()
    return _together([run.standing for run in runs])


class _Run:
    """One stream at work."""

    def __init__(self, job: Job, every: str | None, faults: list[Exception]) -> None:
        def keep_fault(batch: DataFrame, number: int) -> None:
            with self._at_work:
                if self._ending:
                    raise InterruptedError("the stream ends; the next run does this batch")
                try:
                    job.write(batch, number)
                except Exception as error:
                    faults.append(error)  # on its way through the JVM it becomes a stack trace in a text
                    raise

        self._at_work, self._ending = threading.Lock(), False
        self._spark = job.source.sparkSession
        self._spark.conf.set(_ALL_THERE_IS, "true")
        writer = job.source.writeStream.foreachBatch(keep_fault).option("checkpointLocation", job.output.checkpoint)
        self.query = (
            writer.trigger(availableNow=True) if every is None else writer.trigger(processingTime=every)
        ).start()
        self.standing = Standing()
        self._output = job.output
        self._seen: set[int] = set()
        self._records = 0

    def end(self) -> None:
        """End it, after the batch that it is at, if that does not take long.

        Spark interrupts a batch with a page of Java's text on standard error, and tells as much of one that begins
        between the two.
        """
        done = self._at_work.acquire(timeout=_BATCH_S)
        self._ending = True
        with suppress(Py4JError), _unlogged(self._spark):
            if done:
                self._at_work.release()
            self.query.stop()

    def look(self) -> Standing:
        """Where it stands now; the output is told, too."""
        for progress in self.query.recentProgress:
            told: Mapping[str, Any] = orjson.loads(progress.json)
            if told["batchId"] in self._seen:
                continue
            if told["numInputRows"]:
                self._seen.add(told["batchId"])
            self._records += sum(one["numInputRows"] for one in told["sources"] if _is_kafka(one))
            self.standing = _standing(told, self._records)
        if self.standing.batch >= 0:
            text = orjson.dumps(asdict(self.standing), option=orjson.OPT_INDENT_2).decode()
            self._output.put_text(LAG_FILE, text)
        return self.standing


@contextmanager
def _unlogged(spark: SparkSession) -> Iterator[None]:
    """Have Spark's log say nothing of streams meanwhile: what ends them is no fault."""
    jvm: Any = spark._jvm
    log4j = jvm.org.apache.logging.log4j
    set_level, before = log4j.core.config.Configurator.setLevel, log4j.LogManager.getLogger(_STREAMS).getLevel()
    set_level(_STREAMS, log4j.Level.OFF)
    try:
        yield
    finally:
        set_level(_STREAMS, before)


def _is_kafka(source: Mapping[str, Any]) -> bool:
    """Whether it is one of the topics, and no clock."""
    return "Kafka" in source["description"]


def _together(standings: Sequence[Standing]) -> Standing:
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
    """Set an event where a signal asks for the end; a second one ends the process at once.

    An exception from a signal's handler would break into the conversation with the JVM, wherever that is.
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


def _standing(told: Mapping[str, Any], records: int) -> Standing:
    behind: dict[str, int] = {}
    for source in told["sources"]:
        read, latest = _offsets(source.get("endOffset")), _offsets(source.get("latestOffset"))
        behind |= {place: max(0, offset - read.get(place, 0)) for place, offset in latest.items()}
    return Standing(told["batchId"], records, sum(behind.values()), behind, told["timestamp"])


def _offsets(told: object) -> dict[str, int]:
    """Offsets by `topic:partition`, from `{"topic": {"0": 17}}`."""
    if isinstance(told, str):
        told = orjson.loads(told)
    if not isinstance(told, dict):
        return {}
    return {f"{topic}:{number}": offset for topic, parts in told.items() for number, offset in parts.items()}
