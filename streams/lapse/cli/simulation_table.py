"""Simulation table: the figures of simulated combinations, and the smallest values for a goal (X10)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import click
import orjson
from rich.table import Column, Table

from lapse.simulation.advice import Advice
from lapse.simulation.arrival import Arrivals
from lapse.simulation.goal import Goal
from lapse.simulation.outcome import SERVED
from lapse.simulation.scenario import Run, Scenario
from lapse.tables import print_table


def show(runs: Sequence[Run], arrivals: Arrivals) -> None:
    """Print a row for each combination. Print parameters that all of them share above the table."""
    varied = varied_parameters(runs)
    same = [f"{name} = {value}" for name, value in runs[0].scenario.label.items() if name not in varied]
    same.append(f"service = {runs[0].scenario.crew.service}")
    click.echo(
        f"{len(arrivals):,} messages in {duration_text(arrivals.last_ms - arrivals.first_ms)}; {', '.join(same)}"
    )
    fates = list(dict.fromkeys(name for one in runs for name in one.outcome.counts if name not in SERVED))
    figures = ("served", *fates, "redelivered", "wait median", "wait 99%", "stay 99%", "deepest", "busy")
    table = Table(
        *(Column(name, no_wrap=True) for name in varied), *(Column(name, justify="right") for name in figures)
    )
    for one in runs:
        outcome, label = one.outcome, one.scenario.label
        counts, waits, stays = outcome.counts, outcome.waits, outcome.stays
        table.add_row(
            *(label[name] for name in varied),
            f"{outcome.served:,} ({outcome.served_share:.2%})",
            *(f"{counts.get(name, 0):,}" for name in fates),
            f"{max(0, outcome.deliveries - outcome.handed_out):,}",
            duration_text(None if waits is None else waits.median),
            duration_text(None if waits is None else waits.p99),
            duration_text(None if stays is None else stays.p99),
            f"{outcome.deepest:,}",
            f"{outcome.busy_share(one.scenario.crew.subscribers):.0%}",
        )
    print_table(table)


def endless_text(one: Run) -> str:
    """Return a warning of a simulation that was stopped because it had no end."""
    return (
        f"{_scenario_name(one.scenario)}: stopped after {one.outcome.deliveries:,} deliveries: the same messages go "
        "round and round. Set max_deliveries, max_cancels or expiration, so that they leave."
    )


def _scenario_name(scenario: Scenario) -> str:
    return ", ".join(f"{name} = {value}" for name, value in scenario.label.items())


def show_advice(found: Sequence[Advice], goal: Sequence[Goal], as_json: bool) -> None:
    """Print the smallest values that meet a goal."""
    wanted = ", ".join(map(str, goal))
    if as_json:
        click.echo(orjson.dumps({"goal": wanted, "advice": [one.facts() for one in found]}))
        return
    click.echo(f"\nThe smallest values for {wanted}, each with all else as in the first row:")
    table = Table("what", "now", "smallest", "served", "wait 99%", "stay 99%")
    for one in found:
        outcome = None if one.run is None else one.run.outcome
        waits, stays = (None, None) if outcome is None else (outcome.waits, outcome.stays)
        table.add_row(
            one.what,
            one.now,
            one.smallest or "none",
            "" if outcome is None else f"{outcome.served_share:.2%}",
            duration_text(None if waits is None else waits.p99),
            duration_text(None if stays is None else stays.p99),
        )
    print_table(table)


def varied_parameters(runs: Sequence[Run]) -> list[str]:
    """Return the parameters that differ between the runs."""
    labels = [one.scenario.label for one in runs]
    return [name for name in labels[0] if len({label[name] for label in labels}) > 1]


_UNITS_MS: Final = (("d", 86_400_000), ("h", 3_600_000), ("min", 60_000), ("s", 1_000))


def duration_text(ms: float | None) -> str:
    """Write a duration in the largest unit that fits."""
    if ms is None:
        return ""
    for unit, length in _UNITS_MS:
        if ms >= length:
            return f"{ms / length:.3g} {unit}"
    return f"{ms:.0f} ms"
