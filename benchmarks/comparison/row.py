"""A row of the comparison: contestants, what is shown of them, and the goals that their figures are held against."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.comparison.contestant import Figures

Medians = Mapping[str, Figures]
"""The median of every figure of every contestant that took part."""

Measure = Callable[[Medians], float | None]
"""Takes a goal's figure out of the medians; None where a contestant is missing."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """One side.

    Attributes:
        name: in tables.
        module: below `benchmarks`.
        arguments: of its `run`.
    """

    name: str
    module: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A figure that the table shows.

    Attributes:
        key: in the contestants' figures.
        title: its heading.
        digits: behind the point.
    """

    key: str
    title: str
    digits: int = 1

    def text(self, figures: Figures) -> str:
        """The figure; a dash where a contestant has none."""
        value = figures.get(self.key)
        return "–" if value is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Goal:
    """What is to be reached.

    Attributes:
        text: what is measured.
        measure: takes it out of the figures.
        limit: the goal.
        at_least: whether the figure shall be at least the limit, and not at most.
        unit: behind figures.
    """

    text: str
    measure: Measure
    limit: float
    at_least: bool
    unit: str = "×"

    def reached(self, value: float) -> bool:
        """Whether a figure is good enough."""
        return value >= self.limit if self.at_least else value <= self.limit

    @property
    def limit_text(self) -> str:
        """The goal in words."""
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.limit:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Row:
    """What is measured together.

    Attributes:
        name: for `--only`.
        title: a sentence.
        contestants: who takes part, in turn.
        columns: what is shown.
        goals: what is to be reached.
        most_repeats: where repeating shows nothing new, or takes long.
        timeout_s: of one contestant's one run.
        fresh: whether each run has a broker that was just started for it.
        warming: how many messages a broker of the row's own serves before the first run; 0 = the shared broker.
    """

    name: str
    title: str
    contestants: Sequence[Contestant]
    columns: Sequence[Column]
    goals: Sequence[Goal] = ()
    most_repeats: int = 100
    timeout_s: float = 420.0
    fresh: bool = False
    warming: int = 0


@dataclass(slots=True)
class Outcome:
    """What became of a row.

    Attributes:
        row: which.
        runs: each contestant's figures, one per repetition.
        skipped: why a contestant did not take part.
        failed: how a contestant ended.
    """

    row: Row
    runs: dict[str, list[Figures]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)

    def medians(self) -> dict[str, Figures]:
        """The median of every figure."""
        return {
            name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for name, runs in self.runs.items()
            if runs
        }

    def goals(self) -> list[tuple[Goal, float | None]]:
        """Goals, each with its figure if it was measured."""
        medians = self.medians()
        return [(goal, goal.measure(medians)) for goal in self.row.goals]


def figure(contestant: str, key: str) -> Measure:
    """A contestant's own figure."""
    return lambda medians: medians[contestant][key] if contestant in medians else None


def ratio(contestant: str, peer: str, key: str = "rate") -> Measure:
    """A contestant's figure by its peer's, both measured in the same run."""

    def measure(medians: Medians) -> float | None:
        if contestant not in medians or peer not in medians:
            return None
        return medians[contestant][key] / medians[peer][key]

    return measure
