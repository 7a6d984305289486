"""Writes the page of figures from the report of a run: `python -m benchmarks.page > docs/figures.md`.

The report is committed beside the scripts that measured it, so that every figure on the page can be traced to a
machine, to versions and to settings. Nothing on the page is written by hand.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.comparison.row import Goal, Outcome
from benchmarks.merge import CannotMerge, merged

FIGURES: Final = Path(__file__).with_name("figures.json")
"""The report of the run that the documentation shows."""

_HEAD: Final = """\
# How fast it is

<!-- figures: printed by `python -m benchmarks.page > docs/figures.md`; do not edit by hand -->

Each table below is a row of [the benchmark](benchmarks.md). That page says what a row means, and who the peers are.
Messages have 200 bytes of payload, a key and a lifetime of their own. Nothing else was at work. The broker had
compiled its code before, but for the row that says otherwise.

**Compare ratios, not rates.** Broker, worker and clients share the cores of one machine. Its speed varies by a half
within an hour. A ratio is between two contestants of the same run. Each goal stands beside its figure, and a missed
goal says so.
"""

_TAIL: Final = """\
## Measure it yourself

    make bench                                    # everything, on a quiet machine
    make bench ARGS="--only queue sow"            # two rows of it
    make bench-check                              # whether a message costs more than it did
"""


def page(report: dict[str, Any]) -> str:
    """Write the page.

    Args:
        report: a report that `--report` or `benchmarks.merge` has written.

    Raises:
        CannotMerge: The report does not fit the current rows.
    """
    outcomes, settings, _ = merged([report])
    parts = [_HEAD, _measured(report, settings), *(_row(outcome) for outcome in outcomes), _TAIL]
    return "\n".join(parts)


def _measured(report: dict[str, Any], settings: dict[str, Any]) -> str:
    """Describe when, on which machine, and with which versions and load the figures were measured."""
    runs = "one run" if settings["repeats"] == 1 else f"the medians of {settings['repeats']} runs"
    versions = report.get("versions", {})
    lines = [
        f"| measured | each row at the instant beside its name; all in {settings['took_s'] / 60:.0f} minutes |",
        "|---|---|",
        f"| machine | {report['machine']} |",
        f"| versions | {', '.join(f'{name} {version}' for name, version in versions.items())} |",
        f"| load | {settings['messages']:,} messages through a queue, {runs} of each contestant |",
        "",
    ]
    return "\n".join(lines)


def _row(outcome: Outcome) -> str:
    """Write a row's figures and goals."""
    at = f"{outcome.at[:16].replace('T', ' ')} UTC"
    return "\n".join([f"## {outcome.row.title}", "", f"Row `{outcome.row.name}`, {at}.", "", *_body(outcome), ""])


def _body(outcome: Outcome) -> Iterator[str]:
    medians = outcome.medians()
    shown = [column for column in outcome.row.columns if any(column.key in one for one in medians.values())]
    if medians:
        yield "| | " + " | ".join(column.title for column in shown) + " |"
        yield "|---|" + "---:|" * len(shown)
        for contestant in outcome.row.contestants:
            if (figures := medians.get(contestant.name)) is not None:
                yield f"| {_cell(contestant.name)} | " + " | ".join(column.text(figures) for column in shown) + " |"
    goals = outcome.goals()
    if goals:
        yield ""
        yield "| held against a goal | figure | goal | |"
        yield "|---|---:|---:|---|"
        yield from (_goal(goal, value) for goal, value in goals)
    for name, why in outcome.skipped.items():
        yield ""
        yield f"{name} was left out: {why}"
    for name in outcome.failed:
        yield ""
        yield f"{name} did not come to its end."


def _goal(goal: Goal, value: float | None) -> str:
    if value is None:
        return f"| {_cell(goal.text)} | – | {goal.limit_text.strip()} | not measured |"
    verdict = "reached" if goal.reached(value) else "**missed**"
    return f"| {_cell(goal.text)} | {value:.3g} {goal.unit} | {goal.limit_text} | {verdict} |".replace("  ", " ")


def _cell(text: str) -> str:
    """Escape a text for a cell of a table."""
    return text.replace("|", "\\|").replace("*", "\\*")


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the page. Return 1 if the report does not fit the rows."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.page", description=__doc__)
    parser.add_argument("report", type=Path, nargs="?", default=FIGURES, metavar="JSON", help="what --report wrote")
    given = parser.parse_args(arguments)
    try:
        print(page(json.loads(given.report.read_text("utf-8"))), end="")
    except CannotMerge as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
