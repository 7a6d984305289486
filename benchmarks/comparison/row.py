"""A row of the comparison: contestants, the columns with their figures, and the goals of these."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

from benchmarks.comparison.contestant import Figures

Medians = Mapping[str, Figures]
"""The median of every figure, by contestant."""

Measure = Callable[[Medians], float | None]
"""Computes a goal's figure from the medians; None if a contestant is missing."""


@dataclass(frozen=True, slots=True)
class Contestant:
    """A program whose figures are compared.

    Attributes:
        name: the name in tables.
        module: the module's name below `benchmarks`.
        arguments: the arguments of its `run`.
    """

    name: str
    module: str
    arguments: Mapping[str, object] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Column:
    """A figure that the table shows.

    Attributes:
        key: the figure's name in the contestants' figures.
        title: the heading.
        digits: how many digits follow the decimal point.
    """

    key: str
    title: str
    digits: int = 1

    def text(self, figures: Figures) -> str:
        """Format the figure, or return a dash if there is none."""
        value = figures.get(self.key)
        return "–" if value is None else f"{value:,.{self.digits}f}"


@dataclass(frozen=True, slots=True)
class Goal:
    """A figure's goal.

    Attributes:
        text: describes the figure.
        measure: computes it from the medians.
        limit: the goal's value.
        at_least: whether the figure must be at least the limit; else at most.
        unit: the unit, for people.
    """

    text: str
    measure: Measure
    limit: float
    at_least: bool
    unit: str = "×"

    def reached(self, value: float) -> bool:
        """Return whether a figure reaches the goal."""
        return value >= self.limit if self.at_least else value <= self.limit

    @property
    def limit_text(self) -> str:
        """The goal for people."""
        sign = "≥" if self.at_least else "≤"
        return f"{sign} {self.limit:g} {self.unit}"


@dataclass(frozen=True, slots=True)
class Row:
    """Contestants that are measured together.

    Attributes:
        name: the name for `--only`.
        title: a sentence that describes the row.
        contestants: the contestants, which run in turn.
        columns: the columns of the table.
        goals: the goals.
        most_repeats: the limit of repetitions, for rows where they show nothing new or take long.
        timeout_s: the limit of one contestant's run, s.
        fresh: whether each run gets a broker that has just been started.
        rehearsals: how often each contestant runs before the runs that count, until the broker has compiled its code.
        kafka: whether it needs a broker.
    """

    name: str
    title: str
    contestants: Sequence[Contestant]
    columns: Sequence[Column]
    goals: Sequence[Goal] = ()
    most_repeats: int = 100
    timeout_s: float = 420.0
    fresh: bool = False
    rehearsals: int = 0
    kafka: bool = True


@dataclass(slots=True)
class Outcome:
    """The outcome of a row.

    Attributes:
        row: the row.
        runs: the figures of each repetition, by contestant.
        skipped: why a contestant did not run, by contestant.
        failed: the error that ended a contestant, by contestant.
        at: when the row's last run ended, UTC as in RFC 3339; empty = the report's own instant.
        took_s: the time of all runs, s.
    """

    row: Row
    runs: dict[str, list[Figures]] = field(default_factory=dict)
    skipped: dict[str, str] = field(default_factory=dict)
    failed: dict[str, str] = field(default_factory=dict)
    at: str = ""
    took_s: float = 0.0

    def medians(self) -> dict[str, Figures]:
        """Return the median of every figure, by contestant."""
        return {
            name: {key: statistics.median(run[key] for run in runs) for key in runs[0]}
            for name, runs in self.runs.items()
            if runs
        }

    def goals(self) -> list[tuple[Goal, float | None]]:
        """Return the goals, each with its figure if it was measured."""
        medians = self.medians()
        return [(goal, goal.measure(medians)) for goal in self.row.goals]


def figure(contestant: str, key: str) -> Measure:
    """Return what takes a contestant's figure from the medians; None if it was not measured."""
    return lambda medians: medians[contestant].get(key) if contestant in medians else None


def greatest(contestant: str, end: str) -> Measure:
    """Return what takes the greatest of a contestant's figures with names that end with a text."""

    def measure(medians: Medians) -> float | None:
        found = [value for key, value in medians.get(contestant, {}).items() if key.endswith(end)]
        return max(found, default=None)

    return measure


def ratio(contestant: str, peer: str, key: str = "rate") -> Measure:
    """Return what divides a contestant's figure by its peer's, both measured in the same run."""

    def measure(medians: Medians) -> float | None:
        if contestant not in medians or peer not in medians:
            return None
        return medians[contestant][key] / medians[peer][key]

    return measure
