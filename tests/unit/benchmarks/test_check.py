"""`make bench-check` finds what has become slower, and nothing else."""

from __future__ import annotations

from pathlib import Path

import pytest
from benchmarks.check import EXPECTED, Expected, expected, record, recorded_work_ms, rows_of
from benchmarks.comparison.load import Load
from benchmarks.comparison.processor import work_ms

COST = Expected("queue", "lapse, inline", "worker_us", 4.0, 0.25)
RATIO = Expected("queue", "lapse, inline", "rate", 1.0, 0.25, "share group")
MEDIANS = {"lapse, inline": {"worker_us": 4.2, "rate": 90.0}, "share group": {"rate": 100.0}}


@pytest.mark.parametrize(
    ("one", "found", "fault"),
    [
        (COST, 1.0, ""),
        (COST, 5.0, ""),
        (COST, 5.1, "queue: lapse, inline, worker_us: 5.1, expected 4, at most 5"),
        (COST, None, "queue: lapse, inline, worker_us: not measured"),
        (RATIO, 2.0, ""),
        (RATIO, 0.8, ""),
        (RATIO, 0.7, "queue: lapse, inline / share group, rate: 0.7, expected 1, at least 0.8"),
    ],
)
def test_a_figure_may_be_worse_by_its_tolerance(one: Expected, found: float | None, fault: str) -> None:
    assert one.fault(found) == fault


def test_a_slower_processor_may_make_a_message_dearer_and_no_ratio_worse() -> None:
    assert COST.on(1.5).fault(7.5) == ""
    assert COST.on(1.5).fault(7.6) == "queue: lapse, inline, worker_us: 7.6, expected 6, at most 7.5"
    assert COST.on(0.5).fault(2.6) == "queue: lapse, inline, worker_us: 2.6, expected 2, at most 2.5"
    assert RATIO.on(1.5) == RATIO
    assert 0.1 < work_ms(3) < 1_000


def test_a_ratio_is_of_figures_of_one_run() -> None:
    assert COST.measured(MEDIANS) == 4.2
    assert RATIO.measured(MEDIANS) == 0.9
    assert RATIO.measured({"lapse, inline": {"rate": 90.0}}) is None


def test_only_contestants_that_a_figure_names_run() -> None:
    (row,) = rows_of([RATIO], Load())
    assert [one.name for one in row.contestants] == ["lapse, inline", "share group"]
    (row,) = rows_of([COST], Load())
    assert [one.name for one in row.contestants] == ["lapse, inline"]


def test_every_expected_figure_is_one_of_the_rows() -> None:
    known = {(row.name, one.name) for row in rows_of(expected(), Load()) for one in row.contestants}
    for one in expected():
        assert (one.row, one.contestant) in known
        assert not one.against or (one.row, one.against) in known


def test_what_was_measured_can_be_recorded(tmp_path: Path) -> None:
    path = tmp_path / "expected.toml"
    path.write_text(EXPECTED.read_text())
    before = expected(path)
    record({one: (7.123 if at == 1 else None) for at, one in enumerate(before)}, 3.456, path)
    after = expected(path)
    assert recorded_work_ms(path) == 3.46
    assert after[1].expected == 7.12
    assert [one for at, one in enumerate(after) if at != 1] == [one for at, one in enumerate(before) if at != 1]
    assert path.read_text().startswith("# What `make bench-check` holds")
