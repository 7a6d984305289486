"""`python -m benchmarks`: measures every row, one contestant after the other, on a broker of its own."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from benchmarks.comparison import contestant
from benchmarks.comparison.brokers import SharedBroker, broker_of_run
from benchmarks.comparison.load import QUICK, Load
from benchmarks.comparison.report import as_html, as_json, now
from benchmarks.comparison.row import Contestant, Outcome, Row
from benchmarks.comparison.rows import rows
from benchmarks.comparison.table import show

_DEEP = 10_000_000


def main() -> int:
    """Run the rows that the command line names. Return 1 if a contestant failed."""
    known = [row.name for row in rows(Load())]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")
    parser.add_argument("--messages", type=int, help="through a queue; other rows take their part of it")
    parser.add_argument("--repeats", type=int, default=1, help="how often each contestant runs, in alternation (1)")
    parser.add_argument("--only", nargs="+", choices=known, default=known, metavar="ROW", help=", ".join(known))
    parser.add_argument("--quick", action="store_true", help="small loads, once each: shows that everything runs")
    parser.add_argument(
        "--deep", action="store_true", help="recovery, and state on disk, with ten million queued messages"
    )
    parser.add_argument("--report", type=Path, metavar="PATH", help="write PATH.json and PATH.html")
    given = parser.parse_args()
    load = QUICK if given.quick else Load()
    if given.messages:
        load = replace(load, messages=given.messages)
    if given.deep:
        load = replace(load, recovered=_DEEP)
    repeats = given.repeats
    console = Console(stderr=given.json)
    chosen = [row for row in rows(load) if row.name in given.only]
    outcomes = []
    began = time.monotonic()
    with SharedBroker(load.warming) as shared:
        for row in chosen:
            outcomes.append(run(row, repeats, 0 if given.quick else row.rehearsals, shared, console))
            show(outcomes[-1], console)
    settings = {**asdict(load), "repeats": repeats, "took_s": round(time.monotonic() - began)}
    if given.json:
        print(json.dumps(as_json(outcomes, settings), indent=2))
    if given.report:
        path = given.report.with_suffix("")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.with_suffix(".json").write_text(json.dumps(as_json(outcomes, settings), indent=2) + "\n")
        path.with_suffix(".html").write_text(as_html(outcomes, settings))
    return int(any(outcome.failed for outcome in outcomes))


def run(row: Row, repeats: int, rehearsals: int, shared: SharedBroker, console: Console) -> Outcome:
    """Run the contestants of a row in turn, `repeats` times: A B A B. Figures of rehearsals do not count."""
    outcome, began = Outcome(row), time.monotonic()
    for turn in range(-rehearsals, min(repeats, row.most_repeats)):
        for one in row.contestants:
            if one.name not in outcome.skipped and one.name not in outcome.failed:
                which = f"run {turn + 1}" if turn >= 0 else f"rehearsal {turn + rehearsals + 1}"
                with console.status(f"{row.name}: {one.name}, {which}"):
                    _run(one, outcome, shared)
        if turn < 0:
            outcome.runs.clear()
    outcome.at, outcome.took_s = now(), round(time.monotonic() - began, 1)
    return outcome


def _run(one: Contestant, outcome: Outcome, shared: SharedBroker) -> None:
    """Run a contestant once, and store its figures or why there are none."""
    try:
        with broker_of_run(outcome.row, shared) as its:
            figures = contestant.compete(one.module, one.arguments, its, outcome.row.timeout_s)
    except contestant.Skipped as reason:
        outcome.skipped[one.name] = str(reason)
    except contestant.Failed as error:
        outcome.failed[one.name] = str(error)
    else:
        outcome.runs.setdefault(one.name, []).append(figures)


if __name__ == "__main__":
    sys.exit(main())
