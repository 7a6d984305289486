"""Tables of which nothing is cut or torn apart that a reader needs."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Final

from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.measure import Measurement
from rich.table import Column, Table
from rich.text import Text

from lapse_client.reading.printable import printable

_NO_LIMIT: Final = 10_000
"""Columns of a file or a pipe: each row is one line, so that `grep` and people find whole values."""


def print_table(table: Table) -> None:
    """Print a table: as wide as it is where no terminal is, else as `fitted` has it.

    Text is printed as it is: brackets in a payload are no markup, and `:100:` in a bookmark is no emoji. Give a `Text`
    where a cell has a style.
    """
    console = Console(emoji=False)
    if not console.is_terminal:
        console = Console(width=_NO_LIMIT, emoji=False)
        if console.encoding.startswith("utf") and (drawn := _drawn(table)) is not None:
            console.file.write(drawn)
            return
    console.print(fitted(table, console), markup=False)


def _drawn(table: Table) -> str | None:
    """A table as rich prints it to a file, if it is a plain one: of thousands of rows, each would cost a millisecond.

    Returns:
        None where it has a title, a cell of several lines, or characters that are not printed as they are.
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
    """Return a table so that no word of it is broken: bookmarks, instants and titles stay whole.

    A table that is too wide goes without the columns that say nothing. If that is not enough, cells have several lines,
    broken between words. If words are too long for that, each row becomes a block with one line per column.

    Args:
        table: any table.
        console: where it is printed.
        spared: what a cell is that says nothing.
    """
    _escape(table)
    if _width(console, table).maximum <= console.width or not table.show_header:
        for column in table.columns:
            column.overflow = "fold"
        return table
    narrow = _without(table, spared)
    if _width(console, narrow).minimum > console.width:
        return _blocks(narrow)
    _share(console, narrow)
    return narrow


def _escape(table: Table) -> None:
    """Write characters that a terminal would act on as escapes: cells may be words of somebody's producer."""
    for column in table.columns:
        for at, cell in enumerate(column._cells):
            text = str(cell)
            if isinstance(cell, str | Text) and (plain := printable(text)) != text:
                column._cells[at] = Text(plain, cell.style if isinstance(cell, Text) else "")


def _width(console: Console, shown: RenderableType) -> Measurement:
    return Measurement.get(console, console.options.update(width=_NO_LIMIT, markup=False), shown)


def _rows(table: Table) -> list[Sequence[RenderableType]]:
    return list(zip(*(column.cells for column in table.columns), strict=True))


def _without(table: Table, spared: Collection[str]) -> Table:
    """A table without the columns in which no row says anything."""
    said = [not table.rows or any(str(cell) not in spared for cell in column.cells) for column in table.columns]
    columns = [
        Column(column.header, justify=column.justify, overflow="fold")
        for column, there in zip(table.columns, said, strict=True)
        if there
    ]
    narrow = Table(
        *columns, title=table.title, caption=table.caption, title_justify=table.title_justify,
        caption_justify=table.caption_justify,
    )  # fmt: skip
    for row in _rows(table):
        narrow.add_row(*(cell for cell, there in zip(row, said, strict=True) if there))
    return narrow


def _share(console: Console, table: Table) -> None:
    """Give each column its longest word, and what is left to those that need it: little needs first."""
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
    """Each row as lines of title and value, with a blank line between two rows."""
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
