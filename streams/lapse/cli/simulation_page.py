"""The page of `lapse simulate`: figures and plots in one HTML file (X10)."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Final

from lapse.simulation.advice import Advice
from lapse.simulation.outcome import SERVED
from lapse.simulation.scenario import Run
from lapse_spark.report import Cell, Report

_SERIES: Final = 8
"""Most lines of a plot that readers can distinguish."""

_POINTS: Final = 80


def write(
    path: Path,
    queue: str,
    runs: Sequence[Run],
    varied: Sequence[str],
    shown: Callable[[float | None], str],
    advice: Sequence[Advice] = (),
    goal: str = "",
) -> Path:
    """Write the page.

    Args:
        path: the HTML file.
        queue: the name of the queue.
        runs: the simulated runs, at least one.
        varied: the parameters that differ between the runs.
        shown: writes a duration in ms for people.
        advice: the value that each setting needs to reach the goal; empty = no goal was given.
        goal: the goal of the advice.
    """
    first = runs[0]
    span = shown(first.outcome.ended_at_ms - first.outcome.began_ms)
    page = Report(f"Simulation of {queue}", subtitle=f"{len(first.outcome):,} messages in {span} of virtual time")
    best = max(runs, key=lambda run: run.outcome.served_share)
    worst = min(runs, key=lambda run: run.outcome.served_share)
    page.figure("served at best", f"{best.outcome.served_share:.2%}", note=run_name(best, varied))
    if len(runs) > 1:
        page.figure("served at worst", f"{worst.outcome.served_share:.2%}", note=run_name(worst, varied))
    page.figure("combinations", len(runs))
    _compared(page, runs, varied, shown)
    if advice:
        _advised(page, advice, goal, shown)
    _add_course_charts(page, runs[:_SERIES], varied, shown)
    return page.write(path)


def run_name(run: Run, varied: Sequence[str]) -> str:
    """Name a run by the parameters that differ between the runs."""
    label: Mapping[str, str] = run.scenario.label
    return ", ".join(f"{name} = {label[name]}" for name in varied) or "as it is"


def _compared(page: Report, runs: Sequence[Run], varied: Sequence[str], shown: Callable[[float | None], str]) -> None:
    page.section("Compared", "All combinations see the same messages, and the same times of work for each message.")
    names = [run_name(run, varied) for run in runs]
    lost = list(dict.fromkeys(name for run in runs for name in run.outcome.counts if name not in SERVED))
    fates = {name: [run.outcome.counts.get(name, 0) for run in runs] for name in lost}
    page.bars(names, {"served": [run.outcome.served for run in runs], **fates}, title="Fates", unit="messages")
    waits = [run.outcome.waits for run in runs]
    seconds = {
        "median": [0.0 if one is None else one.median / 1000 for one in waits],
        "99%": [0.0 if one is None else one.p99 / 1000 for one in waits],
    }
    for name, values in seconds.items():
        page.bars(names, {name: values}, title=f"Wait for a consumer, {name}", unit="s")
    rows: list[tuple[Cell, ...]] = [
        (
            name,
            run.outcome.served,
            *(run.outcome.counts.get(fate, 0) for fate in lost),
            max(0, run.outcome.deliveries - run.outcome.handed_out),
            shown(None if one is None else one.median),
            shown(None if one is None else one.p99),
            run.outcome.deepest,
            f"{run.outcome.busy_share(run.scenario.crew.subscribers):.0%}",
        )
        for name, run, one in zip(names, runs, waits, strict=True)
    ]
    head = ("combination", "served", *lost, "redelivered", "wait median", "wait 99%", "deepest", "busy")
    page.table(head, rows, title="Figures")


def _advised(page: Report, advice: Sequence[Advice], goal: str, shown: Callable[[float | None], str]) -> None:
    page.section(
        "How much is enough", f"The smallest values for {goal}, each with all else as in the first combination."
    )
    rows: list[tuple[Cell, ...]] = []
    for one in advice:
        outcome = None if one.run is None else one.run.outcome
        waits = None if outcome is None else outcome.waits
        share = "" if outcome is None else f"{outcome.served_share:.2%}"
        rows.append((one.what, one.now, one.smallest or "none", share, shown(None if waits is None else waits.p99)))
    page.table(("what", "now", "smallest", "served", "wait 99%"), rows, title="Smallest values")
    for one in advice:
        values = [each.value for each in one.tried]
        page.lines(
            values, {"served": [100 * each.served_share for each in one.tried]}, title=f"{one.what}: served", unit="%"
        )
        waited = [(each.value, each.wait_p99_ms / 1000) for each in one.tried if each.wait_p99_ms is not None]
        if waited:
            labels, seconds = zip(*waited, strict=True)
            page.lines(labels, {"wait 99%": seconds}, title=f"{one.what}: wait, 99%", unit="s")


def _add_course_charts(
    page: Report, runs: Sequence[Run], varied: Sequence[str], shown: Callable[[float | None], str]
) -> None:
    page.section("Over time", "The depth of the queue, and what became of messages, in equal steps of virtual time.")
    began_ms = min(run.outcome.began_ms for run in runs)
    end_ms = max(run.outcome.ended_at_ms for run in runs)
    courses = [run.outcome.course(_POINTS, end_ms) for run in runs]
    labels = [shown(at_ms - began_ms) for at_ms in courses[0].at_ms]
    depths = {run_name(run, varied): list(one.depth) for run, one in zip(runs, courses, strict=True)}
    page.lines(labels, depths, title="Messages in the queue", unit="messages")
    for run, one in zip(runs, courses, strict=True):
        page.bars(labels, one.fates, title=f"What became of messages: {run_name(run, varied)}", unit="messages")
