"""The director: prepares a run, carries it out, and checks the result."""

from __future__ import annotations

import logging
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from lapse.demo import flights
from lapse.demo.crew import Crew
from lapse.demo.error import DemoFailed
from lapse.demo.panel import Picture, Show
from lapse.demo.plan import Plan
from lapse.demo.stage import Stage
from lapse.demo.timetable import Timetable
from lapse.demo.watch import Watch
from lapse.embedded import EmbeddedError
from lapse_client import Connection, LapseError, Queue

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from lapse.demo.findings import Findings
    from lapse.demo.outcome import Outcome

_START_IN_MS: Final = 500
_STEP_S: Final = 0.05
_DRAIN_S: Final = 60.0
_FREE_BYTES_PER_FLIGHT: Final = 6_000
_FREE_BYTES: Final = 500_000_000


@dataclass(frozen=True, slots=True, kw_only=True)
class DemoOptions:
    """The options of a demo.

    Attributes:
        seconds: how long the flights take, s.
        flights: the number of flights.
        seed: the seed of everything random.
        workers: the number of worker processes.
        subscribers: the number of subscriber processes.
        keep: whether to keep everything for people to look at.
        report: path of the report.
    """

    seconds: float
    flights: int
    seed: int
    workers: int
    subscribers: int
    keep: bool
    report: Path


def run(options: DemoOptions, show: Show) -> Outcome:
    """Run the demo.

    Raises:
        DemoFailed: something is missing, or went wrong; the text says what.
    """
    began = time.monotonic()
    flights.find()
    stage = Stage(keep=options.keep)
    try:
        _check_disk_space(stage.directory, options.flights)
        with _log_to_file(stage.log("director")):
            return _play(options, show, stage, began)
    except Exception as error:
        stage.failed = True
        if isinstance(error, LapseError | EmbeddedError):
            raise DemoFailed(str(error)) from error
        raise
    finally:
        if left := stage.clear():
            show.note(left)


def _play(options: DemoOptions, show: Show, stage: Stage, began: float) -> Outcome:
    with ThreadPoolExecutor(1) as executor:
        kafka = stage.broker()
        with show.phase(f"Kafka at {stage.given}" if stage.given else "an embedded Kafka broker"):
            servers = kafka.__enter__()
        try:
            queue, sow = stage.names()
            plan = Plan(
                bootstrap_servers=servers,
                queue=queue,
                sow=sow,
                flights=options.flights,
                duration_ms=round(options.seconds * 1000),
                workers=options.workers,
                subscribers=options.subscribers,
                seed=options.seed,
            )
            with stage.topics(plan):
                return _perform(plan, options, show, stage, executor, began)
        finally:
            kafka.__exit__(None, None, None)


def _perform(
    plan: Plan, options: DemoOptions, show: Show, stage: Stage, executor: ThreadPoolExecutor, began: float
) -> Outcome:
    crew = Crew(plan, stage)
    try:
        with show.phase(f"{plan.workers} workers, {plan.subscribers} subscribers and a publisher"):
            crew.start()
        reported = crew.publisher.reported
        start_ms = round(time.time() * 1000) + _START_IN_MS
        timetable = plan.with_start(start_ms).timetable(reported["first_ms"], reported["last_ms"])
        crew.publisher.send_line(start_ms=start_ms)
        with Watch(plan) as watch:
            with show.phase(f"{reported['flights']:,} flights in {options.seconds:g} s"), show.running():
                while not reported.get("done"):
                    crew.kill_and_restart((time.time() * 1000 - start_ms) / 1000)
                    show.picture(_picture(plan, timetable, crew, watch))
                    time.sleep(_STEP_S)
            crew.end_accidents()
            spark = executor.submit(_spark, stage.log("spark"))
            with show.phase("the last flights leave, and everything that was leased comes back"), show.running():

                def update_picture() -> None:
                    crew.kill_and_restart(0.0)
                    show.picture(_picture(plan, timetable, crew, watch))

                watch.settle_down(reported["published"], _DRAIN_S, update_picture)
                served_s = time.time() - start_ms / 1000
                in_sight = watch.await_nothing_in_sight(plan.aircraft_ttl_ms / 1000 + 3.0)
        crew.stop(crew.subscribers)
        depth = _depth(plan)
        for crash in crew.crashes:
            show.note(f"[yellow]{crash}, by itself, and was started again[/yellow]")
        with show.phase("Spark reckons the ledger from the topics, and asks the queue"):
            findings = _compute_findings(spark, plan, depth)
    finally:
        crew.stop(crew.all_members)
    outcome = _write_outcome(plan, options, crew, findings, timetable, watch, in_sight, served_s, began)
    stage.evidence = stage.evidence or not outcome.balanced
    return outcome


def _write_outcome(
    plan: Plan,
    options: DemoOptions,
    crew: Crew,
    findings: Findings,
    timetable: Timetable,
    watch: Watch,
    in_sight_at_end: int | None,
    served_s: float,
    began: float,
) -> Outcome:
    from lapse.demo import page
    from lapse.demo.outcome import Outcome

    outcome = Outcome(
        plan=plan,
        timetable=timetable,
        published=crew.publisher.reported["published"],
        aircraft=crew.publisher.reported["aircraft"],
        most_in_sight=watch.most_in_sight,
        in_sight_at_end=in_sight_at_end,
        moments=watch.moments,
        deaths=crew.deaths,
        findings=findings,
        served_s=served_s,
        total_s=time.monotonic() - began,
        report=options.report.absolute(),
    )
    page.write(outcome, outcome.report)
    return outcome


def _picture(plan: Plan, timetable: Timetable, crew: Crew, watch: Watch) -> Picture:
    now_ms = time.time() * 1000
    return Picture(
        calendar=timetable.flight_time(now_ms),
        progress=timetable.progress(now_ms),
        published=crew.publisher.reported.get("published", 0),
        acknowledged=watch.acknowledged,
        letters=dict(watch.letters),
        depth=watch.depth.get("depth"),
        in_sight=watch.in_sight,
        alive=(sum(one.ready for one in crew.subscribers), plan.subscribers),
        workers=(sum(one.alive for one in crew.workers), plan.workers),
        kills=len(crew.deaths),
        last=f"{crew.deaths[-1].name}, with SIGKILL" if crew.deaths else "",
    )


def _depth(plan: Plan) -> int:
    """Return how many messages the queue itself reports."""
    connection = Connection.from_environment(plan.bootstrap_servers)
    with Queue(plan.queue, connection=connection, timeout_s=30.0) as queue:
        figures = queue.depth()
    return sum(figures.get(name, 0) for name in ("depth", "scheduled", "dying"))


def _spark(log: Path) -> SparkSession:
    """Start Spark. The standard error of its JVM goes to a log."""
    from lapse.demo.findings import spark_session

    kept = os.dup(2)
    with log.open("ab") as file:
        os.dup2(file.fileno(), 2)
        try:
            return spark_session()
        finally:
            os.dup2(kept, 2)
            os.close(kept)


def _compute_findings(spark: Future[SparkSession], plan: Plan, depth: int) -> Findings:
    from lapse.demo.findings import compute_findings

    session = spark.result()
    try:
        return compute_findings(session, plan, depth)
    finally:
        session.stop()


def _check_disk_space(directory: Path, count: int) -> None:
    wanted = _FREE_BYTES + count * _FREE_BYTES_PER_FLIGHT
    free = shutil.disk_usage(directory).free
    if free < wanted:
        raise DemoFailed(
            f"{directory.parent} has {free / 1e9:.1f} GB left; the demo needs {wanted / 1e9:.1f} GB there for a while. "
            "Make room, or point TMPDIR elsewhere"
        )


@contextmanager
def _log_to_file(path: Path) -> Iterator[None]:
    """Let libraries log to a file, so that they do not disturb the picture."""
    handler = logging.FileHandler(path)
    handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
    root = logging.getLogger()
    root.addHandler(handler)
    try:
        yield
    finally:
        root.removeHandler(handler)
        handler.close()
