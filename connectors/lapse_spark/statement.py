"""The ledger as text: the equation, term by term, and what does not add up."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from lapse_spark.ledger import Ledger


def show(ledger: Ledger, console: Console) -> None:
    """Print a ledger on a terminal."""
    table = Table(title=f"Ledger of {ledger.queue}", title_justify="left", show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("published", f"{ledger.published:,}", style="bold")
    for fate, number in ledger.fates.items():
        table.add_row(f"− {fate}", f"{number:,}")
        reasons = {"dead_lettered": ledger.dead_lettered, "expired": ledger.expired}.get(fate, {})
        for reason, part in reasons.items():
            table.add_row(f"    {reason}", f"({part:,})", style="dim")
    if ledger.contradictory:
        table.add_row("− contradictory", f"{ledger.contradictory:,}", style="red")
    table.add_row("= still queued", f"{ledger.still_queued:,}", style="bold")
    if ledger.expected_depth is not None:
        table.add_row("the queue says", f"{ledger.expected_depth:,}")
    console.print(table)
    for name, number in (
        ("fates of messages that the log has no more", ledger.before_log_start),
        ("records redriven to another queue, left out", ledger.elsewhere),
        ("told otherwise by a reign that was over", ledger.superseded),
        ("records in quarantine", ledger.quarantined),
    ):
        if number:
            console.print(f"{name}: {number:,}", highlight=False)
    if ledger.difference_counts:
        listed = Table(title="Differences: " + ", ".join(f"{n:,} {k}" for k, n in ledger.difference_counts.items()))
        for column in ("bookmark", "difference", "fates", "reasons"):
            listed.add_column(column)
        for row in ledger.differences:
            listed.add_row(row["bookmark"], row["difference"], row["fates"], row["reasons"])
        console.print(listed)
    verdict = "balanced" if ledger.balanced else "NOT balanced"
    console.print(verdict, style="green" if ledger.balanced else "bold red")
