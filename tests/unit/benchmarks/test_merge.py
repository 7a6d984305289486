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
    outcomes, settings, machine = merged([report("queue-fresh", 100.0), report("queue", 200.0)])
    assert [outcome.row.name for outcome in outcomes] == ["queue", "queue-fresh"]
    assert [value for _, value in outcomes[1].goals()] == [1.0, 1.0, None, None]
    assert settings["took_s"] == 40
    page = as_html(outcomes, settings, machine)
    assert "a machine; messages 60000" in page
    assert "NATS JetStream" in page


@pytest.mark.parametrize(
    ("other", "fault"),
    [
        (report("queue-fresh", 1.0, repeats=3), "different settings: repeats"),
        ({**report("queue-fresh", 1.0), "machine": "another"}, "different machines: a machine; another"),
    ],
)
def test_what_does_not_belong_together_is_refused(other: dict[str, Any], fault: str) -> None:
    with pytest.raises(CannotMerge, match=fault):
        merged([report("queue", 1.0), other])


def test_a_row_that_was_measured_again_is_that_of_the_later_report_with_its_own_instant() -> None:
    earlier, later = report("queue", 1.0), report("queue", 2.0)
    earlier["rows"][0] |= {"at": "2026-01-01T10:00:00Z", "took_s": 10.0}
    later["rows"][0] |= {"at": "2026-01-02T11:00:00Z", "took_s": 12.4}
    (outcome,), settings, _ = merged([earlier, later])
    assert outcome.at == "2026-01-02T11:00:00Z"
    assert outcome.runs["lapse, inline"] == [{"rate": 2.0}]
    assert settings["took_s"] == 12
    del later["rows"][0]["at"]
    later["at"] = "2026-01-03T00:00:00Z"
    assert merged([later])[0][0].at == "2026-01-03T00:00:00Z"
