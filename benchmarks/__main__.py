"""`python -m benchmarks`: every row, one contestant after the other, on a broker of its own."""

from __future__ import annotations

import argparse
import json
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path

from rich.console import Console

from benchmarks import contestant
from benchmarks.report import as_html, as_json
from benchmarks.row import Outcome, Row
from benchmarks.rows import QUICK, Load, rows
from benchmarks.table import show
from lapse.embedded import EmbeddedKafka

_DEEP = 10_000_000


def main() -> int:
    """Run what the command line asks for; 1 if a contestant failed."""
    known = [row.name for row in rows(Load())]
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON, and nothing else")
    parser.add_argument("--messages", type=int, help="through a queue; other rows take their part of it")
    parser.add_argument("--repeats", type=int, help="how often each contestant runs, in alternation (3; quick: 1)")
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
    repeats = given.repeats or (1 if given.quick else 3)
    console = Console(stderr=given.json)
    chosen = [row for row in rows(load) if row.name in given.only]
    outcomes = []
    began = time.monotonic()
    with EmbeddedKafka(heap_mb=1024, quick_start=False) as broker:
        for row in chosen:
            outcomes.append(run(row, repeats, environment_of(broker), console))
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


def environment_of(broker: EmbeddedKafka) -> dict[str, str]:
    """What a contestant has to know of its broker."""
    return {"KAFKA_BOOTSTRAP_SERVERS": broker.bootstrap_servers, contestant.BROKER_PID: str(broker.jvm.pid)}


def run(row: Row, repeats: int, environment: dict[str, str], console: Console) -> Outcome:
    """Let the contestants of a row run in turn, again and again: A B A B."""
    outcome = Outcome(row)
    for turn in range(min(repeats, row.most_repeats)):
        for one in row.contestants:
            if one.name in outcome.skipped or one.name in outcome.failed:
                continue
            with console.status(f"{row.name}: {one.name}, run {turn + 1}"):
                try:
                    figures = contestant.compete(one.module, one.arguments, environment, row.timeout_s)
                except contestant.Skipped as reason:
                    outcome.skipped[one.name] = str(reason)
                except contestant.Failed as error:
                    outcome.failed[one.name] = str(error)
                else:
                    outcome.runs.setdefault(one.name, []).append(figures)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
