"""Charts as SVG text: bars, lines and heat maps that a page can embed.

Colours come from the page's style sheet (classes `s0` to `s7`), so that they follow its light or dark theme. Every
chart has a title and a description for screen readers, and every mark shows its value in a tooltip.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Final

_WIDTH, _HEIGHT = 760, 260
_LEFT, _RIGHT, _TOP, _BOTTOM = 64, 12, 12, 28
_COLOURS: Final = 8
_LETTER: Final = 7.7
"""Assumed width of a digit below an axis, in px. Most fonts have narrower ones."""

_ROW: Final = 36
"""Height of a horizontal bar with its name, in px."""

_LYING: Final = 32
"""The most bars that are drawn horizontally."""

Series = Mapping[str, Sequence[float]]


def bars(labels: Sequence[str], series: Series, *, title: str, unit: str = "") -> str:
    """Draw bars with names and values, stacked if there are several series.

    Few bars are horizontal, so that names have room on any screen. Many bars are vertical, with a list of names and
    values below them.

    Args:
        labels: a name for every bar.
        series: name to values, one for each label.
        title: title of the chart, also for screen readers.
        unit: unit of the values, shown in tooltips.
    """
    _check(labels, series)
    drawn = (
        _horizontal_bars(labels, series, title, unit)
        if len(labels) <= _LYING
        else _vertical_bars(labels, series, title, unit)
    )
    return drawn + _legend(list(series))


def _horizontal_bars(labels: Sequence[str], series: Series, title: str, unit: str) -> str:
    """Draw horizontal bars below their names. Widths are in percent, so that text keeps its size on narrow screens."""
    tops = [sum(value for value in values if value > 0) for values in zip(*series.values(), strict=True)]
    most = max(tops, default=0) or 1
    marks: list[str] = []
    for place, (label, top) in enumerate(zip(labels, tops, strict=True)):
        y, base = place * _ROW, 0.0
        marks.append(f'<text x="0" y="{y + 13}">{escape(label)}</text>')
        marks.append(f'<text class="value" x="100%" y="{y + 13}" text-anchor="end">{short(top)}</text>')
        for number, (name, values) in enumerate(series.items()):
            if (value := values[place]) > 0:
                marks.append(
                    f'<rect class="s{number % _COLOURS}" x="{100 * base / most:.2f}%" y="{y + 19}" height="10" '
                    f'width="{max(0.2, 100 * value / most):.2f}%">{_tooltip(name, label, value, unit)}</rect>'
                )
                base += value
    height = max(1, len(labels)) * _ROW
    title = escape(title)
    return (
        f'<svg class="lying" height="{height}" role="img" aria-label="{title}"><title>{title}</title>'
        f"{''.join(marks)}</svg>"
    )


def _vertical_bars(labels: Sequence[str], series: Series, title: str, unit: str) -> str:
    """Draw vertical bars, and a list of their names and values."""
    tops = [sum(values) for values in zip(*series.values(), strict=True)]
    scale = _Scale(max(tops, default=0))
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    width = max(1.0, step * 0.78)
    marks: list[str] = []
    for place, label in enumerate(labels):
        base = 0.0
        for number, (name, values) in enumerate(series.items()):
            value = values[place]
            if value <= 0:
                continue
            y, foot = scale.y(base + value), scale.y(base)
            base += value
            marks.append(
                f'<rect class="s{number % _COLOURS}" x="{_LEFT + place * step + (step - width) / 2:.1f}" y="{y:.1f}" '
                f'width="{width:.1f}" height="{max(0.5, foot - y):.1f}">{_tooltip(name, label, value, unit)}</rect>'
            )
    return _frame(title, scale, _ticks(labels, step), marks) + _values(labels, series)


def _values(labels: Sequence[str], series: Series) -> str:
    """Return a collapsed table of all names and values."""
    head = "".join(f'<th scope="col" class="number">{escape(name)}</th>' for name in series)
    rows = "".join(
        f'<tr><th scope="row">{escape(label)}</th>'
        + "".join(f'<td class="number">{short(values[place])}</td>' for values in series.values())
        + "</tr>"
        for place, label in enumerate(labels)
    )
    return (
        f'<details><summary>All {len(labels)} values</summary><div class="scroll"><table>'
        f"<thead><tr><td></td>{head}</tr></thead><tbody>{rows}</tbody></table></div></details>"
    )


def lines(labels: Sequence[str], series: Series, *, title: str, unit: str = "") -> str:
    """Draw a line for each series over an ordered axis. NaN leaves a gap.

    Args:
        labels: a label for every point of the horizontal axis.
        series: name to values, one for each label.
        title: title of the chart, also for screen readers.
        unit: unit of the values.
    """
    _check(labels, series)
    scale = _Scale(max((v for values in series.values() for v in values if not math.isnan(v)), default=0))
    step = (_WIDTH - _LEFT - _RIGHT) / max(1, len(labels))
    marks: list[str] = []
    for number, (name, values) in enumerate(series.items()):
        path, drawing = [], False
        for place, value in enumerate(values):
            if math.isnan(value):
                drawing = False
                continue
            path.append(f"{'L' if drawing else 'M'}{_LEFT + (place + 0.5) * step:.1f},{scale.y(value):.1f}")
            drawing = True
        marks.append(f'<path class="line s{number % _COLOURS}" d="{" ".join(path)}"/>')
        radius = 2.5 if len(labels) <= 60 else 1.5
        marks.extend(
            f'<circle class="dot s{number % _COLOURS}" cx="{_LEFT + (place + 0.5) * step:.1f}" '
            f'cy="{scale.y(value):.1f}" r="{radius}">{_tooltip(name, labels[place], value, unit)}</circle>'
            for place, value in enumerate(values)
            if not math.isnan(value)
        )
    return _frame(title, scale, _ticks(labels, step), marks) + _legend(list(series))


def heat(
    rows: Sequence[str], columns: Sequence[str], values: Sequence[Sequence[float]], *, title: str, unit: str = ""
) -> str:
    """Draw a heat map, in which greater values are darker.

    Args:
        rows: labels from top to bottom.
        columns: labels from left to right.
        values: a list of numbers for every row; NaN = empty.
        title: title of the chart, also for screen readers.
        unit: unit of the values.
    """
    if len(values) != len(rows) or any(len(row) != len(columns) for row in values):
        raise ValueError(f"heat map {title!r}: {len(rows)} × {len(columns)} labels do not fit the values")
    left = 14 + 7 * max((len(row) for row in rows), default=0)
    height = 22
    width = (_WIDTH - left - _RIGHT) / max(1, len(columns))
    most = max((v for row in values for v in row if not math.isnan(v)), default=0) or 1
    marks: list[str] = []
    for down, row in enumerate(rows):
        marks.append(f'<text x="{left - 8}" y="{down * height + 15}" text-anchor="end">{escape(row)}</text>')
        for across, column in enumerate(columns):
            value = values[down][across]
            if math.isnan(value):
                continue
            marks.append(
                f'<rect class="heat" x="{left + across * width:.1f}" y="{down * height + 1}" width="{width - 1:.1f}" '
                f'height="{height - 2}" fill-opacity="{0.06 + 0.94 * max(0.0, value) / most:.3f}">'
                f"{_tooltip(row, column, value, unit)}</rect>"
            )
    below = len(rows) * height + 16
    every = max(1, math.ceil((7 * max((len(column) for column in columns), default=1) + 10) / width))
    marks.extend(
        f'<text x="{left + (across + 0.5) * width:.1f}" y="{below}" text-anchor="middle">{escape(column)}</text>'
        for across, column in enumerate(columns)
        if across % every == 0
    )
    return _svg(title, below + 10, marks)


def short(value: float) -> str:
    """Format a number: `336,776`, `1.2 M`, `0.35`."""
    if math.isnan(value):
        return "–"
    for size, letter in ((1e9, "G"), (1e6, "M")):
        if abs(value) >= 10 * size or (letter == "M" and abs(value) >= size and value % 1000 == 0):
            return f"{value / size:.3g} {letter}"
    return f"{value:,.0f}" if value == int(value) else f"{value:,.3g}"


class _Scale:
    """Maps values to heights, with round numbers on the axis."""

    def __init__(self, most: float) -> None:
        size = 10 ** math.floor(math.log10(most)) if most > 0 else 1.0
        self.step: float = next((size * part for part in (0.2, 0.25, 0.5, 1, 2) if most <= 5 * size * part), size)
        self.top = self.step * max(1, math.ceil(most / self.step))

    def y(self, value: float) -> float:
        return _TOP + (_HEIGHT - _TOP - _BOTTOM) * (1 - value / self.top)

    def grid(self) -> list[str]:
        drawn: list[str] = []
        for number in range(round(self.top / self.step) + 1):
            value = number * self.step
            y = self.y(value)
            drawn.append(f'<line class="grid" x1="{_LEFT}" x2="{_WIDTH - _RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
            drawn.append(f'<text x="{_LEFT - 8}" y="{y + 4:.1f}" text-anchor="end">{short(value)}</text>')
        return drawn


def _ticks(labels: Sequence[str], step: float) -> list[str]:
    """Draw as many labels as fit below the axis. Labels at an edge stay within the chart."""
    width = max((len(label) for label in labels), default=1) * _LETTER
    every = max(1, math.ceil((width + 10) / step))
    drawn: list[str] = []
    for place in range(0, len(labels), every):
        half = len(labels[place]) * _LETTER / 2
        x = max(half, min(_LEFT + (place + 0.5) * step, _WIDTH - half))
        drawn.append(
            f'<text x="{x:.1f}" y="{_HEIGHT - _BOTTOM + 18}" text-anchor="middle">{escape(labels[place])}</text>'
        )
    return drawn


def _tooltip(name: str, label: str, value: float, unit: str) -> str:
    behind = f" {unit}" if unit else ""
    return f"<title>{escape(name)}, {escape(label)}: {value:,.10g}{escape(behind)}</title>"


def _legend(names: Sequence[str]) -> str:
    if len(names) < 2:
        return ""
    keys = "".join(f'<li><i class="s{number % _COLOURS}"></i>{escape(name)}</li>' for number, name in enumerate(names))
    return f'<ul class="legend">{keys}</ul>'


def _frame(title: str, scale: _Scale, ticks: Sequence[str], marks: Sequence[str]) -> str:
    return _svg(title, _HEIGHT, [*scale.grid(), *marks, *ticks])


def _svg(title: str, height: float, parts: Sequence[str]) -> str:
    return (
        f'<div class="scroll"><svg viewBox="0 0 {_WIDTH} {height}" role="img" aria-label="{escape(title)}">'
        f"<title>{escape(title)}</title>{''.join(parts)}</svg></div>"
    )


def _check(labels: Sequence[str], series: Series) -> None:
    for name, values in series.items():
        if len(values) != len(labels):
            raise ValueError(f"series {name!r}: {len(values)} values for {len(labels)} labels")
