"""Reports: an HTML file that needs no server or network, with the same content for a terminal, and as JSON.

::

    page = Report("A year of flights", subtitle="336,776 messages through one queue")
    page.figure("published", 336_776)
    page.section("Dead letters", "Counted by Spark from the topics alone.")
    page.bars(hours, {"time_limit": [...], "max_deliveries": [...]}, title="Dead letters by hour")
    page.table(["carrier", "letters"], rows, title="By carrier")
    page.write(Path("report.html"))
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from datetime import UTC, date, datetime
from html import escape
from importlib.resources import files
from pathlib import Path
from typing import Any, Literal

from pyspark.sql import DataFrame
from rich.console import Console
from rich.table import Table

from lapse.tables import fitted
from lapse_client.reading.printable import printable
from lapse_spark import chart
from lapse_spark.collected import in_utc

Cell = str | int | float | bool | date | Sequence[str] | None
State = Literal["plain", "good", "bad"]


@dataclass(frozen=True, slots=True)
class _Part:
    """A part of a page: its HTML, and its data for JSON and the terminal."""

    kind: str
    title: str
    html: str
    data: dict[str, Any] = field(default_factory=dict)


class Report:
    """A page that is filled from top to bottom.

    Attributes:
        title: title of the page.
        subtitle: a sentence below the title.
    """

    def __init__(self, title: str, *, subtitle: str = "", made_at: datetime | None = None) -> None:
        self.title = title
        self.subtitle = subtitle
        self._made_at = made_at or datetime.now(UTC)
        self._parts: list[_Part] = []

    def figure(self, name: str, value: Cell, *, note: str = "", state: State = "plain") -> None:
        """Add a large number. Consecutive figures form a row. `good` and `bad` add a mark and a colour."""
        sign = {"good": "✓ ", "bad": "✗ ", "plain": ""}[state]
        small = f"<small>{escape(note)}</small>" if note else ""
        text = escape(_cell_text(value))
        html = f'<div class="figure {state}"><b>{sign}{text}</b><span>{escape(name)}</span>{small}</div>'
        self._parts.append(_Part("figure", name, html, {"value": value, "note": note, "state": state}))

    def section(self, title: str, text: str = "") -> None:
        """Begin a section. An empty line in the text begins a paragraph."""
        paragraphs = "".join(f"<p>{escape(part.strip())}</p>" for part in text.split("\n\n") if part.strip())
        self._parts.append(
            _Part("section", title, f'<h2 id="{_anchor(title)}">{escape(title)}</h2>{paragraphs}', {"text": text})
        )

    def table(self, columns: Sequence[str], rows: Sequence[Sequence[Cell]], *, title: str) -> None:
        """Add a table. Numbers are aligned to the right. Names of columns are shown as words (`words`)."""
        sides = [
            _side(next((row[place] for row in rows if row[place] is not None), "")) for place in range(len(columns))
        ]
        head = "".join(
            f'<th scope="col"{side}>{escape(words(name))}</th>' for name, side in zip(columns, sides, strict=True)
        )
        names = [escape(words(name)) for name in columns]
        body = "".join(
            "<tr>"
            + "".join(
                f'<td{_side(cell)} data-name="{name}">{escape(_cell_text(cell))}</td>'
                for name, cell in zip(names, row, strict=True)
            )
            + "</tr>"
            for row in rows
        )
        body = body or f'<tr><td class="none" colspan="{len(columns)}">{_NOTHING}</td></tr>'
        html = (
            f'<div class="scroll"><table><caption>{escape(title)}</caption><thead><tr>{head}</tr></thead>'
            f"<tbody>{body}</tbody></table></div>"
        )
        data = {"columns": list(columns), "rows": [list(row) for row in rows]}
        self._parts.append(_Part("table", title, html, data))

    def frame(self, rows: DataFrame, *, title: str, limit: int = 50) -> None:
        """Add the first rows of a DataFrame as a table."""
        self.table(rows.columns, [tuple(row) for row in rows.limit(limit).collect()], title=title)

    def bars(self, labels: Sequence[str], series: chart.Series, *, title: str, unit: str = "") -> None:
        """Add a bar chart, stacked if there are several series (name to values)."""
        self._chart("bars", title, chart.bars(labels, series, title=title, unit=unit), labels, series)

    def lines(self, labels: Sequence[str], series: chart.Series, *, title: str, unit: str = "") -> None:
        """Add a chart with a line for each series (name to values)."""
        self._chart("lines", title, chart.lines(labels, series, title=title, unit=unit), labels, series)

    def heat(
        self,
        rows: Sequence[str],
        columns: Sequence[str],
        values: Sequence[Sequence[float]],
        *,
        title: str,
        unit: str = "",
    ) -> None:
        """Add a heat map, with a list of values for each row."""
        svg = chart.heat(rows, columns, values, title=title, unit=unit)
        self._chart("heat", title, svg, columns, dict(zip(rows, values, strict=True)))

    def html(self) -> str:
        """Return the whole page as HTML."""
        body: list[str] = []
        row = False
        for part in self._parts:
            if (part.kind == "figure") is not row:
                row = not row
                body.append('<div class="figures">' if row else "</div>")
            body.append(part.html)
        body.append("</div>" if row else "")
        sections = [part.title for part in self._parts if part.kind == "section"]
        links = "".join(f'<a href="#{_anchor(name)}">{escape(name)}</a>' for name in sections)
        at = self._made_at.strftime("%Y-%m-%d %H:%M UTC")
        subtitle = f"<p>{escape(self.subtitle)}</p>" if self.subtitle else ""
        style = "".join(
            files(package).joinpath(name).read_text("utf-8")
            for package, name in (("lapse", "design.css"), ("lapse_spark", "report.css"))
        )
        return (
            '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
            '<meta name="viewport" content="width=device-width, initial-scale=1">'
            f"<title>{escape(self.title)}</title><style>{style}</style></head><body><header><h1>{escape(self.title)}</h1>"
            f"{subtitle}</header>{f'<nav>{links}</nav>' if len(sections) > 1 else ''}<main>{''.join(body)}</main>"
            f'<footer>lapse, <time datetime="{self._made_at.isoformat()}">{at}</time></footer></body></html>\n'
        )

    def write(self, path: Path) -> Path:
        """Write the page atomically, so that a reader never sees half of it."""
        part = path.with_name(f"{path.name}.part")
        part.parent.mkdir(parents=True, exist_ok=True)
        part.write_text(self.html(), "utf-8")
        return part.replace(path)

    def as_json(self) -> dict[str, Any]:
        """Return all data of the page for JSON."""
        parts = [{"kind": part.kind, "title": part.title, **part.data} for part in self._parts]
        return {"title": self.title, "subtitle": self.subtitle, "made_at": self._made_at.isoformat(), "parts": parts}

    def show(self, console: Console) -> None:
        """Print figures and tables on a terminal."""
        console.print(self.title, style="bold")
        for part in self._parts:
            if part.kind == "figure":
                console.print(f"{_cell_text(part.data['value']):>14}  {part.title}", highlight=False, markup=False)
            elif part.kind == "section":
                console.print(f"\n{part.title}", style="bold", markup=False)
            elif part.kind == "table":
                drawn = Table(title=part.title, title_justify="left")
                for name in part.data["columns"]:
                    drawn.add_column(words(name))
                for row in part.data["rows"]:
                    drawn.add_row(*(printable(_cell_text(cell)) for cell in row))
                console.print(
                    fitted(drawn, console, ("", _EMPTY)) if part.data["rows"] else f"{part.title}: {_NOTHING}",
                    markup=False,
                )

    def _chart(self, kind: str, title: str, svg: str, labels: Sequence[str], series: chart.Series) -> None:
        html = f"<figure><figcaption>{escape(title)}</figcaption>{svg}</figure>"
        data = {"labels": list(labels), "series": {name: list(values) for name, values in series.items()}}
        self._parts.append(_Part(kind, title, html, data))


def words(column: str) -> str:
    """Return the readable name of a column: `median_ms` becomes "median, ms"."""
    if column in _WORDS:
        return _WORDS[column]
    name = column.replace("_", " ")
    return f"{name[:-3]}, ms" if name.endswith(" ms") else name


_EMPTY = "–"
_NOTHING = "none"

_WORDS = {
    "window_start": "from (UTC)",
    "window_end": "to (UTC)",
    "per_minute": "letters per minute",
    "score": "standard deviations above",
    "first_died_at": "first death (UTC)",
    "last_died_at": "last death (UTC)",
    "last_message": "last fault",
    "redriven": "times redriven",
    "deadline_passed": "deadline has passed",
    "refused": "refused because of",
    "at_ms": "at, ms since 1970",
    "p90_ms": "90 % at most, ms",
    "p99_ms": "99 % at most, ms",
    "p999_ms": "99.9 % at most, ms",
    "most_ms": "longest, ms",
    "count": "records",
}


def _cell_text(cell: Cell) -> str:
    if cell is None:
        return _EMPTY
    if isinstance(cell, bool):
        return "yes" if cell else "no"
    if isinstance(cell, int):
        return f"{cell:,}"
    if isinstance(cell, float):
        return chart.short(cell)
    if isinstance(cell, datetime):
        return in_utc(cell).strftime("%Y-%m-%d %H:%M:%S")
    return ", ".join(cell) if isinstance(cell, list | tuple) else str(cell)


def _side(cell: Cell) -> str:
    return ' class="number"' if isinstance(cell, int | float) and not isinstance(cell, bool) else ""


def _anchor(title: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-") or "section"
