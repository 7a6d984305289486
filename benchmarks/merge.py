"""`python -m benchmarks.merge`: makes one page from the reports of several runs.

The row of a later report takes the place of an earlier one's.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import fields
from pathlib import Path
from typing import Any

from rich.console import Console

from benchmarks.comparison.load import Load
from benchmarks.comparison.report import as_html, as_json
from benchmarks.comparison.row import Outcome
from benchmarks.comparison.rows import rows
from benchmarks.comparison.table import show


class CannotMerge(Exception):
    """The reports cannot be merged; the text says why."""


def main() -> int:
    """Print and write the merged reports. Return 1 if they cannot be merged."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.merge", description=__doc__)
    parser.add_argument("reports", nargs="+", type=Path, metavar="JSON", help="what --report wrote")
    parser.add_argument("--report", type=Path, required=True, metavar="PATH", help="write PATH.json and PATH.html")
    given = parser.parse_args()
    console = Console()
    try:
        reports = [json.loads(path.read_text("utf-8")) for path in given.reports]
        outcomes, settings, machine = merged(reports)
    except CannotMerge as error:
        console.print(str(error), markup=False)
        return 1
    for outcome in outcomes:
        show(outcome, console)
    path = given.report.with_suffix("")
    path.parent.mkdir(parents=True, exist_ok=True)
    document = as_json(outcomes, settings, machine, reports[0].get("versions"))
    path.with_suffix(".json").write_text(json.dumps(document, indent=2) + "\n")
    path.with_suffix(".html").write_text(as_html(outcomes, settings, machine))
    return 0


def merged(reports: Sequence[dict[str, Any]]) -> tuple[list[Outcome], dict[str, Any], str]:
    """Return the outcomes of all reports in the order of the rows, their settings, and their machine.

    A row that is in several reports is that of the last one.

    Raises:
        CannotMerge: Machines, versions or settings differ.
    """
    first = reports[0]
    machine, settings = first["machine"], dict(first["settings"])
    settings["took_s"] = sum(report["settings"]["took_s"] for report in reports)
    found: dict[str, dict[str, Any]] = {}
    for report in reports:
        if report["machine"] != machine:
            raise CannotMerge(f"measured on different machines: {machine}; {report['machine']}")
        if report.get("versions") != first.get("versions"):
            raise CannotMerge(f"measured with different versions: {first.get('versions')}; {report.get('versions')}")
        differing = [name for name in settings if name != "took_s" and report["settings"].get(name) != settings[name]]
        if differing:
            raise CannotMerge(f"measured with different settings: {', '.join(differing)}")
        for row in report["rows"]:
            found[row["name"]] = {"at": report["at"], "took_s": 0.0, **row}
    load = Load(**{one.name: settings[one.name] for one in fields(Load)})
    outcomes = [
        Outcome(row, its["runs"], its["skipped"], its["failed"], its["at"], its["took_s"])
        for row in rows(load)
        if (its := found.get(row.name)) is not None
    ]
    if all(outcome.took_s for outcome in outcomes):
        settings["took_s"] = round(sum(outcome.took_s for outcome in outcomes))
    return outcomes, settings, machine


if __name__ == "__main__":
    sys.exit(main())
