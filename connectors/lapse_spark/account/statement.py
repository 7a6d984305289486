"""The ledger as text and on a page: the equation, term by term, and the differences."""

from __future__ import annotations

from datetime import UTC, datetime

from rich.console import Console
from rich.table import Table

from lapse.tables import fitted
from lapse_spark.ledger import Ledger
from lapse_spark.report import Report


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
    if ledger.lost:
        table.add_row("− lost", f"{ledger.lost:,}", style="red")
    table.add_row("= still queued", f"{ledger.still_queued:,}", style="bold")
    if ledger.expected_depth is not None:
        table.add_row("expected", f"{ledger.expected_depth:,}")
    if ledger.listed is not None:
        table.add_row("the queue lists", f"{ledger.listed:,}")
    console.print(table)
    for name, number in _notes(ledger).items():
        console.print(f"{name}: {number:,}", highlight=False)
    if ledger.difference_counts:
        listed = Table(title=f"Differences: {_counted(ledger)}")
        for column in _COLUMNS:
            listed.add_column(column)
        for row in ledger.differences:
            listed.add_row(*(row[column] for column in _COLUMNS))
        console.print(fitted(listed, console), markup=False)
    console.print(_verdict(ledger), style="green" if ledger.balanced else "bold red", highlight=False)
    if ledger.not_listed:
        console.print(f"{_UNASKED} ({ledger.not_listed})", highlight=False, markup=False)
    if ledger.not_journaled:
        console.print(f"{_NO_JOURNAL} ({ledger.not_journaled})", highlight=False, markup=False)


def add_ledger(page: Report, ledger: Ledger) -> None:
    """Add a section with a ledger to a page."""
    promise = "Every published message has exactly one fate, or is still queued."
    page.section(f"Ledger of {ledger.queue}", f"{promise} {_UNASKED}." if ledger.not_listed else promise)
    page.figure("published", ledger.published)
    page.figure("still queued", ledger.still_queued)
    page.figure("ledger", _verdict(ledger), state="good" if ledger.balanced else "bad")
    terms = {
        **ledger.fates,
        "contradictory": ledger.contradictory,
        "lost": ledger.lost,
        "still queued": ledger.still_queued,
    }
    there = {name: number for name, number in terms.items() if number}
    title = f"What became of the messages of {ledger.queue}"
    page.bars(list(there), {"messages": list(there.values())}, title=title, unit="messages")
    rows = [
        (fate, reasons, number)
        for fate, by_reason in (("dead_lettered", ledger.dead_lettered), ("expired", ledger.expired))
        for reasons, number in by_reason.items()
    ]
    if rows:
        page.table(("fate", "reasons", "messages"), rows, title=f"Why messages left {ledger.queue}")
    if notes := _notes(ledger):
        page.table(("besides", "number"), list(notes.items()), title=f"Besides, of {ledger.queue}")
    if ledger.differences:
        listed = [tuple(row[name] for name in _COLUMNS) for row in ledger.differences]
        page.table(_COLUMNS, listed, title=f"Differences of {ledger.queue}: {_counted(ledger)}")


def instant(at_ms: int) -> str:
    """Format an instant, ms since the epoch, in RFC 3339, UTC."""
    return datetime.fromtimestamp(at_ms / 1000, UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


_UNASKED = "The queue itself was not asked: what is gone without an event counts as still queued"

_NO_JOURNAL = "The journal was not read: one fate that stands for another one that leaves as much is not found"


def _verdict(ledger: Ledger) -> str:
    if not ledger.balanced:
        return "NOT balanced"
    return "balanced, by the topics alone" if ledger.not_listed else "balanced"


_COLUMNS = ("bookmark", "difference", "fates", "reasons")


def _counted(ledger: Ledger) -> str:
    return ", ".join(f"{number:,} {kind}" for kind, number in ledger.difference_counts.items())


def _notes(ledger: Ledger) -> dict[str, int]:
    """Return the counts that are not in the equation, without zeros."""
    noted = {
        "fates of messages that the log has no more": ledger.before_log_start,
        "records redriven to another queue, left out": ledger.elsewhere,
        "reported otherwise by an epoch that was over": ledger.superseded,
        "records in quarantine": ledger.quarantined,
    }
    return {name: number for name, number in noted.items() if number}
