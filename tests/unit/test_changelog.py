"""The changelog stays short enough that somebody who adopts a version reads it."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Final

LINES: Final = (Path(__file__).parents[2] / "CHANGELOG.md").read_text(encoding="utf-8").splitlines()
MOST_LINES: Final = 200
ADVICE: Final = (
    "CONTRIBUTING.md says what the changelog contains. If a merge has brought back lines that main has removed: "
    "`git checkout main -- CHANGELOG.md`, then add your line again"
)


def test_the_changelog_is_short() -> None:
    assert len(LINES) <= MOST_LINES, f"{len(LINES)} lines. {ADVICE}"


def test_no_entry_or_heading_stands_twice() -> None:
    counts = Counter(line for line in LINES if line.startswith(("- ", "#", "| 20")))
    assert [line for line, count in counts.items() if count > 1] == [], ADVICE
