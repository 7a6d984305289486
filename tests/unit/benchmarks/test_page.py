"""The page of figures says what a run measured, and nothing else."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest
from benchmarks.comparison.load import QUICK
from benchmarks.comparison.report import as_json
from benchmarks.comparison.row import Outcome
from benchmarks.comparison.rows import rows
from benchmarks.page import FIGURES, main, page

PAGE = Path(__file__).parents[3] / "docs" / "figures.md"


def report(rates: dict[str, float], skipped: dict[str, str] | None = None) -> dict[str, Any]:
    """What `--report` writes of the row `queue-fresh`, by each contestant's rate."""
    (row,) = (row for row in rows(QUICK) if row.name == "queue-fresh")
    outcome = Outcome(row, {name: [{"rate": rate}] for name, rate in rates.items()}, skipped or {}, {})
    settings = {**asdict(QUICK), "repeats": 1, "took_s": 120}
    document = as_json([outcome], settings, "two cores", {"Kafka": "9.9"})
    back: dict[str, Any] = json.loads(json.dumps(document))
    return back


def test_a_goal_that_is_missed_says_so_beside_its_figure() -> None:
    text = page(report({"lapse, inline": 90_000.0, "share group": 100_000.0, "lapse, by reference": 130_000.0}))
    assert "| lapse inline / share group | 0.9 × | ≥ 1.2 × | **missed** |" in text
    assert "| lapse by reference / share group | 1.3 × | ≥ 1.2 × | reached |" in text
    assert "| share group | 100,000 |" in text


def test_what_was_not_measured_is_named() -> None:
    text = page(report({"lapse, inline": 90_000.0}, {"share group": "this broker has none"}))
    assert "| lapse inline / share group | – | ≥ 1.2 × | not measured |" in text
    assert "share group was left out: this broker has none" in text


def test_machine_versions_and_load_stand_above_the_figures() -> None:
    text = page(report({"lapse, inline": 90_000.0}))
    assert "two cores" in text
    assert "Kafka 9.9" in text
    assert "60,000 messages through a queue, one run of each contestant" in text
    assert "all in 2 minutes" in text
    assert f"Row `queue-fresh`, {time.strftime('%Y-%m-%d', time.gmtime())}" in text


def test_the_page_of_the_documentation_is_that_of_the_committed_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert FIGURES.name == "figures.json"
    assert main([]) == 0
    assert capsys.readouterr().out == PAGE.read_text("utf-8")
