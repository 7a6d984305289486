"""Times of test files: `make test-times` records them, and parallel runs begin with the longest."""

import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

import pytest
import tomlkit

PATH = Path(__file__).parents[2] / "times.toml"
SHORTEST_S = 5
"""Shorter files are not recorded: they fill the gaps at the end in any order."""


def recorded() -> dict[str, int]:
    """Return the recorded seconds by file."""
    return tomllib.loads(PATH.read_text("utf-8"))["seconds"] if PATH.exists() else {}


def longest_first(items: list[pytest.Item], groups: Sequence[str], root: Path) -> None:
    """Sort tests in place: the group whose files take longest comes first, and each group keeps its own order."""
    seconds, taken = recorded(), Counter[str]()
    for group, path in {(group, item.path) for group, item in zip(groups, items, strict=True)}:
        taken[group] += seconds.get(path.relative_to(root).as_posix(), 0) if path.is_relative_to(root) else 0
    paired = sorted(zip(groups, items, strict=True), key=lambda pair: (-taken[pair[0]], pair[0]))
    items[:] = [item for _, item in paired]


class FileTimes:
    """A plugin that adds up the times of each file's tests, and records them at the end of the run.

    A file with a failed test keeps its earlier time. A run that was ended early records nothing.
    """

    def __init__(self) -> None:
        self._seconds = Counter[str]()
        self._failed = set[str]()

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        file = report.nodeid.partition("::")[0]
        self._seconds[file] += report.duration  # type: ignore[assignment]
        if report.failed:
            self._failed.add(file)

    def pytest_sessionfinish(self, session: pytest.Session, exitstatus: int) -> None:
        if exitstatus not in (pytest.ExitCode.OK, pytest.ExitCode.TESTS_FAILED) or session.shouldfail:
            return
        whole = {file: round(seconds) for file, seconds in self._seconds.items() if file not in self._failed}
        write(recorded() | whole)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        terminalreporter.section("seconds by file")
        for file, seconds in self._seconds.most_common(40):
            terminalreporter.write_line(f"{seconds:8.1f}  {file}")


def write(seconds: Mapping[str, int]) -> None:
    """Record times, without short files and deleted ones."""
    document = tomlkit.document()
    document.add(tomlkit.comment("Seconds that the tests of a file take, printed by `make test-times`."))
    document.add("seconds", dict(_longest(seconds.items())))  # type: ignore[arg-type]
    PATH.write_text(tomlkit.dumps(document), "utf-8")


def _longest(seconds: Iterable[tuple[str, int]]) -> list[tuple[str, int]]:
    root = PATH.parents[1]
    kept = [(file, taken) for file, taken in seconds if taken >= SHORTEST_S and (root / file).exists()]
    return sorted(kept, key=lambda each: (-each[1], each[0]))
