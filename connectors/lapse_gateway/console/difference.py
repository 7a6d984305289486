"""The difference between two texts, for the preview of an edit (D5)."""

from __future__ import annotations

import difflib
import itertools
import re
from collections import Counter
from collections.abc import Sequence
from typing import Final

_LINES: Final = 400
_WIDTH: Final = 2_000
"""The most lines, and the most characters of a line, that are shown."""

_AROUND: Final = 3
"""The number of unchanged lines that are shown before and after a change."""

_MOST_ALIKE: Final = 200_000
"""The most pairs of equal lines that are compared, which takes some tenths of a second."""

_HUNK: Final = re.compile(r"@@ -([0-9]+)((?:,[0-9]+)?) \+([0-9]+)((?:,[0-9]+)?) @@")


def difference(before: str, after: str) -> list[str]:
    """Return the removed (`-`), added (`+`) and surrounding lines; long lines are cut to where they change.

    Line ends are not compared. If too many lines are alike, a comparison could take minutes. Then all lines between the
    first and the last change are shown as removed and added.
    """
    earlier, later = before.splitlines(), after.splitlines()
    head = _common(earlier, later)
    tail = min(_common(earlier[::-1], later[::-1]), min(len(earlier), len(later)) - head)
    first, last = max(0, head - _AROUND), max(0, tail - _AROUND)
    one, other = earlier[first : len(earlier) - last], later[first : len(later) - last]
    if _alike(one, other) <= _MOST_ALIKE:
        lines = list(difflib.unified_diff(one, other, n=_AROUND, lineterm=""))[2:]
    else:
        lines = [f"@@ -1,{len(one)} +1,{len(other)} @@", *(f"-{line}" for line in one), *(f"+{line}" for line in other)]
    shown = _cut([_moved(line, first) for line in lines[:_LINES]])
    return shown if len(lines) <= _LINES else [*shown, f" … and {len(lines) - _LINES:,} lines more"]


def _common(some: Sequence[str], others: Sequence[str]) -> int:
    """Return the number of lines, or characters, with which both begin."""
    pairs = enumerate(zip(some, others, strict=False))
    return next((at for at, (one, other) in pairs if one != other), min(len(some), len(others)))


def _alike(some: Sequence[str], others: Sequence[str]) -> int:
    """Return the number of pairs of equal lines, which a comparison has to consider."""
    counts = Counter(others)
    return sum(counts[line] for line in some)


def _moved(line: str, by: int) -> str:
    """Add a number of lines to the line numbers in the head of a hunk."""
    head = _HUNK.fullmatch(line)
    return line if head is None else f"@@ -{int(head[1]) + by}{head[2]} +{int(head[3]) + by}{head[4]} @@"


def _cut(lines: Sequence[str]) -> list[str]:
    """Cut long lines. A removed and an added line in the same place are cut to where they begin to differ."""
    runs = [(kind, list(run)) for kind, run in itertools.groupby(lines, lambda line: line[0])]
    found: list[str] = []
    for at, (kind, run) in enumerate(runs):
        other, beside = ("+", at + 1) if kind == "-" else ("-", at - 1)
        partners = runs[beside][1] if kind in "+-" and 0 <= beside < len(runs) and runs[beside][0] == other else []
        for place, line in enumerate(run):
            same = _common(line[1:], partners[place][1:]) if place < len(partners) else 0
            found.append(_window(line, 1 + same))
    return found


def _window(line: str, at: int) -> str:
    """Return the part of a long line around a place, with dots where it is cut; a short line unchanged."""
    if len(line) <= _WIDTH:
        return line
    first = max(1, min(at - _WIDTH // 4, len(line) - _WIDTH))
    return f"{line[0]}{'…' * (first > 1)}{line[first : first + _WIDTH]}{'…' * (first + _WIDTH < len(line))}"
