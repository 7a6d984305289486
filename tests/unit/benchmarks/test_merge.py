"""Reports of some rows each become one page, where they belong together."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import pytest
from benchmarks.comparison.load import QUICK
from benchmarks.comparison.report import as_html, as_json
from benchmarks.comparison.row import Outcome
from benchmarks.comparison.rows import rows
from benchmarks.merge import CannotMerge, merged

SETTINGS = {**asdict(QUICK), "repeats": 1, "took_s": 20}


def report(name: str, rate: float, **settings: Any) -> dict[str, Any]:
    """What `--report` writes of one row."""
    (row,) = (row for row in rows(QUICK) if row.name == name)
    outcome = Outcome(row, {one.name: [{"rate": rate}] for one in row.contestants}, {}, {})
    document = as_json([outcome], {**SETTINGS, **settings}, "a machine")
    back: dict[str, Any] = json.loads(json.dumps(document))
    return back


def test_rows_stand_in_their_order_with_figures_goals_and_time() -> None:
    outcomes, settings, machine = merged([report("queue-warm", 100.0), report("queue", 200.0)])
    assert [outcome.row.name for outcome in outcomes] == ["queue", "queue-warm"]
    assert [value for _, value in outcomes[1].goals()] == [1.0, 1.0]
    assert settings["took_s"] == 40
    page = as_html(outcomes, settings, machine)
    assert "a machine; messages 60000" in page
    assert "NATS JetStream" in page


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (report("queue", 1.0), "queue is in two reports"),
        (report("queue-warm", 1.0, repeats=3), "different settings: repeats"),
        ({**report("queue-warm", 1.0), "machine": "another"}, "different machines: a machine; another"),
    ],
)
def test_what_does_not_belong_together_is_refused(other: dict[str, Any], fault: str) -> None:
    with pytest.raises(CannotMerge, match=fault):
        merged([report("queue", 1.0), other])
