"""Prints tables without cutting values or breaking words in them."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from copy import copy
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from lapse_client.reading.printable import printable

_NO_LIMIT: Final = 10_000
"""Width of a file or a pipe, characters: each row is one line, so that `grep` finds whole values."""


def console() -> Console:
    """Return the console of standard output. Lines that go to a file or a pipe are not broken."""
    found = Console(emoji=False)
    return found if found.is_terminal else Console(width=_NO_LIMIT, emoji=False)


def print_table(table: Table) -> None:
    """Print a table: to a terminal as `fitted` lays it out, or `none` if it has no rows; else at its full width.

    Text is printed literally: brackets in a payload are no markup, and `:100:` in a bookmark is no emoji. For a style,
    pass a `Text` as the cell.
    """
    shown = console()
    if not shown.is_terminal and shown.encoding.startswith("utf") and (drawn := _drawn(table)) is not None:
        shown.file.write(drawn)
        return
    here = shown.is_terminal and not table.rows
    shown.print(_blocks(table) if here else fitted(table, shown), markup=False)


def _drawn(table: Table) -> str | None:
    """Draw a plain table as rich prints it to a file. Rich takes about a millisecond for each of thousands of rows.

    Returns:
        None if the table has a title, a cell of several lines, or unprintable characters.
    """
    if table.title or table.caption or not table.show_header or not table.columns:
        return None
    columns = [[str(cell) for cell in (one.header, *one.cells)] for one in table.columns]
    if not all(cell.isprintable() for column in columns for cell in column):
        return None
    widths = [max(map(cell_len, column)) for column in columns]
    if sum(widths) + 3 * len(widths) + 1 > _NO_LIMIT:
        return None
    padded = [
        [
            " " * (width - cell_len(cell)) + cell if one.justify == "right" else cell + " " * (width - cell_len(cell))
            for cell in column
        ]
        for one, column, width in zip(table.columns, columns, widths, strict=True)
    ]
    head, *rows = zip(*padded, strict=True)
    heavy, light = ["━" * (width + 2) for width in widths], ["─" * (width + 2) for width in widths]
    lines = [f"┏{'┳'.join(heavy)}┓", f"┃ {' ┃ '.join(head)} ┃", f"┡{'╇'.join(heavy)}┩"]
    lines += [f"│ {' │ '.join(row)} │" for row in rows]
    return "\n".join([*lines, f"└{'┴'.join(light)}┘", ""])


def fitted(table: Table, console: Console, spared: Collection[str] = ("",)) -> RenderableType:
    """Lay out a table so that no word is broken: bookmarks, instants and titles stay whole.

    A table that is too wide loses its empty columns. If that is not enough, cells get several lines, broken between
    words. If words are too long for that, each row becomes a block with one line per column.

    Args:
        table: any table.
        console: the console to print to.
        spared: the texts of cells that count as empty.
    """
    table = _escaped(table)
    if _width(console, table).maximum <= console.width or not table.show_header:
        for column in table.columns:
            column.overflow = "fold"
        return table
    narrow = _without_empty_columns(table, spared)
    if _width(console, narrow).minimum > console.width:
        return _blocks(narrow)
    _share(console, narrow)
    return narrow


def _escaped(table: Table) -> Table:
    """Return a table without control characters: cells may contain text of any producer, which a terminal acts on."""
    plain = copy(table)
    plain.columns, plain.rows = [column.copy() for column in table.columns], []
    for cells, row in zip(_rows(table), table.rows, strict=True):
        plain.add_row(*map(_without_controls, cells), style=row.style, end_section=row.end_section)
    return plain


def _without_controls(cell: RenderableType) -> RenderableType:
    if not isinstance(cell, str | Text) or (plain := printable(str(cell))) == str(cell):
        return cell
    return Text(plain, cell.style if isinstance(cell, Text) else "")


def _width(console: Console, shown: RenderableType) -> Measurement:
    return Measurement.get(console, console.options.update(width=_NO_LIMIT, markup=False), shown)


def _rows(table: Table) -> list[Sequence[RenderableType]]:
    return list(zip(*(column.cells for column in table.columns), strict=True))


def _without_empty_columns(table: Table, spared: Collection[str]) -> Table:
    """Return a copy of a table without the columns in which every cell counts as empty."""
    filled = [not table.rows or any(str(cell) not in spared for cell in column.cells) for column in table.columns]
    columns = [
        Column(column.header, justify=column.justify, overflow="fold")
        for column, there in zip(table.columns, filled, strict=True)
        if there
    ]
    narrow = Table(
        *columns, title=table.title, caption=table.caption, title_justify=table.title_justify,
        caption_justify=table.caption_justify,
    )  # fmt: skip
    for row in _rows(table):
        narrow.add_row(*(cell for cell, there in zip(row, filled, strict=True) if there))
    return narrow


def _share(console: Console, table: Table) -> None:
    """Make each column as wide as its longest word. Share the remaining width, smallest needs first."""
    cells = [[column.header, *column.cells] for column in table.columns]
    least = [max(_width(console, cell).minimum for cell in column) for column in cells]
    needs = [max(_width(console, cell).maximum for cell in column) for column in cells]
    left = console.width - _width(console, table).minimum
    by_need = sorted(range(len(cells)), key=lambda at: needs[at] - least[at])
    for waiting, at in zip(range(len(cells), 0, -1), by_need, strict=True):
        more = min(needs[at] - least[at], left // waiting)
        table.columns[at].width = least[at] + more
        left -= more


def _blocks(table: Table) -> RenderableType:
    """Lay out each row as lines of title and value, with a blank line between rows."""
    titles = [column.header for column in table.columns]
    lines = Table.grid(Column(no_wrap=True), Column(overflow="fold"), padding=(0, 2, 0, 0))
    for at, row in enumerate(_rows(table)):
        if at:
            lines.add_row()
        for title, cell in zip(titles, row, strict=True):
            if str(cell):
                lines.add_row(title, cell)
    above = [] if table.title is None else [Text(str(table.title), "italic")]
    below = [] if table.caption is None else [table.caption]
    return Group(*above, lines if table.rows else Text("none"), *below)
