"""The summary on the terminal: how many flights were served, and whether the ledger balances."""

from __future__ import annotations

from rich.columns import Columns
from rich.console import Console
from rich.table import Table

from lapse.demo.findings import Tally
from lapse.demo.outcome import Outcome
from lapse_spark.account import statement

_CARRIERS = 8


def show(outcome: Outcome, console: Console) -> None:
    """Print an outcome."""
    findings = outcome.findings
    console.print()
    airports = _tally(findings.origin, "airport", sorted(findings.origin.published))
    largest = [name for name, _ in findings.carrier.published.most_common(_CARRIERS)]
    console.print(Columns([airports, _tally(findings.carrier, "carrier", largest)], padding=(0, 4)))
    console.print()
    statement.show(findings.ledger, console)
    console.print()
    served = findings.ledger.fates.get("acknowledged", 0)
    rate = outcome.published / max(0.001, outcome.served_s)
    in_sight_at_end = "–" if outcome.in_sight_at_end is None else f"{outcome.in_sight_at_end:,}"
    killed = ", ".join(death.name for death in outcome.deaths) or "none"
    speed = f"{outcome.timetable.speed:,.0f} times faster than 2013"
    lines = [
        f"{outcome.published:,} flights in {outcome.served_s:.0f} s ({rate:,.0f}/s), {speed}",
        f"{served / max(1, outcome.published):.1%} of them were served before they left",
        f"{outcome.aircraft:,} updates of aircraft; at most {outcome.most_in_sight:,} of them in sight",
        f"{in_sight_at_end} aircraft in sight when all lifetimes were over",
        f"{len(outcome.deaths)} processes killed with SIGKILL and started again: {killed}",
    ]
    if findings.late_ms:
        median, high, most = findings.late_ms
        lines.append(f"expired after their deadline: median {median:,} ms, 99% within {high:,} ms, at most {most:,} ms")
    for line in lines:
        console.print(line, highlight=False)
    if findings.ledger.published != outcome.published:
        console.print(
            f"The topics have {findings.ledger.published:,} flights, the publisher says {outcome.published:,}",
            style="bold red",
            highlight=False,
        )
    console.print(f"report: {outcome.report}  ({outcome.total_s:.0f} s in all)", highlight=False, soft_wrap=True)


def _tally(tally: Tally, name: str, values: list[str]) -> Table:
    table = Table(name, title=f"By {name}", title_justify="left")
    for column in ("flights", "served", "dead letters", "share"):
        table.add_column(column, justify="right")
    for value in values:
        dead_letter_count, count = tally.dead_letter_count(value), tally.published[value]
        table.add_row(
            value,
            f"{count:,}",
            f"{tally.served_count(value):,}",
            f"{dead_letter_count:,}",
            f"{dead_letter_count / max(1, count):.1%}",
        )
    return table
