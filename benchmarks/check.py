"""`make bench-check`: compares the costs of a message with those in `expected.toml`, in about three minutes.

CPU per message hardly depends on the machine's other load, and both sides of a ratio are measured in one run. Rates
alone say nothing here. Contestants that no figure names do not run.

On a slower processor every message costs more. So `expected.toml` also has the time of a fixed piece of work on the
machine of its figures. Expected costs are scaled by the time of the same work here.
"""

from __future__ import annotations

import argparse
import sys
import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import tomlkit
from rich.console import Console
from rich.table import Table

from benchmarks.__main__ import run
from benchmarks.comparison.brokers import environment_of
from benchmarks.comparison.load import Load
from benchmarks.comparison.processor import work_ms
from benchmarks.comparison.row import Medians, Row, figure, ratio
from benchmarks.comparison.rows import rows
from lapse.embedded import EmbeddedKafka

EXPECTED: Final = Path(__file__).with_name("expected.toml")
_LOAD: Final = Load(messages=150_000)
_REPEATS: Final = 3


@dataclass(frozen=True, slots=True)
class Expected:
    """A figure that must not become worse.

    Attributes:
        row: the row's name.
        contestant: the contestant's name.
        key: the figure's name: `rate`, or a cost of a message.
        expected: the figure on a quiet machine.
        tolerance: the share by which it may be worse.
        against: the peer whose figure it is divided by; empty = none.
    """

    row: str
    contestant: str
    key: str
    expected: float
    tolerance: float
    against: str = ""

    @property
    def text(self) -> str:
        """The figure's name for people."""
        what = f"{self.row}: {self.contestant}"
        return f"{what} / {self.against}, {self.key}" if self.against else f"{what}, {self.key}"

    def on(self, slower: float) -> Expected:
        """Return the figure for a processor that is `slower` times as slow. A ratio stays the same."""
        return self if self.against else replace(self, expected=self.expected * slower)

    @property
    def limit(self) -> float:
        """The limit: a rate must not be below it, a cost not above it."""
        more = 1 + self.tolerance
        return self.expected / more if self.key == "rate" else self.expected * more

    def measured(self, medians: Medians) -> float | None:
        """Return the figure of this run, or None if it was not measured."""
        measure = ratio(self.contestant, self.against, self.key) if self.against else figure(self.contestant, self.key)
        return measure(medians)

    def fault(self, found: float | None) -> str:
        """Describe what is wrong with a measured figure; empty = nothing."""
        if found is None:
            return f"{self.text}: not measured"
        if found >= self.limit if self.key == "rate" else found <= self.limit:
            return ""
        side = "at least" if self.key == "rate" else "at most"
        return f"{self.text}: {found:.3g}, expected {self.expected:.3g}, {side} {self.limit:.3g}"


def expected(path: Path = EXPECTED) -> list[Expected]:
    """Read the expected figures."""
    listed: dict[str, list[dict[str, Any]]] = tomllib.loads(path.read_text("utf-8"))
    return [Expected(**one) for one in listed["figure"]]


def recorded_work_ms(path: Path = EXPECTED) -> float:
    """Return the time of `benchmarks.comparison.processor` on the machine of the expected figures, ms."""
    return float(tomllib.loads(path.read_text("utf-8"))["processor"]["work_ms"])


def rows_of(figures: Sequence[Expected], load: Load) -> list[Row]:
    """Return the rows of some figures, with only the contestants that the figures name."""
    wanted = {(one.row, name) for one in figures for name in (one.contestant, one.against)}
    return [
        replace(row, contestants=[one for one in row.contestants if (row.name, one.name) in wanted])
        for row in rows(load)
        if any(row.name == name for name, _ in wanted)
    ]


def record(found: Mapping[Expected, float | None], took_ms: float, path: Path = EXPECTED) -> None:
    """Write the measured figures and the processor's time. Keep tolerances and comments."""
    document = tomlkit.parse(path.read_text("utf-8"))
    document["processor"]["work_ms"] = float(f"{took_ms:.3g}")  # type: ignore[index]
    for table, value in zip(document["figure"], found.values(), strict=True):  # type: ignore[arg-type]
        if value is not None:
            table["expected"] = float(f"{value:.3g}")
    path.write_text(tomlkit.dumps(document), "utf-8")


def main() -> int:
    """Measure, and print the figures beyond their limits. Return 1 if there are any."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.check", description=__doc__)
    parser.add_argument("--record", action="store_true", help="write what was measured, as what is to be expected")
    given = parser.parse_args()
    console, took_ms = Console(), work_ms()
    slower = took_ms / recorded_work_ms()
    figures = [one if given.record else one.on(slower) for one in expected()]
    medians: dict[str, Medians] = {}
    with EmbeddedKafka(heap_mb=1024, quick_start=False) as broker:
        for row in rows_of(figures, _LOAD):
            outcome = run(row, _REPEATS, environment_of(broker), console)
            medians[row.name] = outcome.medians()
            for name, why in (outcome.skipped | outcome.failed).items():
                console.print(f"{row.name}: {name} did not take part: {why.strip()[-500:]}", markup=False)
    found = {one: one.measured(medians.get(one.row, {})) for one in figures}
    table = Table("figure", "expected", "now")
    for one, value in found.items():
        table.add_row(one.text, f"{one.expected:.3g}", "–" if value is None else f"{value:.3g}")
    console.print(table)
    if given.record:
        record(found, took_ms)
        return 0
    console.print(f"This processor takes {slower:.2f} × as long for the same work; costs are expected accordingly.")
    faults = [fault for one, value in found.items() if (fault := one.fault(value))]
    for fault in faults:
        console.print(fault, style="red", markup=False)
    if faults:
        console.print("If that is meant, say why in the commit that runs `python -m benchmarks.check --record`.")
    return int(bool(faults))


if __name__ == "__main__":
    sys.exit(main())
