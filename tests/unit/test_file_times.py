"""Parallel runs begin with the files that take longest, so that no process ends long after the others."""

from pathlib import Path
from types import SimpleNamespace

import pytest

from support.suite import file_times
from support.suite.grouping import SPARK, group_of

ROOT = Path(__file__).parents[2]


def test_every_recorded_file_is_there() -> None:
    """`make test-times` writes them; who renames a long file runs it again, or renames it there as well."""
    recorded = file_times.recorded()
    assert recorded
    assert [file for file in recorded if not (ROOT / file).is_file()] == []


def test_the_group_that_takes_longest_comes_first_and_keeps_its_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(file_times, "recorded", lambda: {"a.py": 20, "b.py": 30, "c.py": 15})
    named = [("short.py", "short"), ("a.py", "a"), ("b.py", "b"), ("c.py", "a"), ("a.py", "a"), ("b.py", "b")]
    items = [SimpleNamespace(path=ROOT / file, number=number) for number, (file, _) in enumerate(named)]
    by_number = {number: group for number, (_, group) in enumerate(named)}

    file_times.longest_first(items, [by_number[item.number] for item in items], ROOT)  # type: ignore[arg-type]

    assert [item.number for item in items] == [1, 3, 4, 2, 5, 0]


def test_what_is_short_or_gone_is_not_recorded(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(file_times, "PATH", tmp_path / "tests" / "times.toml")
    (tmp_path / "tests").mkdir()
    for file in ("long.py", "longer.py", "short.py"):
        (tmp_path / file).touch()
    file_times.write({"long.py": 12, "short.py": 1, "gone.py": 99, "longer.py": 30})
    assert list(file_times.recorded().items()) == [("longer.py", 30), ("long.py", 12)]


@pytest.mark.parametrize(
    ("status", "ended_early", "recorded"),
    [
        (pytest.ExitCode.OK, False, {"failed.py": 9, "long.py": 12}),
        (pytest.ExitCode.TESTS_FAILED, False, {"failed.py": 9, "long.py": 12}),
        (pytest.ExitCode.TESTS_FAILED, "stopping after 1 failures", {"failed.py": 9, "long.py": 30}),
        (pytest.ExitCode.INTERRUPTED, False, {"failed.py": 9, "long.py": 30}),
    ],
)
def test_a_failed_test_costs_only_the_time_of_its_file(
    monkeypatch: pytest.MonkeyPatch,
    tmp_path: Path,
    status: pytest.ExitCode,
    ended_early: bool | str,
    recorded: dict[str, int],
) -> None:
    monkeypatch.setattr(file_times, "PATH", tmp_path / "tests" / "times.toml")
    (tmp_path / "tests").mkdir()
    for file in ("long.py", "failed.py"):
        (tmp_path / file).touch()
    file_times.write({"long.py": 30, "failed.py": 9})
    times = file_times.FileTimes()
    for test, failed, seconds in (("long.py::a", False, 5), ("long.py::b", False, 7), ("failed.py::c", True, 300)):
        times.pytest_runtest_logreport(SimpleNamespace(nodeid=test, failed=failed, duration=seconds))  # type: ignore[arg-type]

    times.pytest_sessionfinish(SimpleNamespace(shouldfail=ended_early), status)  # type: ignore[arg-type]

    assert file_times.recorded() == recorded


def test_a_file_stays_together_and_those_that_share_a_session_of_spark_do() -> None:
    """What the controller of a parallel run reads from a file's text is what its tests have."""
    plain, *taking = (
        ROOT / "tests" / path
        for path in (
            "unit/test_docs.py",
            "unit/spark/test_event.py",
            "integration/spark/test_spark_delta.py",
            "unit/spark/test_ledger.py",
            "integration/spark/test_spark_running_ledger.py",
            "integration/spark/test_spark_redrive.py",
        )
    )
    assert group_of(plain) == str(plain)
    assert [group_of(file) for file in taking] == [SPARK[0], SPARK[1], SPARK[0], SPARK[0], SPARK[1]]
