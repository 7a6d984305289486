"""Tables of which nothing is cut that a reader needs."""

from __future__ import annotations

from typing import Final

from rich.console import Console
from rich.table import Table

_NO_LIMIT: Final = 10_000
"""Columns of a file or a pipe: each row is one line, so that `grep` and people find whole values."""


def print_table(table: Table) -> None:
    """Print a table: as wide as it is where no terminal is, with values in several lines where one is narrow.

    Text is printed as it is: brackets in a payload are no markup. Give a `Text` where a cell has a style.
    """
    for column in table.columns:
        column.overflow = "fold"
    console = Console()
    if not console.is_terminal:
        console = Console(width=_NO_LIMIT)
    console.print(table, markup=False)
