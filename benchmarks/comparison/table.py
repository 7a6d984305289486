"""Prints outcomes as tables."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from benchmarks.comparison.row import Outcome


def show(outcome: Outcome, console: Console) -> None:
    """Print a row's figures and goals."""
    row = outcome.row
    table = Table(title=f"{row.name}: {row.title}", title_justify="left", title_style="bold")
    table.add_column("")
    for column in row.columns:
        table.add_column(column.title, justify="right")
    medians = outcome.medians()
    for contestant in row.contestants:
        figures = medians.get(contestant.name)
        if figures is not None:
            table.add_row(contestant.name, *(column.text(figures) for column in row.columns))
    console.print(table)
    for name, why in outcome.skipped.items():
        console.print(f"  {name}: skipped, {why}", highlight=False)
    for name, why in outcome.failed.items():
        console.print(f"  [red]{name}: failed[/red]")
        console.print(why.strip()[-1500:], style="dim", markup=False, highlight=False)
    for goal, value in outcome.goals():
        if value is None:
            console.print(f"  [dim]{goal.text}: not measured; goal {goal.limit_text}[/dim]", highlight=False)
            continue
        mark = "[green]reached[/green]" if goal.reached(value) else "[yellow]not reached[/yellow]"
        shown = f"[bold]{value:.3g} {goal.unit}[/bold]"
        console.print(f"  {goal.text}: {shown}; goal {goal.limit_text}: {mark}", highlight=False)
    console.print()
