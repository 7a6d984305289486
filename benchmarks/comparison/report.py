"""Writes outcomes as JSON, and as a self-contained HTML page."""

from __future__ import annotations

import math
import os
import platform
import time
from collections.abc import Sequence
from html import escape
from importlib.metadata import PackageNotFoundError, version
from typing import Any, Final

from benchmarks.comparison.row import Goal, Outcome
from lapse.embedded.jars import KAFKA

_PACKAGES: Final = ("lapse", "faust-streaming", "aiokafka", "confluent-kafka", "numpy", "pyspark")
_WIDTH: Final = 260
_DECADES: Final = 1.5

_STYLE: Final = """
:root { color-scheme: light dark; --good: #2e7d32; --bad: #b26a00; --line: #8886; --soft: #8882 }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 62rem; margin: 2rem auto; padding: 0 1rem }
h1 { font-size: 1.5rem } h2 { font-size: 1.1rem; margin-top: 2.2rem }
table { border-collapse: collapse; width: 100% } th, td { padding: .25rem .7rem; border-bottom: 1px solid var(--line) }
th { text-align: right; font-weight: 600; font-size: .85rem } th:first-child, td:first-child { text-align: left }
td { text-align: right; font-variant-numeric: tabular-nums } p.note { opacity: .7 }
.goal { display: grid; grid-template-columns: 1fr 18rem 16rem; gap: 1rem; align-items: center; margin: .35rem 0 }
.good { color: var(--good) } .bad { color: var(--bad) } svg { display: block }
"""


def as_json(
    outcomes: Sequence[Outcome],
    settings: dict[str, Any],
    measured_on: str = "",
    with_versions: dict[str, str] | None = None,
) -> dict[str, Any]:
    """Return everything that was measured, for JSON.

    Args:
        outcomes: the outcomes of the rows.
        settings: the settings of the run.
        measured_on: the machine; empty = this one.
        with_versions: the versions of the measured packages; None = those installed here.
    """
    return {
        "at": now(),
        "machine": measured_on or machine(),
        "versions": versions() if with_versions is None else with_versions,
        "settings": settings,
        "rows": [
            {
                "name": outcome.row.name,
                "title": outcome.row.title,
                "at": outcome.at or now(),
                "took_s": outcome.took_s,
                "runs": outcome.runs,
                "medians": outcome.medians(),
                "skipped": outcome.skipped,
                "failed": outcome.failed,
                "goals": [
                    {
                        "text": goal.text,
                        "value": value,
                        "limit": goal.limit,
                        "at_least": goal.at_least,
                        "unit": goal.unit,
                        "reached": None if value is None else goal.reached(value),
                    }
                    for goal, value in outcome.goals()
                ],
            }
            for outcome in outcomes
        ],
    }


def now() -> str:
    """Return the instant, UTC, as in RFC 3339."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())


def machine() -> str:
    """Describe this machine."""
    return f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"


def versions() -> dict[str, str]:
    """Return the versions of Kafka, and of the packages that affect the figures most."""
    found = {"Kafka": KAFKA.removeprefix("kafka-")}
    for name in _PACKAGES:
        try:
            found[name] = version(name)
        except PackageNotFoundError:
            continue
    return found


def as_html(outcomes: Sequence[Outcome], settings: dict[str, Any], measured_on: str = "") -> str:
    """Write a page with tables, and for each goal a bar of the figure's logarithmic distance from it."""
    shown = ", ".join(f"{name} {value}" for name, value in settings.items())
    intro = (
        f"{measured_on or machine()}; {shown}. Ratios are between contestants of the same run, "
        "on the same broker or each on one just started, as the row says. "
        "In the bars, the line is the goal, and right of it is better."
    )
    parts = [
        '<!doctype html><html lang="en"><meta charset="utf-8"><title>lapse benchmarks</title>',
        f"<style>{_STYLE}</style><h1>lapse benchmarks</h1>",
        f"<p>{escape(intro)}</p>",
    ]
    for outcome in outcomes:
        parts.append(f"<h2>{escape(outcome.row.title)}</h2>")
        parts += [_goal(goal, value) for goal, value in outcome.goals()]
        parts.append(_table(outcome))
        for name, why in outcome.skipped.items():
            parts.append(f'<p class="note">{escape(name)}: skipped, {escape(why)}</p>')
        for name, why in outcome.failed.items():
            parts.append(f'<p class="bad">{escape(name)}: failed. {escape(why.strip().splitlines()[-1])}</p>')
    return "\n".join([*parts, "</html>\n"])


def _table(outcome: Outcome) -> str:
    heads = "".join(f"<th>{escape(column.title)}</th>" for column in outcome.row.columns)
    lines = [f"<table><tr><th></th>{heads}</tr>"]
    medians = outcome.medians()
    for contestant in outcome.row.contestants:
        if (figures := medians.get(contestant.name)) is not None:
            cells = "".join(f"<td>{column.text(figures)}</td>" for column in outcome.row.columns)
            lines.append(f"<tr><td>{escape(contestant.name)}</td>{cells}</tr>")
    return "\n".join([*lines, "</table>"])


def _goal(goal: Goal, value: float | None) -> str:
    name, limit = escape(goal.text), escape(goal.limit_text)
    if value is None:
        return f'<div class="goal"><span>{name}</span><span></span><span>not measured; goal {limit}</span></div>'
    kind, word = ("good", "reached") if goal.reached(value) else ("bad", "not reached")
    return (
        f'<div class="goal"><span>{name}</span>{_bar(goal, value, kind)}'
        f'<span><b class="{kind}">{value:.3g} {goal.unit}</b>; goal {limit}, {word}</span></div>'
    )


def _bar(goal: Goal, value: float, kind: str) -> str:
    better = value / goal.limit if goal.at_least else goal.limit / max(value, 1e-9)
    share = 0.5 + max(-_DECADES, min(_DECADES, math.log10(max(better, 1e-9)))) / (2 * _DECADES)
    length, middle = max(2.0, share * _WIDTH), _WIDTH / 2
    return (
        f'<svg width="{_WIDTH}" height="14" role="img" aria-label="{better:.2g} times the goal">'
        f'<rect width="{_WIDTH}" height="14" fill="var(--soft)"/>'
        f'<rect width="{length:.0f}" height="14" fill="var(--{kind})"/>'
        f'<line x1="{middle}" x2="{middle}" y1="0" y2="14" stroke="currentColor" stroke-width="2"/></svg>'
    )
